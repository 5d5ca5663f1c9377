"""One request to one peer, without blocking: HTTP/1.1 (RFC 9112) on a socket that a loop polls.

A thread that wants chunks may use two peers at once, so a request is a state machine and not a
call.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
from collections.abc import Mapping
from typing import NamedTuple

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.protocol.http_head import END, ResponseHead, parse_head
from lodefs.proxy.peers.client.phases import Phase
from lodefs.proxy.peers.membership.peer_standing import Fault

HEAD_SIZE_BYTES_MAX = 16 * 1024
_RECEIVE_SIZE_BYTES = 64 * 1024
_READ, _WRITE = select.POLLIN, select.POLLOUT


class PeerAnswer(NamedTuple):
    """An answer. ``headers`` are by lower-case name."""

    status: int
    headers: Mapping[str, str]
    body: memoryview


class HttpAttempt:
    """A request under way on a connection. Call ``advance`` whenever ``fileno`` is ready for
    ``events``, until there is an ``answer``.

    ``body_size_bytes_max`` limits the body. ``is_reused`` and ``began``: if an idle connection ends
    before the first byte, the request may be sent again on a fresh one.
    """

    def __init__(
        self,
        address: str,
        sock: socket.socket,
        request: bytes,
        body_size_bytes_max: int,
        *,
        is_reused: bool = False,
        tls: ssl.SSLContext | None = None,
        place: str = "",
    ) -> None:
        """``tls`` is used on a new connection. ``place`` is the peer's address of ``sock``."""
        self.address = address
        self.place = place
        self.sock = sock
        self.is_reused = is_reused
        self.began = False
        self.answer: PeerAnswer | None = None
        self.events = _WRITE
        self._unsent = memoryview(request)
        self._body_size_bytes_max = body_size_bytes_max
        self._head = b""
        self.status = 0
        self._response_head: ResponseHead | None = None
        self._body: memoryview | None = None
        self.got_bytes = 0  # bytes of the body so far
        self.fault = Fault.UNREACHABLE  # the kind of fault if ``advance`` raises
        self._request_bytes = len(request)
        self._tls = tls

    @property
    def body_so_far(self) -> memoryview:
        """What has come of the body."""
        return memoryview(b"") if self._body is None else self._body[: self.got_bytes]

    def fileno(self) -> int:
        """Returns the descriptor to poll."""
        return self.sock.fileno()

    @property
    def phase(self) -> Phase:
        """The event that it waits for."""
        if self._tls is not None:
            return Phase.TLS if isinstance(self.sock, ssl.SSLSocket) else Phase.CONNECT
        if self._unsent:
            is_new = len(self._unsent) == self._request_bytes and not self.is_reused
            return Phase.CONNECT if is_new else Phase.SEND
        if self._body is not None:
            return Phase.BODY
        return Phase.HEAD if self.began else Phase.ANSWER

    @property
    def is_reusable(self) -> bool:
        """Whether the connection can serve another request."""
        head = self._response_head
        return self.answer is not None and head is not None and head.keeps_connection

    def advance(self) -> None:
        """Proceeds as far as possible without waiting. Raises: Unavailable if the peer cannot be
        reached, ends the connection, or does not speak valid HTTP; ``fault`` says which."""
        try:
            self._advance()
        except (BlockingIOError, ssl.SSLWantReadError):
            self.events = _READ
        except ssl.SSLWantWriteError:
            self.events = _WRITE
        except (OSError, ValueError) as error:
            self.fault = _fault_of(error)
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise Unavailable(f"peer {self.address}: {why or error}") from error

    def _advance(self) -> None:
        if self._tls is not None and not self._shake_hands(self._tls):
            return
        while self._unsent:
            try:
                sent = self.sock.send(self._unsent)
            except BlockingIOError:
                self.events = _WRITE
                return
            self._unsent = self._unsent[sent:]
        self.events = _READ
        while self.answer is None:
            if self._body is None:
                self._receive_head()
            else:
                self._receive_body(self._body)

    def _shake_hands(self, tls: ssl.SSLContext) -> bool:
        """Continues the TLS handshake, once the connection exists. Returns whether TLS is ready."""
        sock = self.sock
        if not isinstance(sock, ssl.SSLSocket):
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            try:
                sock.getpeername()
            except OSError:
                self.events = _WRITE
                return False
            sock = tls.wrap_socket(sock, do_handshake_on_connect=False)
            self.sock = sock
        sock.do_handshake()
        self._tls = None
        return True

    def _receive_head(self) -> None:
        data = self.sock.recv(_RECEIVE_SIZE_BYTES)
        if not data:
            raise ConnectionResetError(0, "the connection ended before the answer")
        self.began = True
        self._head += data
        end = self._head.find(END)
        if max(end, len(self._head) if end < 0 else 0) > HEAD_SIZE_BYTES_MAX:
            raise ValueError(f"the answer's head does not end within {HEAD_SIZE_BYTES_MAX} bytes")
        if end < 0:
            return
        parsed = parse_head(self._head[:end])
        size_bytes = parsed.body_size_bytes
        if size_bytes > self._body_size_bytes_max:
            raise ValueError(f"{size_bytes} bytes are more than were asked for")
        self._response_head, self.status = parsed, parsed.status
        rest = self._head[end + len(END) :]
        if len(rest) > size_bytes:
            raise ValueError("more came than was asked for")
        body = memoryview(bytearray(size_bytes))
        body[: len(rest)] = rest
        self._body, self.got_bytes = body, len(rest)
        self._end_if_whole(body)

    def _receive_body(self, body: memoryview) -> None:
        count = self.sock.recv_into(body[self.got_bytes :])
        if not count:
            left = len(body) - self.got_bytes
            raise ConnectionResetError(0, f"the answer ended {left} bytes before its end")
        self.got_bytes += count
        self._end_if_whole(body)

    def _end_if_whole(self, body: memoryview) -> None:
        if self.got_bytes == len(body) and self._response_head is not None:
            self.answer = PeerAnswer(self.status, self._response_head.headers, body)


def _fault_of(error: Exception) -> Fault:
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        return Fault.WRONG
    is_cut = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    if isinstance(error, ssl.SSLError) and not is_cut:
        return Fault.REFUSING
    return Fault.UNREACHABLE
