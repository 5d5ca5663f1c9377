"""A StoreNode over a store in memory with a cache of its own, for tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore, Part
from lodefs.chunkstore.protocol.cache_control import RUNNING, WarmStatus
from lodefs.chunkstore.protocol.wire import Origin
from lodefs.chunkstore.repo.store import Store, create_store
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.cache.chunk_cache import Cache
from lodefs.proxy.cache.reservation import Chunk
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.fetch.data_plane import DataPlane
from lodefs.proxy.http.local_readers import LocalReaders
from lodefs.proxy.metrics.counters import Counts
from lodefs.proxy.node import NodeService, SnapshotFile
from lodefs.proxy.runtime.write_gate import WriteGate
from lodefs.proxy.s3.buckets import S3Settings
from lodefs.proxy.service.store_node import NodeSettings, StoreNode
from tests.support.chunkstore.handmade import Files, Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.proxy.fake_node import RunningProxy, start_proxy

MIB = 1024 * 1024
REPO = "data/set"


def at_once(call: Callable[[], None]) -> None:
    """Calls what a cache without an event loop would leave to that."""
    call()


def chunk_of(raw: bytes, offset: int = 0) -> tuple[Chunk, bytes]:
    """A chunk of these bytes, as a cache stores it."""
    return Chunk(digest_of(raw), len(raw), offset), raw


class SpiedObjects:
    """An object store that notes its ranged reads of packs and lets a test change the answers.

    ``gets`` counts the requests that reads cause: a node asks for purges at times of its own.
    ``answer`` gets key and part of every read and gives what the reader sees; it may raise.
    """

    def __init__(self, below: ObjectStore | None = None) -> None:
        self.below = below or MemoryObjects()
        self.url = self.below.url
        self.ranges: list[tuple[str, int, int]] = []  # key, offset, size: chunks, not indexes
        self.gets = 0
        self.answer: Callable[[str, Part], Part] = lambda _key, part: part

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        """As of ObjectStore."""
        self.gets += not key.startswith(keys.PURGES)
        if key.startswith(keys.PACKS) and offset >= 0:
            self.ranges.append((key, offset, size))
        part = self.below.get(key, offset=offset, size=size, if_match=if_match)
        return self.answer(key, part)

    def head(self, key: str) -> ObjectInfo:
        """As of ObjectStore."""
        return self.below.head(key)

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        """As of ObjectStore."""
        return self.below.put(key, data, if_absent=if_absent)

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        """As of ObjectStore."""
        self.gets += prefix != keys.PURGES
        return self.below.list(prefix, after=after, limit=limit)

    def delete(self, key: str) -> None:
        """As of ObjectStore."""
        self.below.delete(key)

    def close(self) -> None:
        """As of ObjectStore."""
        self.below.close()


class Rig:
    """A store with one repository, REPO, and nodes over it whose caches lie below a directory."""

    def __init__(
        self,
        directory: Path,
        files: Files,
        *,
        chunk_size_bytes: int = 1000,
        pack_chunks: int = 64,
        below: ObjectStore | None = None,
    ) -> None:
        self.directory = directory
        self.files = files
        self.objects = SpiedObjects(below)
        self.clock_s: Callable[[], float] = time.monotonic  # of its nodes; may be changed meanwhile
        self.store: Store = create_store(self.objects)
        self.maker = Handmade(
            self.store, chunk_size_bytes=chunk_size_bytes, pack_chunks=pack_chunks
        )
        self.commit = self.maker.commit(REPO, files)
        self.reset()

    def reset(self) -> None:
        """Forgets the reads so far."""
        self.objects.ranges.clear()
        self.objects.gets = 0

    def _now_s(self) -> float:
        return self.clock_s()

    def settings(self, size_bytes_max: int = 64 * MIB, **more: float) -> NodeSettings:
        """Of a node on this rig's cache directory."""
        settings = NodeSettings(CacheSettings(self.directory / "cache", size_bytes_max))
        return replace(settings, **more)  # type: ignore[arg-type]  # as the caller says

    @asynccontextmanager
    async def node(
        self,
        settings: NodeSettings | None = None,
        *,
        cache: Callable[[CacheSettings, Counts], Cache] | None = None,
        data: DataPlane | None = None,
    ) -> AsyncIterator[StoreNode]:
        """A node, closed afterwards."""
        settings = settings or self.settings()
        counts = Counts()
        made = (cache or _cache)(settings.cache, counts)
        node = StoreNode(self.store, settings, counts, cache=made, data=data, clock_s=self._now_s)
        try:
            yield node
        finally:
            await node.close()


def _cache(settings: CacheSettings, counts: Counts) -> Cache:
    """A node's cache, whose disk is never too slow: this machine may be, when other tests run."""
    made = Cache(settings, counts, call_soon=asyncio.get_running_loop().call_soon_threadsafe)
    made.gate = WriteGate(settings.unwritten_size_bytes_max, slow_s=3600.0)
    return made


async def read_path(
    node: NodeService,
    path: bytes,
    first: int = 0,
    size_bytes: int | None = None,
    *,
    rev: str = "main",
    repo: str = REPO,
) -> bytes:
    """Bytes of a file through a node."""
    file = await file_of(node, path, rev=rev, repo=repo)
    return (await read_file(node, file, first, size_bytes))[0]


async def read_file(
    node: NodeService, file: SnapshotFile, first: int = 0, size_bytes: int | None = None
) -> tuple[bytes, Origin | None]:
    """Bytes of a file through a node, and where they were fetched from."""
    size = file.entry.size_bytes - first if size_bytes is None else size_bytes
    async with aclosing(await node.files.open(file, first, size)) as stream:
        pieces = [bytes(stream.first), *[bytes(piece) async for piece in stream]]
        return b"".join(pieces), stream.origin


async def file_of(
    node: NodeService, path: bytes, *, rev: str = "main", repo: str = REPO
) -> SnapshotFile:
    """A file of a repository."""
    file = await node.names.file(await node.names.snapshot(repo, rev), path)
    assert isinstance(file, SnapshotFile)
    return file


def run(rig: Rig, work: Callable[[StoreNode], Coroutine[object, object, None]]) -> None:
    """Something done with a node of the rig."""

    async def whole() -> None:
        async with rig.node() as node:
            await work(node)

    asyncio.run(whole())


@contextmanager
def serve_rig(
    rig: Rig,
    settings: NodeSettings | None = None,
    *,
    socket_path: Path | None = None,
    local_readers: LocalReaders | None = None,
    tokens_file: Path | None = None,
    s3: S3Settings | None = None,
    tcp_is_local: bool = False,
) -> Iterator[tuple[RunningProxy, StoreNode]]:
    """A node of the rig behind a proxy that serves in a thread of this process, as of
    ``start_proxy``."""
    nodes: list[StoreNode] = []

    @asynccontextmanager
    async def opened() -> AsyncIterator[StoreNode]:
        async with rig.node(settings) as node:
            nodes.append(node)
            yield node

    with start_proxy(
        opened,
        socket_path=socket_path,
        local_readers=local_readers,
        tokens_file=tokens_file,
        s3=s3,
        tcp_is_local=tcp_is_local,
    ) as proxy:
        yield proxy, nodes[0]


async def ended(node: StoreNode, job: WarmStatus) -> WarmStatus:
    """A warm job of a node when it is over. TimeoutError."""
    async with asyncio.timeout(60):
        # nobody could set an event here
        while (status := await node.cache_control.warm_status(job.id)).state in RUNNING:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    return status


async def until(
    condition: Callable[[], bool], *, poll_s: float = 0.001, timeout_s: float = 60.0
) -> None:
    """Returns when a condition of the event loop's own is true; ``poll_s`` 0 checks at each turn
    of the loop. Raises: TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - nobody could set an event here
            await asyncio.sleep(poll_s)
