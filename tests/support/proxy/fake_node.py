"""A node without store or cache, and a running proxy, for tests of everything that speaks HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from lodefs.chunkstore.errors import InvalidInput, NotADirectory, NotFound
from lodefs.chunkstore.format.commit import LARGE_SIZE_BYTES_MIN
from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.nodecache.name_rows import EntryRow
from lodefs.chunkstore.protocol.wire import CachePlace, Origin, Page, Snapshot, UsageReport
from lodefs.chunkstore.protocol.wire import Entry as Entry
from lodefs.chunkstore.system.sockets import listen_tcp, listen_unix
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.http.admission import ClientLimits
from lodefs.proxy.http.door_tls import DoorTls
from lodefs.proxy.http.endpoint import Endpoint
from lodefs.proxy.http.local_readers import LocalReaders
from lodefs.proxy.http.server import ProxyServer
from lodefs.proxy.http.tokens import TokenBook
from lodefs.proxy.metrics.counters import Counts
from lodefs.proxy.metrics.server_metrics import MetricInputs
from lodefs.proxy.node import (
    CacheControl,
    Catalog,
    Extent,
    GitImports,
    LfsWriter,
    Located,
    NamePage,
    NodeService,
    SnapshotFile,
    Upstream,
)
from lodefs.proxy.s3.buckets import S3Settings
from tests.support.proxy.memory_catalog import MemoryCatalog

T = TypeVar("T")

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0
COMMIT_TIME_S = 1_700_000_000


@dataclass(frozen=True, slots=True)
class Symlink:
    """A symlink in the files of a DictNode."""

    target: bytes


@dataclass(frozen=True, slots=True)
class Executable:
    """An executable file in the files of a DictNode."""

    content: bytes


Content = bytes | Executable | Symlink


def _content_id(content: bytes) -> bytes:
    return digest_of(b"content id of " + content)


class GeneratedStream:
    """proxy.node.ByteStream over a generator."""

    def __init__(self, pieces: AsyncGenerator[Buffer, None]) -> None:
        self._pieces = pieces
        self.first: Buffer = b""
        self.origin: Origin | None = None

    def __aiter__(self) -> GeneratedStream:
        return self

    async def __anext__(self) -> Buffer:
        return await anext(self._pieces)

    async def aclose(self) -> None:
        """See proxy.node.ByteStream."""
        await self._pieces.aclose()


def name_page(names: Iterable[str], end: str, prefix: bytes, start: bytes) -> NamePage:
    """A page of names as of proxy.node.Names: one at a time."""
    keys = sorted(f"{name}{end}".encode() for name in names if name.encode().startswith(prefix))
    found = [key for key in keys if key >= start or start.startswith(key)]
    return NamePage([key[:-1].decode() for key in found[:1]], found[1] if found[1:] else None)


class DictNode:
    """proxy.node.Node, its names and its files, over a dictionary: path -> content, all of one
    commit of one repository.

    A path that ends with '/' is an empty directory. With ``extents``, files lie in memory files
    too and ``hit`` finds them until ``close``; without, nothing is ever a hit. ``failures``
    maps a path to how many good bytes reading it gives, and the error that it raises then.
    """

    def __init__(
        self,
        files: Mapping[bytes, Content],
        *,
        repo: str = "demo",
        branches: Sequence[str] = ("main",),
        extents: bool = False,
        piece_size_bytes: int = 65536,
    ) -> None:
        self._repo = repo
        self._branches = set(branches)
        self._piece_size_bytes = piece_size_bytes
        self._entries: dict[bytes, Entry] = {}
        self._contents: dict[int, bytes] = {}
        self._paths: dict[int, bytes] = {}
        self._children: dict[int, dict[bytes, Entry]] = {}
        self.failures: dict[bytes, tuple[int, Exception]] = {}
        self.reads = 0
        self.hits = 0
        self.counts = Counts()
        self.figures: dict[str, object] = {}
        self.place: CachePlace | None = None
        self.reports: list[UsageReport] = []
        self.cache_control: CacheControl | None = None
        self.upstream: Upstream | None = None
        self.lfs: LfsWriter | None = None
        self.git: GitImports | None = None
        self._add(b"", ROOT_INO, ROOT_INO, Kind.DIRECTORY, b"")
        for path in sorted(files):
            self._add_path(path, files[path])
        self.commit = digest_of(repr(sorted(self._entries.items())).encode()).hex()
        self._fds = self._write_out() if extents else {}
        self._snapshot = self._describe()
        self.catalog: Catalog = MemoryCatalog(self._snapshot, self._branches)

    def close(self) -> None:
        """Close the memory files, if there are some."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}

    def _add_path(self, path: bytes, content: Content) -> None:
        names = path.rstrip(b"/").split(b"/")
        parent = ROOT_INO
        for depth, name in enumerate(names, 1):
            here = b"/".join(names[:depth])
            ino = child_ino(parent, name)
            if depth < len(names) or path.endswith(b"/"):
                if here not in self._entries:
                    self._add(here, ino, parent, Kind.DIRECTORY, b"")
            elif isinstance(content, Symlink):
                self._add(here, ino, parent, Kind.SYMLINK, content.target)
            elif isinstance(content, Executable):
                self._add(here, ino, parent, Kind.FILE, content.content, executable=True)
            else:
                self._add(here, ino, parent, Kind.FILE, content)
            parent = ino

    def _add(
        self,
        path: bytes,
        ino: int,
        parent: int,
        kind: Kind,
        content: bytes,
        *,
        executable: bool = False,
    ) -> None:
        name = path.rpartition(b"/")[2]
        entry = Entry(
            ino=ino,
            parent=parent,
            name=name,
            kind=kind,
            executable=executable,
            size_bytes=len(content),
            digest=digest_of(content),
            target=content if kind == Kind.SYMLINK else b"",
        )
        self._entries[path] = entry
        self._paths[ino] = path
        if kind == Kind.DIRECTORY:
            self._children[ino] = {}
        else:
            self._contents[ino] = content
        if ino != ROOT_INO:
            self._children[parent][name] = entry

    def _write_out(self) -> dict[bytes, int]:
        fds: dict[bytes, int] = {}
        for ino, content in self._contents.items():
            fd = fds[_content_id(content)] = os.memfd_create(f"{ino:x}")
            os.pwrite(fd, content, 0)
        return fds

    def _describe(self) -> Snapshot:
        entries = self._entries.values()
        return Snapshot(
            repo=self._repo,
            commit=self.commit,
            root=self._entries[b""],
            time_s=COMMIT_TIME_S,
            files=sum(one.kind == Kind.FILE for one in entries),
            directories=sum(one.kind == Kind.DIRECTORY for one in entries),
            size_bytes=sum(one.size_bytes for one in entries if one.kind == Kind.FILE),
            large_size_bytes=sum(
                one.size_bytes
                for one in entries
                if one.kind == Kind.FILE and one.size_bytes >= LARGE_SIZE_BYTES_MIN
            ),
        )

    @property
    def names(self) -> DictNode:
        """See proxy.node.Node."""
        return self

    @property
    def files(self) -> DictNode:
        """See proxy.node.Node."""
        return self

    async def snapshot(self, repo: str, rev: str) -> Snapshot:
        """See proxy.node.Node."""
        if repo != self._repo:
            raise NotFound(f"there is no repository {repo!r}")
        if rev not in self._branches and not (len(rev) >= 6 and self.commit.startswith(rev)):
            raise NotFound(f"{repo} has no revision {rev!r}")
        return self._snapshot

    async def entry(self, snapshot: Snapshot, path: bytes) -> Entry:
        """See proxy.node.Node."""
        found = self._entries.get(path)
        if found is not None:
            return found
        above = path.rpartition(b"/")[0]
        if path and (await self.entry(snapshot, above)).kind != Kind.DIRECTORY:
            raise NotADirectory(f"{above!r} is not a directory")
        raise NotFound(f"there is no {path!r}")

    async def by_ino(self, snapshot: Snapshot, ino: int) -> Entry:
        """See proxy.node.Node."""
        if ino not in self._paths:
            raise NotFound(f"there is no inode {ino}")
        return self._entries[self._paths[ino]]

    async def lookup(self, snapshot: Snapshot, parent: int, name: bytes) -> Entry:
        """See proxy.node.Node."""
        found = (await self._directory(snapshot, parent)).get(name)
        if found is None:
            raise NotFound(f"there is no {name!r}")
        return found

    async def _directory(self, snapshot: Snapshot, ino: int) -> dict[bytes, Entry]:
        await self.by_ino(snapshot, ino)
        if ino not in self._children:
            raise NotADirectory(f"inode {ino} is not a directory")
        return self._children[ino]

    async def children(
        self, snapshot: Snapshot, ino: int, *, after: bytes = b"", limit: int
    ) -> Page:
        """See proxy.node.Node."""
        found = await self._directory(snapshot, ino)
        names = [name for name in sorted(found) if name > after]
        return Page([found[name] for name in names[:limit]], more=len(names) > limit)

    async def tree(self, snapshot: Snapshot, ino: int) -> bytes:
        """See proxy.node.Names."""
        return b"\0".join(sorted(await self._directory(snapshot, ino)))

    async def content_ids(self, snapshot: Snapshot, inos: Sequence[int]) -> list[bytes]:
        """See proxy.node.Names."""
        return [_content_id(self._contents[ino]) for ino in inos]

    async def met(self) -> list[Snapshot]:
        """See proxy.node.Names."""
        return [self._snapshot]

    async def repos(self, prefix: bytes, start: bytes) -> NamePage:
        """See proxy.node.Names."""
        return name_page([self._repo], "@", prefix, start)

    async def revisions(self, repo: str, start: bytes) -> NamePage:
        """See proxy.node.Names."""
        return name_page(self._branches if repo == self._repo else (), "/", b"", start)

    async def file(self, snapshot: Snapshot, path: bytes) -> Entry | SnapshotFile:
        """See proxy.node.Names."""
        return self._file(snapshot, await self.entry(snapshot, path))

    async def file_by_ino(self, snapshot: Snapshot, ino: int) -> Entry | SnapshotFile:
        """See proxy.node.Names."""
        return self._file(snapshot, await self.by_ino(snapshot, ino))

    def _file(self, snapshot: Snapshot, entry: Entry) -> Entry | SnapshotFile:
        if entry.kind != Kind.FILE:
            return entry
        size_bytes, digest = entry.size_bytes, entry.digest
        row = EntryRow(
            entry.parent, entry.name, entry.kind, entry.executable, size_bytes, digest, b"", b""
        )
        return SnapshotFile(snapshot, entry, _content_id(self._contents[entry.ino]), row)

    async def open(self, file: SnapshotFile, first: int, size_bytes: int) -> GeneratedStream:
        """See proxy.node.Files."""
        stream = GeneratedStream(self.read(file, first, size_bytes))
        if size_bytes:
            stream.first = await anext(stream)
        return stream

    async def locate(
        self, file: SnapshotFile, first: int, size_bytes: int
    ) -> Located | GeneratedStream:
        """See proxy.node.Files: it has no cache."""
        return await self.open(file, first, size_bytes)

    async def read(
        self, file: SnapshotFile, first: int, size_bytes: int
    ) -> AsyncGenerator[Buffer, None]:
        """The pieces of a range."""
        entry = file.entry
        self.reads += 1
        if not 0 <= first <= first + size_bytes <= entry.size_bytes:
            raise InvalidInput(f"[{first}, {first + size_bytes}) is not within the file")
        good_bytes, failure = self.failures.get(self._paths[entry.ino], (0, None))
        content = self._contents[entry.ino]
        end = first + size_bytes
        for start in range(first, end, self._piece_size_bytes):
            stop = min(end, start + self._piece_size_bytes)
            if failure is not None and stop > good_bytes:
                raise failure
            yield content[start:stop]
            await asyncio.sleep(0)

    def hit(self, content_id: bytes, first: int, size_bytes: int) -> Extent | None:
        """See proxy.node.Node."""
        fd = self._fds.get(content_id)
        if fd is None:
            return None
        self.hits += 1
        return Extent(fd, first, size_bytes)

    def cache_place(self) -> CachePlace | None:
        """See proxy.node.Node."""
        return self.place

    async def used(self, report: UsageReport) -> None:
        """See proxy.node.Node."""
        self.reports.append(report)

    async def look(self) -> None:
        """See proxy.node.Node."""

    def status(self) -> dict[str, object]:
        """See proxy.node.Node."""
        return {"store": "memory:", "reads": self.reads, **self.figures}


@dataclass(frozen=True, slots=True)
class RunningProxy:
    """A proxy that serves in a thread of this process, on a Unix socket and on TCP."""

    socket_path: Path
    port: int
    server: ProxyServer
    loop: asyncio.AbstractEventLoop
    s3_port: int = 0

    def client(self, *, tcp: bool = False) -> Client:
        """A client on a connection of its own."""
        return Client(self.connect(tcp=tcp))

    def call(self, call: Callable[[], T]) -> T:
        """The result of a call on the server's event loop."""
        done: Future[T] = Future()
        self.loop.call_soon_threadsafe(lambda: done.set_result(call()))
        return done.result(_START_TIMEOUT_S)

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds on the server's event loop."""
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        pause = threading.Event()
        while not self.call(holds):
            if time.monotonic() > deadline_s:
                raise TimeoutError("it did not come true")
            pause.wait(0.005)

    @property
    def address(self) -> str:
        """As a mount's option ``proxy`` has it."""
        return f"unix:{self.socket_path}"

    def requests(self, route: str) -> int:
        """Answers of a route so far; waits for those that are on their way."""
        metrics = self.server.metrics
        self.until(lambda: metrics.total("streams") == 0)
        return self.call(lambda: metrics.requests(route))

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://127.0.0.1:{self.port}"

    def connect(
        self, *, tcp: bool = False, s3: bool = False, timeout_s: float = 60.0
    ) -> socket.socket:
        """A connected socket."""
        if tcp:
            port = self.s3_port if s3 else self.port
            return socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(timeout_s)
        made.connect(os.fsencode(self.socket_path))
        return made


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer as http.client saw it."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """The value of a header."""
        found = [value for key, value in self.headers if key.lower() == name.lower()]
        return ", ".join(found) if found else None

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Client:
    """Requests on one connection that is kept alive."""

    def __init__(self, connected: socket.socket) -> None:
        self._http = http.client.HTTPConnection("localhost")
        self._http.sock = connected

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(
        self, target: str, *, method: str = "GET", body: bytes | str | None = None, **headers: str
    ) -> Reply:
        """The answer to a request; '_' in a header's name stands for '-'."""
        names = {name.replace("_", "-"): headers[name] for name in headers}
        self._http.request(method, target, body, names)
        answer = self._http.getresponse()
        return Reply(answer.status, answer.getheaders(), answer.read())


def exchange(connected: socket.socket, data: bytes) -> bytes:
    """All that the other side sends after ``data`` until it ends the connection."""
    with connected:
        if data:
            connected.sendall(data)
        received = bytearray()
        while piece := connected.recv(65536):
            received += piece
    return bytes(received)


def _on_tcp(tokens: TokenBook | None, certificate: DoorTls | None) -> Endpoint:
    return Endpoint(
        listen_tcp("127.0.0.1", 0),
        tokens,
        tls=certificate.context if certificate is not None else None,
        certificate=certificate,
    )


@contextmanager
def start_proxy(
    node: NodeService | Callable[[], AbstractAsyncContextManager[NodeService]],
    *,
    tokens_file: Path | None = None,
    metrics_anonymous: bool = False,
    limits: ClientLimits | None = None,
    hot_path: bool = True,
    socket_path: Path | None = None,
    tcp_is_local: bool = False,
    s3: S3Settings | None = None,
    certificate: DoorTls | None = None,
    inputs: MetricInputs | None = None,
    local_readers: LocalReaders | None = None,
) -> Iterator[RunningProxy]:
    """The HTTP server over ``node`` in a thread, on a socket in a fresh directory and on a free
    port of 127.0.0.1. ``node`` may be what opens one in the server's event loop.

    The Unix socket needs no token; TCP does where ``tokens_file`` is given. ``tcp_is_local``: TCP
    offers what otherwise only the Unix socket does. ``s3``: S3's clients have a port, too.
    ``certificate``: TCP is TLS. ``local_readers``: of the Unix socket.
    """
    with tempfile.TemporaryDirectory(prefix="lodefs-proxy-") as folder:
        path = socket_path or Path(folder) / "proxy.sock"
        tokens = TokenBook(tokens_file, s3=s3 is not None) if tokens_file is not None else None
        started: Future[RunningProxy] = Future()
        stop = asyncio.Event()

        async def serve() -> None:
            async with node() if callable(node) else nullcontext(node) as opened:
                await serve_node(opened)

        async def serve_node(node: NodeService) -> None:
            server = ProxyServer(
                node, version="test", metric_inputs=inputs, limits=limits, hot_path=hot_path
            )
            unix = Endpoint(
                listen_unix(path, mode=0o600), is_local=True, local_readers=local_readers
            )
            tcp = replace(
                _on_tcp(tokens, certificate), info_is_open=metrics_anonymous, is_local=tcp_is_local
            )
            of_s3 = [replace(tcp, listener=listen_tcp("127.0.0.1", 0), s3=s3)] if s3 else []
            doors = [unix, tcp, *of_s3]
            await server.start(doors)
            port, s3_port = (door.listener.getsockname()[1] for door in (tcp, doors[-1]))
            loop = asyncio.get_running_loop()
            started.set_result(RunningProxy(path, port, server, loop, s3_port))
            await stop.wait()
            await server.stop(_STOP_TIMEOUT_S)

        def run() -> None:
            try:
                uvloop.run(serve())
            except BaseException as error:
                if started.done():
                    raise
                started.set_exception(error)

        thread = threading.Thread(target=run, name="proxy", daemon=True)
        thread.start()
        proxy = started.result(_START_TIMEOUT_S)
        try:
            yield proxy
        finally:
            proxy.loop.call_soon_threadsafe(stop.set)
            thread.join(_START_TIMEOUT_S)
            if thread.is_alive():
                raise TimeoutError("the test's proxy did not stop")
