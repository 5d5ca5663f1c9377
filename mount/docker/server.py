"""HTTP/1.1 on a Unix socket, as dockerd speaks it: POST, small bodies, connections that stay.

dockerd sends no content type, and reads ``Err`` of any answer. It repeats a call for 30 seconds
when a connection fails, so one is closed only when it was idle for long, or at the end.
"""

from __future__ import annotations

import http.server
import io
import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from email.message import Message
from typing import Any, NamedTuple

from chunkstore.deadlines import Watchdog
from mount.docker.protocol import encode_error

CONTENT_TYPE = "application/vnd.docker.plugins.v1.2+json"
_DRAIN_BYTES_MAX = 256 << 20  # of a body that is too large, so that its sender reads the answer
_PIECE_BYTES = 64 << 10
_ACCEPT_PAUSE_S = 0.5  # after an error
_TEXTS = {405: "the plugin answers to POST only"}
_log = logging.getLogger("lodefs.docker")

Answer = Callable[[str, bytes], tuple[int, bytes]]
"""(path of the method, body) -> (HTTP status, JSON). Never raises."""


class Limits(NamedTuple):
    """Of one server. ``request_timeout_s``: from a request's first byte to its last."""

    body_bytes_max: int = 1 << 20
    request_timeout_s: float = 10.0
    idle_timeout_s: float = 3600.0
    connections_max: int = 128


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
        self._ended = threading.Event()
        self._wakes, self._sleeps = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, name="lodefs-accept", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Accept no more, and let what is asked already be answered."""
        self._ended.set()
        self._wakes.close()
        self._thread.join(timeout_s)
        with self._lock:
            left = list(self._open.items())
        for connection, _ in left:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RD)  # whoever reads sees the end
        ends_s = time.monotonic() + timeout_s
        for _, thread in left:
            thread.join(max(0.0, ends_s - time.monotonic()))
        self.watchdog.close()

    def is_ending(self) -> bool:
        """Whether connections should end after the request that they are at."""
        return self._ended.is_set()

    def _accept(self) -> None:
        self._listener.settimeout(0)
        while not self._ended.is_set():
            ready, _, _ = select.select([self._listener, self._sleeps], [], [])
            if self._sleeps in ready:
                break
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
            full = len(self._open) >= self.limits.connections_max
            if not full:
                self._open[connection] = thread
        try:
            if full:
                raise RuntimeError(f"{self.limits.connections_max} connections are open")
            thread.start()
        except RuntimeError as error:
            _log.warning("a connection was refused: %s", error)
            _refuse(connection, str(error))
            self._forget(connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            _Connection(connection, "", self)  # type: ignore[arg-type] # does all of it
        except OSError as error:
            _log.debug("a connection broke: %s", error)
        except Exception:  # noqa: BLE001 - a mistake of ours must not end the server
            _log.exception("a connection")
        finally:
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.pop(connection, None)
        connection.close()


class _Connection(http.server.BaseHTTPRequestHandler):
    """Requests of one connection, one after the other."""

    protocol_version = "HTTP/1.1"
    server_version = "lodefs"
    sys_version = ""
    wbufsize = _PIECE_BYTES
    server: Server  # type: ignore[assignment]
    rfile: io.BufferedReader
    headers: Message[str, str]

    def handle(self) -> None:
        """Answer until the other side, a limit or the server's end ends it."""
        limits = self.server.limits
        self.close_connection = False
        while not self.close_connection and not self.server.is_ending():
            self.connection.settimeout(limits.idle_timeout_s)
            if not self.rfile.peek(1):
                return
            self.connection.settimeout(limits.request_timeout_s)
            with self.server.watchdog.watch() as transfer:
                transfer.cancel_by(self._stop_reading)
                self.handle_one_request()

    def do_POST(self) -> None:
        """One call."""
        size_bytes = self._body_bytes()
        if size_bytes is None:
            return
        body = self.rfile.read(size_bytes)
        if len(body) < size_bytes:
            self.send_error(408, "the request's body ended early, or took too long")
        elif not self._type_is_json():
            self._send(415, encode_error("the request's content type is not JSON"))
        else:
            self._send(*self.server.answer(self.path, body))

    def handle_expect_100(self) -> bool:
        """Ask for a body only when it will be read."""
        if self._body_bytes() is None:
            return False
        self.send_response_only(100)
        self.end_headers()
        self.wfile.flush()
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """An error as JSON; the connection ends, since nobody knows where a next request begins."""
        code = 405 if code == 501 else code
        self.close_connection = True
        self.request_version = self.protocol_version  # also of a line that was none
        self._send(code, encode_error(_TEXTS.get(code) or message or self.responses[code][0]))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: requests are logged where they are answered."""

    def _body_bytes(self) -> int | None:
        """How long the body is; None where that was refused."""
        if "Transfer-Encoding" in self.headers:
            self.send_error(411, "the request's body needs a Content-Length")
            return None
        lengths = set(self.headers.get_all("Content-Length", ["0"]))
        text = lengths.pop()
        if lengths or not (text.isascii() and text.isdigit() and len(text) < 20):
            self.send_error(400, "the request's Content-Length is no number")
            return None
        limit = self.server.limits.body_bytes_max
        if int(text) > limit:
            self.send_error(413, f"the request's body has more than {limit} bytes")
            self._drain(int(text))
            return None
        return int(text)

    def _type_is_json(self) -> bool:
        """dockerd does not say it; others may."""
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
        """Throw a body away piece by piece, within the request's time."""
        left = min(size_bytes, _DRAIN_BYTES_MAX)
        with suppress(OSError):
            while left > 0 and (piece := self.rfile.read1(min(left, _PIECE_BYTES))):
                left -= len(piece)

    def _stop_reading(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RD)


def _refuse(connection: socket.socket, why: str) -> None:
    body = encode_error(f"{why}; try again")
    head = (
        f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: {CONTENT_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with suppress(OSError):
        connection.settimeout(0)
        connection.send(head.encode() + body)
