"""HTTP/1.1 on a Unix socket for dockerd: POST, small bodies, persistent connections.

dockerd sends no content type, and reads ``Err`` of any answer. It repeats a call for 30 seconds
when a connection fails. So a connection is closed only after a long idle time, when another one
needs its place, or at the end. A client waits if all places are taken; none is refused.
"""

from __future__ import annotations

import fcntl
import http.server
import io
import logging
import select
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from email.message import Message
from typing import Any, NamedTuple

from lodefs.chunkstore.system.systemd.watchdog import Watchdog
from lodefs.mount.docker.protocol import encode_error

CONTENT_TYPE = "application/vnd.docker.plugins.v1.2+json"
_DRAIN_BYTES_MAX = 256 << 20  # of a too large body are read, so that its sender reads the answer
_PIECE_BYTES = 64 << 10
_ACCEPT_PAUSE_S = 0.5  # after an error
_READ_TIMEOUT_S = 2.0  # for a client to read its last answer
_READ_PAUSE_S = 0.005  # between checks whether it was read
_TEXTS = {405: "the plugin answers only POST"}
_log = logging.getLogger("lodefs.docker")


class HttpReply(NamedTuple):
    """HTTP status and JSON. ``unheard`` is called if the client went without reading it."""

    status: int
    body: bytes
    unheard: Callable[[], None] | None = None


Answer = Callable[[str, bytes], HttpReply]
"""(path of the method, body) -> reply. Never raises."""


class Limits(NamedTuple):
    """Limits of one server. ``request_timeout_s``: from a request's first byte to its last."""

    body_bytes_max: int = 1 << 20
    request_timeout_s: float = 10.0
    idle_timeout_s: float = 3600.0
    connections_max: int = 1024  # threads


class Server:
    """Answers connections of a listening socket, each in a thread of its own."""

    def __init__(
        self, listener: socket.socket, answer: Answer, limits: Limits | None = None
    ) -> None:
        self.answer = answer
        self.limits = limits or Limits()
        self.watchdog = Watchdog(self.limits.request_timeout_s)
        self._listener = listener
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._idle: dict[socket.socket, None] = {}  # idle connections, the longest idle first
        self._left = threading.Condition(self._lock)  # a connection has ended
        self._ended = threading.Event()
        self._wakes, self._sleeps = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, name="lodefs-accept", daemon=True)

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Accepts no more connections, and answers the requests that have arrived."""
        self._ended.set()
        self._wakes.close()
        with self._left:
            self._left.notify_all()
        self._thread.join(timeout_s)
        with self._lock:
            left = list(self._open.items())
        for connection, _ in left:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RD)  # a reader sees the end
        ends_s = time.monotonic() + timeout_s
        for _, thread in left:
            thread.join(max(0.0, ends_s - time.monotonic()))
        self.watchdog.close()

    def is_ending(self) -> bool:
        """Whether connections should end after their present request."""
        return self._ended.is_set()

    def now_idle(self, connection: socket.socket) -> None:
        """Records that a connection waits for its next request."""
        with self._lock:
            self._idle[connection] = None

    def now_busy(self, connection: socket.socket) -> None:
        """Records that a request has begun to arrive, or that the connection ends."""
        with self._lock:
            self._idle.pop(connection, None)

    def _wait_for_room(self) -> None:
        """Returns when there is room for one more connection. If all places are taken, the longest
        idle connection ends; while none is idle, new clients wait in the kernel."""
        with self._left:
            while len(self._open) >= self.limits.connections_max and not self._ended.is_set():
                if self._idle:
                    oldest = next(iter(self._idle))
                    del self._idle[oldest]
                    with suppress(OSError):
                        oldest.shutdown(socket.SHUT_RD)
                self._left.wait()

    def _accept(self) -> None:
        self._listener.settimeout(0)
        while not self._ended.is_set():
            ready, _, _ = select.select([self._listener, self._sleeps], [], [])
            if self._sleeps in ready:
                break
            self._wait_for_room()
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if not isinstance(error, BlockingIOError):
                    _log.warning("accept: %s", error)
                    self._ended.wait(_ACCEPT_PAUSE_S)
                continue
            self._take(connection)
        self._sleeps.close()

    def _take(self, connection: socket.socket) -> None:
        thread = threading.Thread(
            target=self._serve, args=(connection,), name="lodefs-connection", daemon=True
        )
        with self._lock:
            self._open[connection] = thread
            self._idle[connection] = None
        try:
            thread.start()
        except RuntimeError as error:
            _log.warning("a connection was refused: %s", error)
            _refuse(connection, str(error))
            self._finish(connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            _Connection(connection, "", self)  # type: ignore[arg-type] # the constructor does all the work
        except OSError as error:
            _log.debug("a connection broke: %s", error)
        except Exception:  # noqa: BLE001 - a bug must not end the server
            _log.exception("a connection")
        finally:
            self._finish(connection)

    def _finish(self, connection: socket.socket) -> None:
        with self._left:
            self._open.pop(connection, None)
            self._idle.pop(connection, None)
            self._left.notify_all()
        connection.close()


class _Connection(http.server.BaseHTTPRequestHandler):
    """Requests of one connection, one after the other.

    A client that ends without reading an answer is noticed: while the answer is sent (EPIPE), or
    after that (ECONNRESET, which unix(7) reports for unread data). If a client only stops sending,
    it may still read. Then the server waits a short time until it has read, or goes.
    """

    protocol_version = "HTTP/1.1"
    server_version = "lodefs"
    sys_version = ""
    wbufsize = _PIECE_BYTES
    unheard: Callable[[], None] | None = None  # callback of the last reply
    server: Server  # type: ignore[assignment]
    rfile: io.BufferedReader
    headers: Message[str, str]

    def handle(self) -> None:
        """Answers until the client, a limit or the end of the server ends the connection."""
        self.close_connection = False
        self.unheard = None
        is_heard = False
        try:
            self._answer_requests()
            is_heard = self._is_heard()
        finally:
            if not is_heard:
                self._has_gone()

    def _answer_requests(self) -> None:
        limits = self.server.limits
        while not self.close_connection and not self.server.is_ending():
            self.connection.settimeout(limits.idle_timeout_s)
            self.server.now_idle(self.connection)
            try:
                is_more = self.rfile.peek(1)
            except TimeoutError:
                return
            finally:
                self.server.now_busy(self.connection)
            if not is_more:
                return
            self.unheard = None
            self.connection.settimeout(limits.request_timeout_s)
            with self.server.watchdog.watch() as transfer:
                transfer.cancel_by(self._stop_reading)
                self.handle_one_request()

    def _is_heard(self) -> bool:
        """Whether the client has read all that it must not miss."""
        return self.unheard is None or _was_read(self.connection)

    def _has_gone(self) -> None:
        """Handles a client that ended without reading everything."""
        if self.unheard is not None:
            self.unheard()

    def do_POST(self) -> None:
        """Answers one call."""
        size_bytes = self._body_bytes()
        if size_bytes is None:
            return
        body = self.rfile.read(size_bytes)
        if len(body) < size_bytes:
            self.send_error(408, "the request's body ended early, or took too long")
        elif not self._type_is_json():
            self._send(415, encode_error("the request's content type is not JSON"))
        else:
            reply = self.server.answer(self.path, body)
            self.unheard = reply.unheard
            self._send(reply.status, reply.body)

    def handle_expect_100(self) -> bool:
        """Asks for a body only if it will be read."""
        if self._body_bytes() is None:
            return False
        self.send_response_only(100)
        self.end_headers()
        self.wfile.flush()
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Sends an error as JSON and ends the connection: the next request's start is unknown."""
        code = 405 if code == 501 else code
        self.close_connection = True
        self.request_version = self.protocol_version  # also for a malformed request line
        self._send(code, encode_error(_TEXTS.get(code) or message or self.responses[code][0]))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Logs nothing: requests are logged where they are answered."""

    def _body_bytes(self) -> int | None:
        """Returns the length of the body; None if it was refused."""
        if "Transfer-Encoding" in self.headers:
            self.send_error(411, "the request's body needs a Content-Length")
            return None
        lengths = set(self.headers.get_all("Content-Length", ["0"]))
        text = lengths.pop()
        if lengths or not (text.isascii() and text.isdigit() and len(text) < 20):
            self.send_error(400, "the request's Content-Length is not a number")
            return None
        limit = self.server.limits.body_bytes_max
        if int(text) > limit:
            self.send_error(413, f"the request's body has more than {limit} bytes")
            self._drain(int(text))
            return None
        return int(text)

    def _type_is_json(self) -> bool:
        """Whether the body is JSON; dockerd sends no type, but other clients may."""
        given = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        kind, _, name = given.partition("/")
        return not given or (kind == "application" and (name == "json" or name.endswith("+json")))

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection or self.server.is_ending():
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _drain(self, size_bytes: int) -> None:
        """Discards a body piece by piece, within the request's time."""
        left = min(size_bytes, _DRAIN_BYTES_MAX)
        with suppress(OSError):
            while left > 0 and (piece := self.rfile.read1(min(left, _PIECE_BYTES))):
                left -= len(piece)

    def _stop_reading(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RD)


def _was_read(connection: socket.socket) -> bool:
    """Ends the answer. Returns whether the client reads all of it in time.

    SIOCOUTQ of a Unix socket counts unread bytes of the other side. A close discards them, and
    leaves ECONNRESET before it does (unix_release_sock in Linux' net/unix/af_unix.c).
    """
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)  # so that the client need not wait for the end
    ends_s, pause = time.monotonic() + _READ_TIMEOUT_S, threading.Event()
    while struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, b"\0" * 4))[0]:
        if time.monotonic() >= ends_s:
            return False
        pause.wait(_READ_PAUSE_S)
    return not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def _refuse(connection: socket.socket, why: str) -> None:
    body = encode_error(f"{why}; try again")
    head = (
        f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: {CONTENT_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with suppress(OSError):
        connection.settimeout(0)
        connection.send(head.encode() + body)
