"""Carries out orders for ranges: bodies arrive in pieces, in reused memory."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Protocol

from lodefs.chunkstore.errors import Changed, Unavailable
from lodefs.chunkstore.objects.ranges.answers import check_range
from lodefs.chunkstore.objects.ranges.order import HttpOrder
from lodefs.chunkstore.objects.ranges.transport import (
    RangeConnection,
    RangeTransport,
    UnsupportedResponse,
    limit_waiting,
)
from lodefs.chunkstore.protocol.http_head import ResponseHead
from lodefs.chunkstore.system.systemd.watchdog import Watchdog

CONNECTIONS_MAX = 16  # idle connections that are kept
WATCH_S = 3600.0  # each order has its own limit


class Body(Protocol):
    """The bytes of a range, in order."""

    def read_into(self, view: memoryview) -> None:
        """Fills ``view`` with the next bytes. Raises: OSError, also if too few are left."""
        ...


class FileBody:
    """A range of a file."""

    def __init__(self, fd: int, offset: int) -> None:
        self._fd = fd
        self._at = offset

    def read_into(self, view: memoryview) -> None:
        """Implements Body."""
        while view:
            count = os.preadv(self._fd, (view,), self._at)
            if not count:
                raise ConnectionResetError("the file is shorter than its index says")
            self._at += count
            view = view[count:]


class RangeStreams:
    """Kept connections, and requests over them. For any thread."""

    def __init__(self) -> None:
        self._transport = RangeTransport(CONNECTIONS_MAX)
        self._watchdog = Watchdog(WATCH_S)

    @contextmanager
    def get(self, order: HttpOrder, size_bytes: int) -> Iterator[Body]:
        """Yields the body of the answer. The caller must read all of it within the block.

        Raises: Changed; Unavailable for an answer of another kind; OSError.
        """
        endpoint = (order.host, order.port, order.ca_file)
        connect = partial(_connect, order)
        with self._watchdog.watch(order.transfer_timeout_s) as transfer:
            try:
                with self._transport.ask(endpoint, connect, order.request, transfer) as answer:
                    _check(answer.head, order, size_bytes)
                    yield answer
            except UnsupportedResponse as error:
                raise Unavailable(str(error)) from error


def _connect(order: HttpOrder) -> RangeConnection:
    sock = socket.create_connection((order.host, order.port), order.connect_timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if order.ca_file:
        sock = _context(order.ca_file).wrap_socket(sock, server_hostname=order.host)
    limit_waiting(sock, order.read_timeout_s)
    return RangeConnection(sock, sock)


def _check(head: ResponseHead, order: HttpOrder, size_bytes: int) -> None:
    """Checks that the answer fits the order. Raises: Changed, Unavailable."""
    if head.status == 412:
        raise Changed("the object was rewritten")
    if head.status != 206 or head.body_size_bytes != size_bytes:
        raise Unavailable(f"the store answered with {head.status}")
    check_range(head.headers, "the object", order.first, size_bytes, order.etag, order.etag_header)


@lru_cache(maxsize=4)
def _context(ca_file: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file)
