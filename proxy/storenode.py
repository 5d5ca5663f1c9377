"""A node over a store and a cache: puts the parts of the read path together."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from chunkstore import cachelayout as layout
from chunkstore import namerows
from chunkstore.errors import Corrupt, InvalidInput, LodefsError
from chunkstore.names import Spec
from chunkstore.objects import Buffer
from chunkstore.store import Store
from chunkstore.tree import Kind
from chunkstore.wire import CachePlace, Page, Snapshot, Used
from chunkstore.wire import Node as Entry
from proxy import durability, orphans, suspects
from proxy.cache import Cache, CacheSettings
from proxy.cachereads import CacheReads
from proxy.contents import Content, Contents
from proxy.dropping import Dropper
from proxy.eviction import Evictor
from proxy.fetch import Fetcher
from proxy.fill import Filler
from proxy.meter import Counter, Counts
from proxy.namespace import Namespace
from proxy.node import Extent
from proxy.nodeupkeep import NodeUpkeep
from proxy.offload import FETCH_THREADS, Pools
from proxy.packindexes import PackIndexes
from proxy.packs import Packs
from proxy.packsource import StorePacks
from proxy.peers.jobdesk import JobDesk
from proxy.peers.peering import Peering
from proxy.pins import Pins
from proxy.trees import CachedTrees, StoreTrees, Trees
from proxy.upkeep import Upkeep
from proxy.warmcluster import ClusterWarmer
from proxy.warming import Warmer

log = logging.getLogger("lodefs.cache")

FETCH_DEADLINE_S = 60.0
KEEP_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """``fetch_deadline_s``: how long a reader waits for the store at most, for one unit.
    ``keep_every_s``: how often the cache is put on disk. ``fetch_threads``: how many
    requests to the store are under way at most."""

    cache: CacheSettings
    fetch_deadline_s: float = FETCH_DEADLINE_S
    keep_every_s: float = KEEP_EVERY_S
    fetch_threads: int = FETCH_THREADS


class StoreNode:
    """proxy.node.Node over a store. Made inside a running event loop; owns the cache directory
    (but not the store) until ``close``.

    Denied, NoSpace, InUse, UnknownFormat, Corrupt where the cache cannot be opened.
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
        self._evictor = Evictor(self._cache)
        self._cache.on_idle = self._on_idle
        self._pools = Pools(fetch=settings.fetch_threads)
        deadline_s = settings.fetch_deadline_s
        kv, pools = self._cache.kv, self._pools
        origin = StorePacks(store.objects, self.counts)
        packs = peering.packs(origin, self.counts) if peering is not None else origin
        indexes = PackIndexes(packs, origin, kv, pools, deadline_s=deadline_s)
        filler = Filler(self._cache, indexes, packs, origin)
        self._fetcher = Fetcher(filler, pools, self.counts, deadline_s=deadline_s)
        reads = CacheReads(self._cache, self._evictor, pools)
        self.packs = Packs(self._cache, reads, self._fetcher, indexes)
        trees: Trees = StoreTrees(store.packs, pools)
        if peering is not None:
            trees = CachedTrees(self.packs, pools)
        self._namespace = Namespace(
            store, trees, kv, pools, self.counts, deadline_s=deadline_s, clock_s=clock_s
        )
        self._contents = Contents(self._cache, reads, self._fetcher, indexes, clock_s=clock_s)
        self._peering = peering
        self.peer_desk = peering.desk(self.packs, self.counts) if peering is not None else None
        self._pins = Pins(self._cache)
        self._pinned_bytes = 0  # as of the last look
        warmer = Warmer(self._cache, self._namespace, self._fetcher, indexes, self._pins, pools)
        self._warmer = ClusterWarmer(warmer, peering.jobs(pools.jobs) if peering else None)
        if self.peer_desk is not None:
            self.peer_desk.jobs = JobDesk(self._warmer)
        dropper = Dropper(self._cache, self._evictor, self._namespace, indexes, self._pins, pools)
        self._upkeep = NodeUpkeep(self._cache, self._pins, pools, self._warmer, dropper)
        self._closing = False
        self._keeper = asyncio.create_task(self._keep())

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
            content = self._content(snapshot, entry)
            async with aclosing(self._contents.read(content, first, size_bytes)) as pieces:
                async for piece in pieces:
                    yield piece
        except Corrupt as error:
            path = self._namespace.path(snapshot, entry)
            what = Spec(snapshot.repo, snapshot.commit, path)
            log.error("%s cannot be read: %s", what, error)  # noqa: TRY400 - the edge has it too
            raise Corrupt(f"{what}: {error}") from error

    def _content(self, snapshot: Snapshot, entry: Entry) -> Content:
        return self._contents.content(
            entry.digest,
            entry.size_bytes,
            lambda: namerows.segments_of(self._namespace.row(snapshot, entry.ino)),
        )

    def hit(
        self,
        snapshot: Snapshot,  # noqa: ARG002 - a digest says it all
        entry: Entry,
        first: int,
        size_bytes: int,
    ) -> Extent | None:
        """As of Node."""
        return self._contents.hit(entry.digest, first, size_bytes)

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
    def upkeep(self) -> Upkeep:
        """As of Node."""
        return self._upkeep

    def status(self) -> dict[str, object]:
        """As of Node."""
        cache = self._cache
        counters: dict[str, object] = {str(name): n for name, n in self.counts.values.items()}
        peers = {} if self._peering is None else {"peers": self._peering.status()}
        return {
            "store": self._store.url,
            "cache": str(cache.settings.path),
            "cache_used_bytes": cache.used_bytes,
            "cache_size_bytes_max": cache.settings.size_bytes_max,
            "cache_files": len(cache.files),
            "pinned_bytes": self._pinned_bytes,
            "warm_jobs": self._warmer.running,
            "in_flight_bytes": self._fetcher.in_flight_bytes,
            **peers,
            **counters,
        }

    async def close(self) -> None:
        """Puts the cache on disk and gives its directory up. Reads that run fail."""
        self._closing = True
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        await self._warmer.close()
        await self._contents.close()
        await self._fetcher.close()
        await self._pools.fetch.close()
        await self._pools.large.close()
        await self._pools.serving.close()
        await self._pools.jobs.close()
        await self._pools.disk.close(self._close_cache)

    def _close_cache(self) -> None:
        problem = durability.close(self._cache, self._evictor)
        if problem:
            log.warning("the cache is not on disk fully, it will be checked: %s", problem)
        self._cache.close()

    def _on_idle(self) -> None:
        if not self._closing:
            self._loop.call_soon_threadsafe(self._cache.trim)

    async def _keep(self) -> None:
        """Cleans up after the last process, then puts the cache on disk now and then."""
        disk = self._pools.disk
        await disk.run(orphans.clean, self._cache, self._evictor, stopping=lambda: self._closing)
        while True:
            self._pinned_bytes = await disk.run(self._pins.pinned_bytes)
            await asyncio.sleep(self._settings.keep_every_s)
            try:
                await disk.run(durability.sync, self._cache, self._evictor)
                await disk.run(durability.save_uses, self._cache)
                await disk.run(self._evictor.finish)
                await disk.run(self._pins.expire)
                await disk.run(
                    suspects.settle_all, self._cache, self._evictor, stopping=lambda: self._closing
                )
            except LodefsError as error:
                self.counts.add(Counter.NO_SPACE)
                log.warning("the cache is not put on disk for now: %s", error)
