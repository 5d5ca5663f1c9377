"""A small HTTP server on a raw socket that answers as told: with errors, slowly, half, never."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

HOST = "127.0.0.1"
TIMEOUT_S = 60.0  # of a connection on which nothing comes; no thread outlives it
_TRICKLE_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came; header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server does with a request."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    sent_bytes: int | None = None  # None: all of the body; else it closes after so many
    trickles: bool = False  # the body comes byte by byte, over and over, and never ends
    trickles_head: bool = False  # so does the head: a header line without end
    cuts_head: bool = False  # it closes after its first header lines, Content-Length not among them
    lacks_length: bool = False  # the head has no Content-Length
    hangs: bool = False  # no byte comes


class BadServer:
    """Answers every request with what ``script`` says. A context manager; threads end with it."""

    def __init__(
        self, script: Callable[[Request], Answer], *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.script = script
        self.requests: list[Request] = []
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.endpoint_url = f"{'https' if tls else 'http'}://{HOST}:{self.port}"
        self._tls = tls
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._connections: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> BadServer:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(TIMEOUT_S)
        self.hang_up()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        for connection in self._connections:
            connection.close()

    @property
    def connections(self) -> int:
        """The number of connections so far."""
        return len(self._threads)

    def hang_up(self) -> None:
        """Ends all connections, of which none may be in use."""
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            connection.settimeout(TIMEOUT_S)
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, plain: socket.socket) -> None:
        with suppress(OSError), self._secured(plain) as connection:
            self._connections.append(connection)
            reader = connection.makefile("rb")
            while (request := _read_request(reader.readline, reader.read, connection)) is not None:
                self.requests.append(request)
                if not self._send(connection, request, self.script(request)):
                    break
            connection.shutdown(socket.SHUT_RDWR)

    def _secured(self, plain: socket.socket) -> socket.socket:
        if self._tls is None:
            return plain
        return self._tls.wrap_socket(plain, server_side=True)

    def _send(self, connection: socket.socket, request: Request, answer: Answer) -> bool:
        """Whether the connection can be used on."""
        if answer.hangs:
            self._closing.wait(TIMEOUT_S)
            return False
        if answer.cuts_head:
            connection.sendall(f'HTTP/1.1 {answer.status} Cut\r\nETag: "1"\r\n'.encode())
            return False
        headers = {"Content-Length": str(len(answer.body)), "ETag": '"1"', **answer.headers}
        if "Transfer-Encoding" in headers or answer.lacks_length:
            del headers["Content-Length"]
        lines = [f"HTTP/1.1 {answer.status} Scripted"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join(lines).encode("latin-1")
        if answer.trickles_head:
            connection.sendall(head + b"\r\nX-Endless: ")
            return self._trickle(connection)
        connection.sendall(head + b"\r\n\r\n")
        if answer.trickles:
            return self._trickle(connection)
        if request.method != "HEAD":
            connection.sendall(answer.body[: answer.sent_bytes])
        return answer.sent_bytes is None

    def _trickle(self, connection: socket.socket) -> bool:
        while not self._closing.wait(_TRICKLE_PAUSE_S):
            connection.sendall(b"x")
        return False


def _read_request(
    readline: Callable[[], bytes], read: Callable[[int], bytes], connection: socket.socket
) -> Request | None:
    """The next request; None at the end of the connection."""
    first = readline().split()
    if len(first) != 3:
        return None
    headers: dict[str, str] = {}
    while (line := readline().strip()) != b"":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.get("expect") == "100-continue":
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = read(int(headers.get("content-length", "0")))
    return Request(first[0].decode(), first[1].decode(), headers, body)
