"""One connection to the proxy: HTTP/1.1 GETs over a Unix or TCP socket, with deadlines.

Written by hand because a read through a mount is mostly this: one send, one receive, and no copy of
the body. It understands only answers of the proxy: a status line, headers, a body of known length
(RFC 9112).
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from lodefs.chunkstore.errors import DeadlineExceeded, Denied, InvalidInput, Unavailable
from lodefs.chunkstore.protocol import client_tls
from lodefs.chunkstore.protocol.wire import PORT_DEFAULT

HEAD_BYTES_MAX = 16384
BODY_BYTES_MAX = 64 << 20
BUFFER_BYTES = 65536
SMALL_REQUEST_BYTES = 4096  # a socket takes this at once, once all earlier requests were answered
GRACE_S = 0.002  # a request that takes longer counts as slow
_TIMEVAL = struct.Struct("@ll")
_END = b"\r\n\r\n"
_NOT_LISTENING = (errno.ENOENT, errno.ECONNREFUSED)


class Address(msgspec.Struct, frozen=True):
    """The address of the proxy: ``path`` of a Unix socket, or ``host`` and ``port``. ``tls``: its
    certificate is signed by the CA in ``ca_file``, or by one that the system trusts."""

    path: str = ""
    host: str = ""
    port: int = 0
    tls: bool = False
    ca_file: str = ""

    def __str__(self) -> str:
        scheme = "https" if self.tls else "http"
        return f"unix:{self.path}" if self.path else f"{scheme}://{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parses ``unix:/PATH``, ``http://HOST[:PORT]`` or ``https://HOST[:PORT][?ca=FILE]``. Raises:
    InvalidInput for anything else."""
    if text.startswith("unix:/"):
        return Address(path=text.removeprefix("unix:"))
    try:
        parts = urlsplit(text)
        tls = parts.scheme == "https"
        name, _, ca_file = parts.query.partition("=")
        known = not parts.query or (tls and name == "ca" and ca_file)
        if (
            parts.scheme in ("http", "https")
            and parts.hostname
            and parts.path in ("", "/")
            and known
        ):
            port = parts.port or PORT_DEFAULT
            return Address(host=parts.hostname, port=port, tls=tls, ca_file=unquote(ca_file))
    except ValueError:
        pass
    raise InvalidInput(
        f"{text!r} is not a proxy's address: write unix:/PATH, http://HOST:PORT or "
        "https://HOST:PORT?ca=FILE"
    )


class Response(NamedTuple):
    """An answer. ``head`` is in lower case; ``body`` is valid until the connection's next
    request."""

    status: int
    head: bytes
    body: memoryview


class Connection:
    """A keep-alive connection, opened when it is first needed and again after any failure.

    ``ask`` raises Unavailable if the other side is gone or its answer is malformed (then the
    connection is closed, and the request may be repeated), DeadlineExceeded when the time is up,
    and Denied if this user may not open the socket. ``clock`` counts seconds.
    """

    def __init__(self, address: Address, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = address
        self._clock = clock
        self._socket: socket.socket | None = None
        self._buffer = _memory(BUFFER_BYTES)
        self._patient = False  # whether the socket now waits longer than the grace time
        self._asked_s = 0.0  # when the last request was sent
        self._was_slow = False  # whether the last answer was slow; then the next one mostly is
        self.used = False  # whether this connection has received an answer

    def close(self) -> None:
        """Drops the connection; the next request opens a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.used = False

    def scratch(self, size_bytes: int) -> memoryview:
        """Returns ``size_bytes`` bytes of the buffer for answers; they begin at a page boundary."""
        if len(self._buffer) < size_bytes:
            self._buffer = _memory(size_bytes + HEAD_BYTES_MAX)
        return memoryview(self._buffer)[:size_bytes]

    def cancel(self) -> None:
        """Makes the current request fail. Any thread may call it."""
        sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # without TLS's own shutdown

    def ask(
        self,
        request: bytes,
        deadline_s: float,
        before_blocking: Callable[[], None],
        body_bytes: int = 0,
    ) -> Response:
        """Sends a request and receives its answer. ``body_bytes`` is the expected size of the body.

        It calls ``before_blocking`` (perhaps twice) before waiting longer than GRACE_S, and before
        any wait if the last answer took longer.
        """
        try:
            sock = self._socket or self._connect(deadline_s, before_blocking)
            self._asked_s = self._clock()
            if len(request) > SMALL_REQUEST_BYTES:
                self._limit_sends(sock, deadline_s)
            sock.sendall(request)
            if self._was_slow:
                self._be_patient(sock, deadline_s - self._clock(), before_blocking)
            return self._receive(sock, deadline_s, before_blocking, body_bytes)
        except OSError as error:
            self.close()
            if self._clock() >= deadline_s and error.errno not in _NOT_LISTENING:
                raise DeadlineExceeded(f"{self._address}: no answer in time") from error
            if self._address.tls and (denied := client_tls.refusal(self._address.host, error)):
                raise denied from error
            if self._address.path and isinstance(error, PermissionError):
                raise Denied(
                    f"{self._address}: {error.strerror}; {_who_may(self._address.path)}"
                ) from error
            message = f"{self._address}: {error.strerror or error}"
            if error.errno in _NOT_LISTENING:
                message += "; is the proxy running? `lodefs serve` starts one"
            raise Unavailable(message) from error
        except BaseException:
            self.close()
            raise

    def _connect(self, deadline_s: float, before_blocking: Callable[[], None]) -> socket.socket:
        before_blocking()
        address = self._address
        family = socket.AF_UNIX if address.path else _family(address.host)
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket = sock
        self._limit_sends(sock, deadline_s)  # this limits connect, too
        if address.path:
            sock.connect(address.path)
        else:
            sock.connect((address.host, address.port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls:
            self._wait_for(sock, max(deadline_s - self._clock(), GRACE_S))
            self._socket = sock = client_tls.wrap(sock, address.host, address.ca_file)
        self._wait_for(sock, GRACE_S)
        self._patient = False
        return sock

    def _limit_sends(self, sock: socket.socket, deadline_s: float) -> None:
        left_s = max(deadline_s - self._clock(), 0.001)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(left_s))

    def _wait_for(self, sock: socket.socket, seconds: float) -> None:
        # A timeout in the kernel, not in Python, makes a blocking receive a single system call.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))

    def _be_patient(
        self, sock: socket.socket, seconds: float, before_blocking: Callable[[], None]
    ) -> None:
        before_blocking()
        self._wait_for(sock, max(seconds, GRACE_S))
        self._patient = True

    def _more(
        self,
        sock: socket.socket,
        view: memoryview,
        deadline_s: float,
        before_blocking: Callable[[], None],
        flags: int = 0,
    ) -> int:
        """Receives at least one byte into ``view``. Raises an error if none comes."""
        while True:
            try:
                count = sock.recv_into(view, 0, flags)
            except OSError as error:
                if not (isinstance(error, BlockingIOError) or client_tls.is_waiting(error)):
                    raise
                left = deadline_s - self._clock()
                if left <= 0:
                    raise
                self._be_patient(sock, left, before_blocking)
                continue
            if not count:
                raise Unavailable(f"{self._address}: the connection ended inside an answer")
            if self._patient and self._clock() >= deadline_s:
                raise DeadlineExceeded(f"{self._address}: no answer in time")
            return count

    def _receive(
        self,
        sock: socket.socket,
        deadline_s: float,
        before_blocking: Callable[[], None],
        body_bytes: int,
    ) -> Response:
        if len(self._buffer) < body_bytes + HEAD_BYTES_MAX:
            self._buffer = _memory(body_bytes + HEAD_BYTES_MAX)
        buffer = self._buffer
        view = memoryview(buffer)
        got = self._more(sock, view, deadline_s, before_blocking)
        self._was_slow = self._clock() - self._asked_s > GRACE_S
        end = buffer.find(_END, 0, got)
        while end < 0:
            if got >= HEAD_BYTES_MAX:
                raise Unavailable(f"{self._address}: the head of an answer does not end")
            got += self._more(sock, view[got:], deadline_s, before_blocking)
            end = buffer.find(_END, 0, got)
        head = bytes(view[:end]).lower()
        status, length = self._parse(head)
        start = end + len(_END)
        if start + length > len(buffer):
            self._buffer = _memory(start + length)
            self._buffer[:got] = view[:got]
            view = memoryview(self._buffer)
        missing = start + length - got
        if missing < 0:
            raise Unavailable(f"{self._address}: more bytes came than were announced")
        whole = 0 if self._address.tls else socket.MSG_WAITALL
        while missing:
            part = view[start + length - missing : start + length]
            missing -= self._more(sock, part, deadline_s, before_blocking, whole)
        if self._patient:
            self._wait_for(sock, GRACE_S)
            self._patient = False
        self.used = True
        if b"\r\nconnection: close" in head:
            self.close()
        return Response(status, head, view[start : start + length])

    def _parse(self, head: bytes) -> tuple[int, int]:
        """Returns status and length of the body. Raises: Unavailable if it is not a proxy's
        answer."""
        length = header(head, b"content-length")
        if not (head.startswith(b"http/1.1 ") and head[9:12].isdigit()):
            raise Unavailable(f"{self._address}: the server there does not speak HTTP/1.1")
        if head.startswith(b"http/1.1 204"):
            return 204, 0  # it has no body, and no Content-Length
        if not length.isdigit() or int(length) > BODY_BYTES_MAX:
            raise Unavailable(f"{self._address}: an answer has no valid Content-Length")
        return int(head[9:12]), int(length)


def _memory(size_bytes: int) -> mmap.mmap:
    """Returns memory of this process alone, also after a fork, that begins at a page boundary."""
    return mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def header(head: bytes, name: bytes) -> bytes:
    """Returns the value of a header in a lower-case head; b"" if it is missing."""
    start = head.find(b"\r\n" + name + b":")
    if start < 0:
        return b""
    start += len(name) + 3
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else len(head)].strip()


def _who_may(path: str) -> str:
    """Returns a text that says who may open a proxy's socket."""
    import grp  # here, since only this message needs it

    try:
        group = grp.getgrgid(os.stat(path).st_gid).gr_name
    except (OSError, KeyError):
        return "the proxy is for users of its socket's group"
    how = f"usermod -aG {group} USER, from the next login on"
    return f"the proxy is for members of the group {group} ({how})"


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return _TIMEVAL.pack(whole, max(int((seconds - whole) * 1e6), 0 if whole else 1))
