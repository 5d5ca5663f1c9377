"""Requests for ranges over kept connections (HTTP/1.1, RFC 9112) that use very little processor
time. Any unexpected answer is refused, so that the caller asks in another way."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from lodefs.chunkstore.protocol.http_head import END, ResponseHead, parse_head
from lodefs.chunkstore.system.systemd.watchdog import Transfer
from lodefs.chunkstore.types import Buffer

HEAD_SIZE_BYTES_MAX = 64 * 1024
_PEEK_SIZE_BYTES = 4096


class UnsupportedResponse(Exception):
    """This module cannot read the answer: ask in another way."""


class RangeConnection(NamedTuple):
    """A connection. ``owner`` made it and is closed with it."""

    owner: Any
    sock: socket.socket


class RangeAnswer:
    """An answer whose head has arrived. Each byte of the body is read once."""

    def __init__(self, head: ResponseHead, sock: socket.socket, rest: bytes) -> None:
        """``rest`` arrived with the head. Raises: UnsupportedResponse."""
        self.head = head
        self.left_bytes = head.body_size_bytes
        self._sock = sock
        self._rest: Buffer = rest
        encoding = head.headers.get("content-encoding", "identity")
        if "transfer-encoding" in head.headers or encoding != "identity":
            raise UnsupportedResponse("the answer's body is encoded")
        if len(rest) > self.left_bytes:
            raise UnsupportedResponse("the answer has more bytes than it says")

    def read_into(self, view: memoryview) -> None:
        """Fills ``view`` with the next bytes. Raises: OSError, also if too few are left."""
        self.left_bytes -= len(view)
        if self._rest:
            count = min(len(view), len(self._rest))
            view[:count] = self._rest[:count]
            self._rest = memoryview(self._rest)[count:]
            view = view[count:]
        flags = socket.MSG_WAITALL if is_plain(self._sock) else 0
        while view:
            count = self._sock.recv_into(view, len(view), flags)
            if not count:
                raise ConnectionResetError(f"the answer ended {len(view)} bytes before its end")
            view = view[count:]

    def read(self) -> Buffer:
        """Reads the rest of the body. Raises: OSError."""
        if self.left_bytes and is_plain(self._sock) and not self._rest:
            # MSG_WAITALL into new memory: a bytearray would be cleared first
            data = self._sock.recv(self.left_bytes, socket.MSG_WAITALL)
            if len(data) == self.left_bytes:
                self.left_bytes = 0
                return data
            if not data:
                raise ConnectionResetError("the connection ended before the body")
            self._rest = data
        view = memoryview(bytearray(self.left_bytes))
        self.read_into(view)
        return view


class RangeTransport:
    """Sends requests, and keeps connections for later ones. For any thread."""

    def __init__(self, connections_max: int) -> None:
        """``connections_max`` is how many idle connections are kept, over all endpoints."""
        self._connections_max = connections_max
        self._lock = threading.Lock()  # guards the fields below
        self._idle: list[tuple[Hashable, RangeConnection]] = []
        self._closed = False

    @contextmanager
    def ask(
        self,
        endpoint: Hashable,
        connect: Callable[[], RangeConnection],
        request: bytes,
        transfer: Transfer,
    ) -> Iterator[RangeAnswer]:
        """Yields the answer to a GET, to be read within the block. ``connect`` opens a connection
        to the endpoint, on which limit_waiting was called. ``transfer`` lets others end the
        request.

        Raises: UnsupportedResponse, OSError (TimeoutError if no byte came in time).
        """
        while True:
            connection, is_fresh = self._take(endpoint, connect)
            is_kept = False
            try:
                transfer.cancel_by(closer(connection.sock))
                try:
                    connection.sock.sendall(request)
                    head, rest = _receive_head(connection.sock)
                except OSError as error:
                    is_late = isinstance(error, TimeoutError | BlockingIOError)
                    if is_fresh or is_late or transfer.expired:
                        raise
                    continue  # the server has closed the idle connection
                answer = RangeAnswer(head, connection.sock, rest)
                yield answer
                is_kept = head.keeps_connection and not answer.left_bytes and not transfer.expired
                return
            except BlockingIOError as error:  # SO_RCVTIMEO
                raise TimeoutError("no byte came in time") from error
            finally:
                self._give_back(endpoint, connection, is_kept=is_kept)

    def keep_open(
        self, endpoint: Hashable, connect: Callable[[], RangeConnection], count: int
    ) -> None:
        """Drops idle connections that the server has closed, and opens others until ``count`` are
        idle: so the next requests need not connect. Raises: OSError."""
        with self._lock:
            idle = [one for at, one in self._idle if at == endpoint]
            self._idle = [one for one in self._idle if one[0] != endpoint]
        for connection in idle:
            is_kept = _is_silent(connection.sock)
            count -= is_kept
            self._give_back(endpoint, connection, is_kept=is_kept)
        for _ in range(count):
            self._give_back(endpoint, connect(), is_kept=True)

    def close(self) -> None:
        """Closes the idle connections now, and the others once they are idle."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.owner.close()

    def _take(
        self, endpoint: Hashable, connect: Callable[[], RangeConnection]
    ) -> tuple[RangeConnection, bool]:
        """Returns a connection, and whether it is new."""
        with self._lock:
            for n in range(len(self._idle) - 1, -1, -1):
                if self._idle[n][0] == endpoint:
                    return self._idle.pop(n)[1], False
        return connect(), True

    def _give_back(self, endpoint: Hashable, connection: RangeConnection, *, is_kept: bool) -> None:
        if is_kept:
            with self._lock:
                if not self._closed and len(self._idle) < self._connections_max:
                    self._idle.append((endpoint, connection))
                    return
        connection.owner.close()


def limit_waiting(sock: socket.socket, timeout_s: float) -> None:
    """Makes receives and sends fail after ``timeout_s`` without a byte."""
    if not is_plain(sock):
        sock.settimeout(timeout_s)
        return
    sock.settimeout(None)  # use the kernel's timeout, so that a receive is one system call
    whole = int(timeout_s)
    micros = int((timeout_s - whole) * 1e6)
    limit = struct.pack("@ll", whole, max(micros, 0 if whole else 1))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def is_plain(sock: socket.socket) -> bool:
    """Whether the socket passes bytes through unchanged, unlike TLS."""
    return type(sock) is socket.socket


def _is_silent(sock: socket.socket) -> bool:
    """Whether an idle connection is open. A server that sends something ends it, mostly."""
    timeout_s = sock.gettimeout()
    sock.settimeout(0)
    try:
        sock.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False
    else:
        return False
    finally:
        sock.settimeout(timeout_s)


def closer(sock: socket.socket | None) -> Callable[[], None]:
    """Returns a function that ends all reading and writing of a connection, from any thread."""
    plain = getattr(sock, "socket", sock)  # TLS inside TLS, through a proxy

    def close() -> None:
        if isinstance(plain, socket.socket):
            with suppress(OSError):  # the socket is closed already
                # not SSLSocket's shutdown, after which its reader would take ciphertext for data
                socket.socket.shutdown(plain, socket.SHUT_RDWR)

    return close


def _receive_head(sock: socket.socket) -> tuple[ResponseHead, bytes]:
    """Returns an answer's head, and the part of the body that came with it. Raises:
    UnsupportedResponse, OSError."""
    head = b""
    while len(head) < HEAD_SIZE_BYTES_MAX:
        if is_plain(sock):  # peek, so that the body can be received in one piece
            seen = sock.recv(_PEEK_SIZE_BYTES, socket.MSG_PEEK)
            end = (head + seen).find(END)
            taken = len(seen) if end < 0 else end + len(END) - len(head)
            piece = sock.recv(taken) if taken else b""
        else:
            piece = sock.recv(_PEEK_SIZE_BYTES)
        if not piece:
            raise ConnectionResetError("the connection ended before the answer")
        head += piece
        end = head.find(END)
        if end >= 0:
            try:
                return parse_head(head[:end]), head[end + len(END) :]
            except ValueError as error:
                raise UnsupportedResponse(str(error)) from error
    raise UnsupportedResponse("the answer's head has no end")
