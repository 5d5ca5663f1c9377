"""Carries out orders for ranges: bodies arrive in pieces, into memory that is used again."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Protocol

from lodefs.chunkstore.errors import Changed, Unavailable
from lodefs.chunkstore.nodeapi.http_head import END, parse_head
from lodefs.chunkstore.objects.range_order import HttpOrder
from lodefs.chunkstore.objects.s3_range_reader import (
    UnsupportedResponse,
    is_plain,
    limit_waiting,
    receive_head,
)
from lodefs.chunkstore.system.watchdog import Watchdog

CONNECTIONS_MAX = 16  # idle ones that are kept
WATCH_S = 3600.0  # each order has its own limit


class Body(Protocol):
    """The bytes of a range, from its beginning on."""

    def read_into(self, view: memoryview) -> None:
        """Fills ``view`` with the next bytes. Raises: OSError, also if there are no more."""
        ...


class FileBody:
    """A range of a file."""

    def __init__(self, fd: int, offset: int) -> None:
        self._fd = fd
        self._at = offset

    def read_into(self, view: memoryview) -> None:
        """As of Body."""
        while view:
            count = os.preadv(self._fd, (view,), self._at)
            if not count:
                raise ConnectionResetError("the file is shorter than its index says")
            self._at += count
            view = view[count:]


class _HttpBody:
    """The body of an answer, the beginning of which came with its head."""

    def __init__(self, sock: socket.socket, rest: bytes) -> None:
        self._sock = sock
        self._rest = memoryview(rest)
        self._flags = socket.MSG_WAITALL if is_plain(sock) else 0

    def read_into(self, view: memoryview) -> None:
        """As of Body."""
        if self._rest:
            count = min(len(view), len(self._rest))
            view[:count] = self._rest[:count]
            self._rest = self._rest[count:]
            view = view[count:]
        while view:
            count = self._sock.recv_into(view, len(view), self._flags)
            if not count:
                raise ConnectionResetError("the answer ended before its end")
            view = view[count:]


class RangeStreams:
    """Kept connections, and the answers over them. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[tuple[str, int, str], socket.socket]] = []
        self._watchdog = Watchdog(WATCH_S)

    @contextmanager
    def get(self, order: HttpOrder, size_bytes: int) -> Iterator[Body]:
        """The body of the answer, all of which must be read within the block.

        Raises: Changed, Unavailable (another answer than a plain one), OSError.
        """
        with self._watchdog.watch(order.transfer_timeout_s) as transfer:
            while True:
                sock, is_fresh = self._take(order)
                shut = partial(socket.socket.shutdown, sock, socket.SHUT_RDWR)
                kept = False
                try:
                    transfer.cancel_by(partial(_quietly, shut))
                    try:
                        sock.sendall(order.request)
                        head, rest = receive_head(sock)
                    except OSError as error:
                        is_late = isinstance(error, TimeoutError | BlockingIOError)
                        if is_fresh or is_late or transfer.expired:
                            raise
                        continue  # the server had closed it while it was idle
                    keeps = _check(head, order, size_bytes)
                    yield _HttpBody(sock, rest)
                    kept = keeps and not transfer.expired
                    return
                except UnsupportedResponse as error:
                    raise Unavailable(str(error)) from error
                finally:
                    self._give_back(order, sock, kept=kept)

    def _take(self, order: HttpOrder) -> tuple[socket.socket, bool]:
        endpoint = (order.host, order.port, order.ca_file)
        with self._lock:
            for n in range(len(self._idle) - 1, -1, -1):
                if self._idle[n][0] == endpoint:
                    return self._idle.pop(n)[1], False
        sock = socket.create_connection((order.host, order.port), order.connect_timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if order.ca_file:
            sock = _context(order.ca_file).wrap_socket(sock, server_hostname=order.host)
        limit_waiting(sock, order.read_timeout_s)
        return sock, True

    def _give_back(self, order: HttpOrder, sock: socket.socket, *, kept: bool) -> None:
        if kept:
            with self._lock:
                if len(self._idle) < CONNECTIONS_MAX:
                    self._idle.append(((order.host, order.port, order.ca_file), sock))
                    return
        sock.close()


def _check(head: bytes, order: HttpOrder, size_bytes: int) -> bool:
    """Whether the connection can be used again after this answer, if it is the one that was asked
    for. Raises: Changed, Unavailable."""
    try:
        parsed = parse_head(head.removesuffix(END))
    except ValueError as error:
        raise Unavailable(str(error)) from error
    headers = parsed.headers
    if parsed.status == 412:
        raise Changed("the object was written again")
    if parsed.status != 206 or parsed.body_size_bytes != size_bytes:
        raise Unavailable(f"the store answered with {parsed.status}")
    if "transfer-encoding" in headers or headers.get("content-encoding", "identity") != "identity":
        raise Unavailable("the answer's body is encoded")
    span = headers.get("content-range", "").partition("/")[0]
    if span != f"bytes {order.first}-{order.first + size_bytes - 1}":
        raise Unavailable(f"the store answered with another range: {span!r}")
    if headers.get("etag") != order.etag:
        raise Changed("the object has another ETag")
    return parsed.keeps_connection


def _quietly(shut: partial[None]) -> None:
    try:
        shut()
    except OSError:
        return  # it is closed already


@lru_cache(maxsize=4)
def _context(ca_file: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file)
