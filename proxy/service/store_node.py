"""A node over a store and a cache: puts the parts of the read path together."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from lodefs.chunkstore.errors import Corrupt, InvalidInput, LodefsError
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.nodeapi.wire import CachePlace, Page, Snapshot, Used
from lodefs.chunkstore.nodeapi.wire import Node as Entry
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache import name_rows
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.cache import durability
from lodefs.proxy.cache.chunk_cache import Cache, CacheSettings
from lodefs.proxy.cache.disk_load import DiskLoad
from lodefs.proxy.cache.eviction import Eviction
from lodefs.proxy.cache.maintenance import Maintenance
from lodefs.proxy.cache.pins import Pins
from lodefs.proxy.cache.reader import CacheReader
from lodefs.proxy.cache.scrub import Scrub, ScrubSettings
from lodefs.proxy.cache_control import CacheControl
from lodefs.proxy.fetch.cache_fill import CacheFill
from lodefs.proxy.fetch.known_damage import DamagedChunks
from lodefs.proxy.fetch.pack_chunks import Packs
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.fetch.pack_source import StorePacks
from lodefs.proxy.fetch.single_flight import Fetcher
from lodefs.proxy.node import Extent
from lodefs.proxy.peers.peering import Peering
from lodefs.proxy.read.file_reader import DatasetFile, FileReader
from lodefs.proxy.read.namespace import Namespace
from lodefs.proxy.read.tree_source import CachedTrees, StoreTrees, Trees
from lodefs.proxy.runtime.counters import Counter, Counts
from lodefs.proxy.runtime.thread_pools import FETCH_THREADS, Pools
from lodefs.proxy.service.cache_control import NodeCacheControl
from lodefs.proxy.warm.cluster_jobs import ClusterWarmer
from lodefs.proxy.warm.dataset_eviction import DatasetEviction
from lodefs.proxy.warm.job_run import WarmContext
from lodefs.proxy.warm.jobs import Warmer

log = logging.getLogger("lodefs.cache")

FETCH_DEADLINE_S = 60.0
KEEP_EVERY_S = 30.0
LOOP_SEGMENTS_BYTES_MAX = 64 * 1024  # of a file; more of them are decoded in a thread


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """``fetch_deadline_s``: how long a reader waits for the store at most, for one unit.
    ``keep_every_s``: how often the cache is put on disk. ``fetch_threads``: how many
    requests to the store are under way at most."""

    cache: CacheSettings
    fetch_deadline_s: float = FETCH_DEADLINE_S
    keep_every_s: float = KEEP_EVERY_S
    fetch_threads: int = FETCH_THREADS
    scrub: ScrubSettings = field(default_factory=ScrubSettings)


class StoreNode:
    """proxy.node.Node over a store. Made inside a running event loop; owns the cache directory
    (but not the store) until ``close``.

    Raises: Denied, NoSpace, InUse, UnknownFormat, Corrupt if the cache cannot be opened.
    """

    def __init__(
        self,
        store: Store,
        settings: NodeSettings,
        counts: Counts | None = None,
        *,
        cache: Cache | None = None,
        peering: Peering | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = counts or Counts()
        self._store = store
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._cache = cache or Cache(settings.cache, self.counts)
        self._evictor = Eviction(self._cache)
        self._cache.on_idle = self._on_idle
        self._pools = Pools(fetch=settings.fetch_threads)
        deadline_s = settings.fetch_deadline_s
        kv, pools = self._cache.kv, self._pools
        spoilt = DamagedChunks(clock_s=clock_s)
        origin = StorePacks(store.objects, self.counts, spoilt)
        packs = peering.packs(origin, self.counts) if peering is not None else origin
        indexes = PackIndexes(packs, origin, kv, pools, deadline_s=deadline_s)
        filler = CacheFill(self._cache, indexes, packs, origin, spoilt)
        self._fetcher = Fetcher(filler, pools, self.counts, deadline_s=deadline_s)
        reads = CacheReader(self._cache, self._evictor, pools)
        self.packs = Packs(reads, self._fetcher, indexes)
        trees: Trees = StoreTrees(store.objects, store.packs, pools, spoilt)
        if peering is not None:
            trees = CachedTrees(self.packs, pools)
        self._namespace = Namespace(
            store, trees, kv, pools, self.counts, deadline_s=deadline_s, clock_s=clock_s
        )
        self._contents = FileReader(self._cache, reads, self._fetcher, indexes, clock_s=clock_s)
        self._peering = peering
        self._pins = Pins(self._cache)
        context = WarmContext(
            self._cache, self._namespace, self._fetcher, indexes, self._pins, pools
        )
        self._warmer = ClusterWarmer(Warmer(context), peering.jobs(pools.jobs) if peering else None)
        self.peer_server = (
            peering.server(self.packs, self._warmer, self.counts) if peering is not None else None
        )
        dropper = DatasetEviction(
            self._cache, self._evictor, self._namespace, indexes, self._pins, pools
        )
        self._cache_control = NodeCacheControl(
            self._cache, self._pins, pools, self._warmer, dropper
        )
        self._closing = False
        load = DiskLoad(self._cache.settings.path, self._work)
        scrub = Scrub(self._cache, self._evictor, settings.scrub, load)
        every_s = settings.keep_every_s
        self._maintenance = Maintenance(
            self._cache, self._evictor, self._pins, scrub, pools, every_s=every_s
        )
        self._keeper = asyncio.create_task(self._maintenance.run())

    def _work(self) -> tuple[int, int]:
        """As of DiskLoad. For any thread."""
        values = self.counts.values
        return self._fetcher.in_flight_bytes, values[Counter.HITS] + values[Counter.MISSES]

    async def snapshot(self, repo: str, rev: str) -> Snapshot:
        """As of Node."""
        return await self._namespace.snapshot(repo, rev)

    async def entry(self, snapshot: Snapshot, path: bytes) -> Entry:
        """As of Node."""
        return await self._namespace.entry(snapshot, path)

    async def by_ino(self, snapshot: Snapshot, ino: int) -> Entry:
        """As of Node."""
        return self._namespace.by_ino(snapshot, ino)

    async def lookup(self, snapshot: Snapshot, parent_ino: int, name: bytes) -> Entry:
        """As of Node."""
        return await self._namespace.lookup(snapshot, parent_ino, name)

    async def children(
        self, snapshot: Snapshot, ino: int, *, after: bytes = b"", limit: int
    ) -> Page:
        """As of Node."""
        return await self._namespace.children(snapshot, ino, after=after, limit=limit)

    def read(
        self, snapshot: Snapshot, entry: Entry, first: int, size_bytes: int
    ) -> AsyncIterator[Buffer]:
        """As of Node."""
        if entry.kind != Kind.FILE or first < 0 or first + size_bytes > entry.size_bytes:
            raise InvalidInput(f"{entry.name!r} has no bytes {first} to {first + size_bytes}")
        return self._read(snapshot, entry, first, size_bytes)

    async def _read(
        self, snapshot: Snapshot, entry: Entry, first: int, size_bytes: int
    ) -> AsyncIterator[Buffer]:
        try:
            content = await self._content(snapshot, entry)
            async with aclosing(self._contents.read(content, first, size_bytes)) as pieces:
                async for piece in pieces:
                    yield piece
        except Corrupt as error:
            path = self._namespace.path(snapshot, entry)
            what = Spec(snapshot.repo, snapshot.commit, path)
            log.error("%s cannot be read: %s", what, error)  # noqa: TRY400 - the edge has it too
            raise Corrupt(f"{what}: {error}") from error

    async def _content(self, snapshot: Snapshot, entry: Entry) -> DatasetFile:
        name = self.content_id(snapshot, entry)
        known = self._contents.known(name)
        if known is not None:
            return known
        row = self._namespace.row(snapshot, entry.ino)
        if len(row.segments) <= LOOP_SEGMENTS_BYTES_MAX:
            segments = name_rows.segments_of(row)
        else:
            segments = await self._pools.disk.run(name_rows.segments_of, row)
        return self._contents.content(name, entry.size_bytes, segments)

    def content_id(self, snapshot: Snapshot, entry: Entry) -> bytes:
        """As of Node."""
        return self._namespace.content_id(snapshot, entry)

    def hit(self, content: bytes, first: int, size_bytes: int) -> Extent | None:
        """As of Node."""
        return self._contents.hit(content, first, size_bytes)

    def cache_place(self) -> CachePlace:
        """As of Node."""
        directory = self._cache.settings.path.absolute()
        return CachePlace(os.fsencode(directory), layout.VERSION)

    def used(self, report: Used) -> None:
        """As of Node."""
        files, now_s = self._cache.files, int(self._cache.now_s())
        for number in report.numbers:
            file = files.get(number)
            if file is not None:
                file.last_use_s = now_s
        self.counts.direct(report.reads, report.read_bytes)

    @property
    def cache_control(self) -> CacheControl:
        """As of Node."""
        return self._cache_control

    async def look(self) -> None:
        """As of Node."""
        if self._peering is not None:
            await self._peering.look()

    def status(self) -> dict[str, object]:
        """As of Node."""
        cache = self._cache
        counters: dict[str, object] = {str(name): n for name, n in self.counts.values.items()}
        peers = {} if self._peering is None else self._peering.status()
        return {
            "store": self._store.url,
            "cache": str(cache.settings.path),
            "cache_used_bytes": cache.used_bytes,
            "cache_size_bytes_max": cache.settings.size_bytes_max,
            "cache_files": len(cache.files),
            **self._maintenance.status(),
            "warm_jobs": self._warmer.running,
            "in_flight_bytes": self._fetcher.in_flight_bytes,
            **peers,
            **counters,
        }

    def is_cache_lost(self) -> bool:
        """Whether the cache's directory was removed, so that only a new node can keep anything."""
        return self._cache.directory.is_lost()

    async def close(self) -> None:
        """Puts the cache on disk and gives its directory up. Reads that run fail; fetches that
        hang are left to themselves, and change nothing any more."""
        self._closing = True
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        await self._warmer.close()
        await self._contents.close()
        await self._fetcher.close()
        left = await self._pools.close()
        if left:
            log.warning("%d calls to the store, or to other nodes, hang: nobody waits", left)
        await asyncio.to_thread(self._close_cache)

    def _close_cache(self) -> None:
        self._cache.end_stores()
        if not self._cache.directory.is_there():
            log.warning("the cache directory %s was removed", self._cache.settings.path)
        elif problem := durability.close(self._cache, self._evictor):
            log.warning("the cache is not on disk fully, it will be checked: %s", problem)
        try:
            self._cache.close()
        except LodefsError as error:
            log.warning("the cache is not closed as it should be: %s", error)

    def _on_idle(self) -> None:
        if not self._closing:
            self._loop.call_soon_threadsafe(self._cache.trim)
