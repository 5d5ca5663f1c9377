"""A Unix socket between dockerd and a plugin that passes calls on and writes down each of them."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from threading import Lock, Thread
from time import perf_counter
from typing import Any, ClassVar

ANSWER_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a plugin. ``answer`` None: the plugin could not be reached, or hung up."""

    method: str  # as VolumeDriver.Mount
    asked: dict[str, Any]
    answer: dict[str, Any] | None
    took_s: float

    @property
    def error(self) -> str:
        """What the plugin said against it, or nothing."""
        return "no answer" if self.answer is None else str(self.answer.get("Err") or "")


@dataclass(slots=True)
class Calls:
    """All calls so far, in the order in which they were answered."""

    seen: list[Call] = field(default_factory=list)

    def methods(self) -> list[str]:
        """Their names, without what all have in front."""
        return [call.method.rpartition(".")[2] for call in self.seen]

    def took_s(self) -> dict[str, list[float]]:
        """Seconds from request to answer, by method; only what was answered."""
        times: dict[str, list[float]] = {}
        for call in self.seen:
            if call.answer is not None:
                times.setdefault(call.method.rpartition(".")[2], []).append(call.took_s)
        return times


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection to a Unix socket."""

    def __init__(self, path: Path, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        super().__init__("plugin", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connects to the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@contextmanager
def relayed(own: Path, plugin: Path) -> Iterator[Calls]:
    """A socket ``own`` whose calls ``plugin``'s socket answers, and what was seen of them."""
    calls, lock = Calls(), Lock()

    class Handler(_Handler):
        target = plugin

        def seen(self, call: Call) -> None:
            with lock:
                calls.seen.append(call)

    with _Server(str(own), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield calls
        finally:
            server.shutdown()
            thread.join()
            own.unlink(missing_ok=True)


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    block_on_close = False  # dockerd keeps its connections open
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller that hangs up is no concern of ours."""


class _Handler(BaseHTTPRequestHandler):
    target: ClassVar[Path]
    protocol_version = "HTTP/1.1"

    def seen(self, call: Call) -> None:
        """Writes a call down."""
        raise NotImplementedError

    def do_POST(self) -> None:
        """Passes one call on. Where the plugin gives no answer the caller gets none either."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        begin = perf_counter()
        answer = self._answer_of_plugin(body)
        took_s = perf_counter() - begin
        raw = answer[2] if answer else b""
        self.seen(Call(self.path[1:], _json(body), _json(raw) if answer else None, took_s))
        if answer is None:
            self.close_connection = True
            return
        status, kind, raw = answer
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _answer_of_plugin(self, body: bytes) -> tuple[int, str, bytes] | None:
        headers = {name: self.headers[name] for name in ("Accept", "Content-Type")
                   if self.headers[name]}  # fmt: skip
        connection = UnixConnection(self.target)
        with suppress(OSError, http.client.HTTPException):
            try:
                connection.request("POST", self.path, body, headers)
                got = connection.getresponse()
                return got.status, got.headers.get("Content-Type", ""), got.read()
            finally:
                connection.close()
        return None

    def address_string(self) -> str:
        """Callers on Unix sockets have no address."""
        return "docker"

    def log_message(self, *_: object) -> None:
        """What is called is written down by ``seen``."""


def _json(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw or b"{}")
    except ValueError:
        return {"Err": f"not JSON: {raw[:200]!r}"}
    return found if isinstance(found, dict) else {}
