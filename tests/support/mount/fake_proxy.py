"""A proxy that serves a DictTree over a Unix socket or TCP, as chunkstore/protocol/wire.py says it.

One thread per connection. What it does wrong can be set, so that clients can be tested against it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from threading import Lock, Thread
from types import TracebackType
from urllib.parse import unquote_to_bytes

import msgspec

from lodefs.chunkstore.errors import Denied, LodefsError, NotFound
from lodefs.chunkstore.protocol import cache_control, wire
from lodefs.chunkstore.protocol.cache_control import WarmRequest
from tests.support.mount.dict_tree import DictTree

Reply = tuple[int, bytes, bytes]  # status, headers, body
# What happens to a request: given its path, a finished answer, or None for the usual one.
Hook = Callable[[str], bytes | None]

SEND_BUFFER_BYTES = 1 << 20


class HangUpError(Exception):
    """Raised by a hook: the connection is closed without an answer."""


class FakeProxy:
    """Serves from entering to leaving the context; ``start`` and ``stop`` in between restart it."""

    def __init__(self, tree: DictTree, folder: Path | None = None, *, token: str = "") -> None:
        self.tree = tree
        self.hook: Hook = lambda _path: None
        self.hang_up_after_hook = False
        self.cache: wire.CachePlace | None = None  # what it says of where its cache lies
        self.used: list[int] = []  # numbers of files of the cache, as they were reported
        self.pins: dict[tuple[str, str], WarmRequest] = {}  # by commit and path
        self.origin: wire.Origin | None = None  # where it says that bytes came from
        self.requests = 0
        self.connections = 0
        self.path = str(folder / "proxy.sock") if folder is not None else ""
        self._port = 0
        self.token = token
        self.other_token = ""  # is right too
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._threads: list[Thread] = []
        self._lock = Lock()

    @property
    def address(self) -> str:
        """As a mount's option ``proxy`` has it."""
        return f"unix:{self.path}" if self.path else f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> FakeProxy:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, at the same place as before."""
        if self.path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(self.path)
        else:
            listener = socket.socket(socket.AF_INET)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", self._port))
            self._port = listener.getsockname()[1]
        listener.listen(128)
        self._listener = listener
        self._spawn(self._accept, listener)

    def stop(self) -> None:
        """Close everything at once, as a killed proxy does."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        if self.path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
        for thread in self._threads:
            while thread.is_alive():
                self._cut()  # again: one may have been accepted meanwhile
                thread.join(0.1)
        self._threads.clear()

    def _cut(self) -> None:
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _spawn(self, run: Callable[[socket.socket], None], sock: socket.socket) -> None:
        thread = Thread(target=run, args=(sock,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                with self._lock:
                    self._open.add(sock)
                    self.connections += 1
                self._spawn(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        pending = b""
        try:
            while True:
                while b"\r\n\r\n" not in pending:
                    part = sock.recv(65536)
                    if not part:
                        return
                    pending += part
                head, _, pending = pending.partition(b"\r\n\r\n")
                length = int(head.partition(b"\r\nContent-Length: ")[2].split(b"\r\n")[0] or 0)
                while len(pending) < length:
                    part = sock.recv(65536)
                    if not part:
                        return
                    pending += part
                body, pending = pending[:length], pending[length:]
                self.requests += 1
                self._answer(sock, head, body)
        except (OSError, HangUpError):
            pass
        finally:
            with self._lock:
                self._open.discard(sock)
            sock.close()

    def _answer(self, sock: socket.socket, head: bytes, sent: bytes) -> None:
        path = head.split(b" ", 2)[1].decode()
        made = self.hook(path)
        if made is not None:
            sock.sendall(made)
            if self.hang_up_after_hook:
                raise HangUpError
            return
        try:
            status, headers, body = self._route(path, head, sent)
        except LodefsError as error:
            status = 404 if isinstance(error, NotFound) else 500
            status, headers, body = failure(status, error)
        known = f"{wire.COMMIT_HEADER}: {self.tree.snapshot.commit}\r\n".encode()
        sock.sendmsg([http(status, headers + known, len(body)), body])

    def _route(self, path: str, head: bytes, sent: bytes) -> Reply:
        told = head + b"\r\n"
        right = [f"\r\nAuthorization: Bearer {one}\r\n" for one in (self.token, self.other_token)]
        if self.token and not any(line.encode() in told for line in right):
            return failure(401, Denied("no"))
        if path == wire.CACHE and self.cache is not None:
            return packed(self.cache)
        if path == wire.CACHE_USED:
            self.used += msgspec.msgpack.decode(sent, type=wire.UsageReport).numbers
            return 204, b"", b""
        if path in (cache_control.WARM, cache_control.EVICT):
            return self._keep(path, sent)
        where, _, query_text = path.partition("?")
        snapshot = self.tree.snapshot
        if where.startswith(wire.SNAPSHOTS):
            repo, rev, _ = wire.split_target(where.removeprefix(wire.SNAPSHOTS))
            if repo != snapshot.repo or rev not in ("main", snapshot.commit):
                raise NotFound(f"no snapshot {repo}@{rev}")
            return packed(snapshot)
        if not where.startswith(wire.NODES):
            raise NotFound(f"no path {where}")
        repo, commit, rest = wire.split_target(where.removeprefix(wire.NODES))
        if (repo, commit) != (snapshot.repo, snapshot.commit):
            raise NotFound(f"no snapshot {repo}@{commit}")
        number, _, what = rest.decode().partition("/")
        query = {
            key: unquote_to_bytes(value)
            for key, _, value in (part.partition("=") for part in query_text.split("&"))
        }
        return self._node(int(number), what, query, head)

    def _keep(self, path: str, sent: bytes) -> Reply:
        """Pins are put down, and taken away; data neither comes nor goes."""
        snapshot = self.tree.snapshot
        if path == cache_control.EVICT:
            evict = msgspec.json.decode(sent, type=cache_control.EvictRequest)
            self.pins.pop((str(evict.rev), evict.path), None)
            view = cache_control.EvictView([], 0, 0, 0, 0, 0, [], dry_run=False)
            return 200, b"", msgspec.json.encode(view)
        warm = msgspec.json.decode(sent, type=cache_control.WarmRequest)
        if (warm.repo, warm.rev) != (snapshot.repo, snapshot.commit):
            raise NotFound(f"no snapshot {warm.repo}@{warm.rev}")
        self.pins[warm.rev, "".join(warm.paths)] = warm
        status = cache_control.WarmStatus(
            "1", warm.repo, warm.rev, "listing", 0, None, 0, None, 0, 0.0, None, 0.0, None, [], 0
        )
        return 202, b"", msgspec.json.encode(status)

    def _node(self, ino: int, what: str, query: dict[str, bytes], head: bytes) -> Reply:
        if what == wire.LOOKUP:
            return packed(self.tree.lookup(ino, query["name"]))
        if what == wire.CHILDREN:
            return packed(self.tree.children(ino, query["after"], int(query["limit"])))
        if what == wire.DATA:
            return self._data(ino, head)
        return packed(self.tree.node(ino))

    def _data(self, ino: int, head: bytes) -> Reply:
        span = head.partition(b"\r\nRange: bytes=")[2].partition(b"\r\n")[0]
        first, last = map(int, span.split(b"-"))
        whole = self.tree.node(ino).size_bytes
        if first >= whole:
            return 416, b"Content-Range: bytes */%d\r\n" % whole, b""
        body = self.tree.read(ino, first, last - first + 1)
        origin = f"{wire.ORIGIN_HEADER}: {self.origin}\r\n".encode() if self.origin else b""
        return (
            206,
            origin + b"Content-Range: bytes %d-%d/%d\r\n" % (first, first + len(body) - 1, whole),
            body,
        )


def http(status: int, headers: bytes, length: int) -> bytes:
    """The head of an answer."""
    return b"HTTP/1.1 %d X\r\n%bContent-Length: %d\r\n\r\n" % (status, headers, length)


def packed(value: msgspec.Struct) -> Reply:
    """An answer with a structure."""
    return 200, f"Content-Type: {wire.MSGPACK}\r\n".encode(), msgspec.msgpack.encode(value)


def failure(status: int, error: LodefsError) -> Reply:
    """An answer that says what went wrong."""
    return status, b"", msgspec.json.encode(wire.Failure(type(error).__name__, str(error)))
