"""A node over a store and a cache: combines the parts of the read path."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from lodefs.chunkstore.errors import InvalidInput, LodefsError
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.objects.mirrored import is_replaced
from lodefs.chunkstore.protocol.cache_control import (
    EvictRequest,
    EvictView,
    PinsView,
    WarmJobs,
    WarmRequest,
    WarmStatus,
)
from lodefs.chunkstore.protocol.wire import CachePlace, UsageReport
from lodefs.chunkstore.repo.store import Store
from lodefs.proxy.cache import durability
from lodefs.proxy.cache.chunk_cache import Cache
from lodefs.proxy.cache.eviction_policy import Use
from lodefs.proxy.cache.maintenance import Maintenance
from lodefs.proxy.cache.reader import CacheReader
from lodefs.proxy.cache.scrub import DiskLoad, Scrub, ScrubSettings
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.fetch.cache_fill import CacheFill
from lodefs.proxy.fetch.chunk_reader import ChunkReader
from lodefs.proxy.fetch.data_plane import DataPlane
from lodefs.proxy.fetch.file_ranges import FileRanges
from lodefs.proxy.fetch.known_damage import DamagedChunks
from lodefs.proxy.fetch.open_connections import OpenConnections
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.fetch.pack_source import StorePacks
from lodefs.proxy.fetch.purged_chunks import PurgedChunks, Purging
from lodefs.proxy.fetch.single_flight import Fetcher
from lodefs.proxy.git.imports import GitProcesses, GitSettings
from lodefs.proxy.hub.upstream import HubUpstream, UpstreamSettings
from lodefs.proxy.lfs.group_commits import GroupCommits
from lodefs.proxy.lfs.writer import LfsProcess, LfsSettings
from lodefs.proxy.metrics.counters import Counter, Counts
from lodefs.proxy.node import CacheControl, GitImports, LfsWriter, Upstream
from lodefs.proxy.peers.peering import Peering
from lodefs.proxy.read.directories.tree_source import CachedTrees, StoreTrees, Trees
from lodefs.proxy.read.file_reader import FileReader
from lodefs.proxy.read.namespace import Namespace
from lodefs.proxy.read.store_catalog import StoreCatalog
from lodefs.proxy.runtime.thread_pools import FETCH_THREADS, Pools, current_owner
from lodefs.proxy.warm.cluster_jobs import ClusterWarmer
from lodefs.proxy.warm.dataset_eviction import DatasetEviction, views
from lodefs.proxy.warm.job_run import WarmContext
from lodefs.proxy.warm.jobs import Warmer

log = logging.getLogger("lodefs.cache")

FETCH_DEADLINE_S = 60.0
KEEP_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """``fetch_deadline_s`` is how long a reader waits for the store at most, for one unit.
    ``keep_every_s`` is the time between syncs of the cache. ``fetch_threads`` limits concurrent
    requests to the store. ``upstream`` is the site's hub, ``lfs`` where Git LFS writes, ``git``
    what is imported from Git."""

    cache: CacheSettings
    fetch_deadline_s: float = FETCH_DEADLINE_S
    keep_every_s: float = KEEP_EVERY_S
    fetch_threads: int = FETCH_THREADS
    scrub: ScrubSettings = field(default_factory=ScrubSettings)
    upstream: UpstreamSettings | None = None
    lfs: LfsSettings | None = None
    git: GitSettings | None = None


class StoreNode:
    """proxy.node.NodeService over a store. Construct it inside a running event loop. It owns the
    cache directory (but not the store) until ``close``.

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
        data: DataPlane | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counts = counts or Counts()
        self._store = store
        self._settings = settings
        self._peering = peering
        self._processes = data.processes if data is not None else None
        call_soon = asyncio.get_running_loop().call_soon_threadsafe
        self._cache = cache or Cache(settings.cache, self._counts, call_soon=call_soon)
        self._pools = pools = Pools(fetch=settings.fetch_threads)
        purged = PurgedChunks()
        path = _read_path(
            store,
            self._cache,
            pools,
            purged,
            deadline_s=settings.fetch_deadline_s,
            peering=peering,
            data=data,
            clock_s=clock_s,
        )
        self._fetcher = path.fetcher
        self.packs, self.names, self.files = path.packs, path.names, path.files
        self.catalog = StoreCatalog(store, pools, self.names.seen)
        jobs = peering.jobs(pools.jobs) if peering is not None else None
        warmer = Warmer(WarmContext(self._cache, self.names, self._fetcher, path.indexes, pools))
        self._warmer = ClusterWarmer(warmer, jobs)
        dropper = DatasetEviction(self._cache, self.names, path.indexes, pools, warmer)
        self._cache_control = NodeCacheControl(self._cache, pools, self._warmer, dropper)
        self._upstream = HubUpstream(settings.upstream, jobs) if settings.upstream else None
        self._git = GitProcesses(settings.git) if settings.git else None
        lfs = settings.lfs
        self._lfs = GroupCommits(LfsProcess(lfs), lfs.directory) if lfs else None
        self.peer_server = (
            peering.server(self.packs, self._warmer, self._counts, self._upstream)
            if peering is not None
            else None
        )
        self._maintenance = self._maintained(purged)
        self._connections = OpenConnections(store.objects, pools.fetch, clock_s=clock_s)
        self._keeper = asyncio.create_task(self._maintenance.run())
        self._connecting = asyncio.create_task(self._connections.run())

    def _maintained(self, purged: PurgedChunks) -> Maintenance:
        cache, settings = self._cache, self._settings
        scrub = Scrub(cache, settings.scrub, DiskLoad(cache.settings.path, self._work))
        purging = Purging(cache, cache.kv, Purges(self._store.objects).after, purged)
        every_s = settings.keep_every_s
        return Maintenance(cache, scrub, self._pools, purging.look, every_s=every_s)

    @property
    def upstream(self) -> Upstream | None:
        return self._upstream

    @property
    def git(self) -> GitImports | None:
        return self._git

    @property
    def lfs(self) -> LfsWriter | None:
        return self._lfs

    @property
    def counts(self) -> Counts:
        return self._counts

    def _work(self) -> tuple[int, int]:
        """Implements DiskLoad's ``work``. For any thread."""
        values = self._counts.values
        return self._fetcher.in_flight_bytes, values[Counter.HITS] + values[Counter.MISSES]

    def cache_place(self) -> CachePlace:
        self._connections.used()
        directory = self._cache.settings.path.absolute()
        return CachePlace(os.fsencode(directory), layout.VERSION)

    async def used(self, report: UsageReport) -> None:
        seen_bytes = report.read_bytes + report.stored_bytes
        # The report does not say from which file
        each_bytes = seen_bytes // max(len(report.numbers), 1)
        for number in report.numbers:
            file = self._cache.file(number)
            if file is not None:
                self._cache.touch(file, Use.REPORTED, each_bytes)
        self._counts.fetched_for(current_owner.get(), None, report.read_bytes)
        self._counts.direct(report.reads, report.read_bytes, report.repo)
        await self.files.complete(report.repo, report.commit, report.scattered)

    @property
    def cache_control(self) -> CacheControl:
        return self._cache_control

    async def look(self) -> None:
        if self._peering is not None:
            await self._peering.look()

    def status(self) -> dict[str, object]:
        cache = self._cache
        counters: dict[str, object] = {str(name): n for name, n in self._counts.values.items()}
        peers = {} if self._peering is None else self._peering.status()
        return {
            "store": self._store.url,
            "store_replaced": is_replaced(self._store.objects),
            "cache": str(cache.settings.path),
            "cache_used_bytes": cache.used_bytes,
            "cache_size_bytes_max": cache.settings.size_bytes_max,
            "cache_files": len(cache.all_files()),
            **self._maintenance.status(),
            "warm_jobs": self._warmer.running,
            "in_flight_bytes": self._fetcher.in_flight_bytes,
            "unwritten_bytes": cache.gate.unwritten_bytes,
            "waiting_units": self._fetcher.waiting_units,
            "pools": self._pools.status(),
            **(self._processes.status() if self._processes is not None else {}),
            **peers,
            **counters,
        }

    def is_cache_lost(self) -> bool:
        """Whether the cache's directory was removed, so that only a new node can cache anything."""
        return self._cache.directory.is_lost()

    async def close(self) -> None:
        """Syncs the cache and releases its directory. Running reads fail; fetches that hang are
        left to themselves, and change nothing any more."""
        self._keeper.cancel()
        self._connecting.cancel()
        await asyncio.gather(self._keeper, self._connecting, return_exceptions=True)
        await self._warmer.close()
        if self._upstream is not None:
            await self._upstream.close()
        if self._lfs is not None:
            await self._lfs.close()
        if self._git is not None:
            await self._git.close()
        await self.catalog.close()
        await self.files.close()
        await self._fetcher.close()
        if self._processes is not None:
            await asyncio.to_thread(self._processes.close)
        left = await self._pools.close()
        if left:
            log.warning("%d calls to the store or to other nodes hang and are abandoned", left)
        await asyncio.to_thread(self._close_cache)

    def _close_cache(self) -> None:
        self._cache.end_stores()
        if not self._cache.directory.is_there():
            log.warning("the cache directory %s was removed", self._cache.settings.path)
        elif problem := durability.close(self._cache):
            log.warning("the cache is not completely on disk and will be checked: %s", problem)
        try:
            self._cache.close()
        except LodefsError as error:
            log.warning("closing the cache failed: %s", error)


class _ReadPath(NamedTuple):
    """The parts of a node between its names and its store."""

    indexes: PackIndexes
    fetcher: Fetcher
    packs: ChunkReader
    names: Namespace
    files: FileReader


def _read_path(
    store: Store,
    cache: Cache,
    pools: Pools,
    purged: PurgedChunks,
    *,
    deadline_s: float,
    peering: Peering | None,
    data: DataPlane | None,
    clock_s: Callable[[], float],
) -> _ReadPath:
    """Combines the parts from a read to the store: files > ranges > fetcher > filler > packs.
    ``deadline_s`` limits each fetch."""
    counts, accuracy = cache.counts, cache.prefetch_accuracy
    damaged = DamagedChunks(clock_s=clock_s)
    origin = StorePacks(store.objects, counts, damaged, data)
    sources = peering.packs(origin, counts) if peering is not None else origin
    indexes = PackIndexes(sources, origin, cache.kv, pools, deadline_s=deadline_s)
    filler = CacheFill(cache, indexes, sources, origin, damaged, purged)
    fetcher = Fetcher(filler, pools, counts, deadline_s=deadline_s)
    reads = CacheReader(cache, pools)
    ranges = FileRanges(reads, fetcher, indexes)
    packs = ChunkReader(ranges, reads, fetcher, indexes, accuracy, clock_s=clock_s)
    trees: Trees = StoreTrees(store.objects, store.packs, pools, damaged)
    if peering is not None:
        trees = CachedTrees(packs, pools)
    names = Namespace(store, trees, cache.kv, pools, counts, deadline_s=deadline_s, clock_s=clock_s)
    files = FileReader(cache, reads, ranges, indexes, names, pools, clock_s=clock_s)
    return _ReadPath(indexes, fetcher, packs, names, files)


class NodeCacheControl:
    """proxy.node.CacheControl for a StoreNode's cache. For use on the event loop."""

    def __init__(
        self,
        cache: Cache,
        pools: Pools,
        warmer: ClusterWarmer,
        dropper: DatasetEviction,
    ) -> None:
        self._cache = cache
        self._pools = pools
        self._warmer = warmer
        self._dropper = dropper

    @property
    def is_busy(self) -> bool:
        return self._warmer.running > 0

    async def warm(self, request: WarmRequest) -> WarmStatus:
        return await self._warmer.start(request)

    async def warm_jobs(self) -> WarmJobs:
        return WarmJobs(self._warmer.jobs())

    async def warm_status(self, job_id: str) -> WarmStatus:
        return await self._warmer.status(job_id)

    async def cancel_warm(self, job_id: str) -> WarmStatus:
        return await self._warmer.cancel(job_id)

    async def pins(self) -> PinsView:
        pins = await self._pools.disk.run(self._cache.pins.listed)
        pinned_bytes = await self._pools.disk.run(self._cache.pins.pinned_bytes)
        return PinsView(views(pins), pinned_bytes, self._cache.settings.size_bytes_max)

    async def evict(self, request: EvictRequest) -> EvictView:
        if request.all_nodes:
            owner = request.owner
            release = EvictRequest(everything=True, pins_only=True, owner=owner, all_nodes=True)
            if not owner or request != release:
                raise InvalidInput("with all_nodes, only all pins of an owner can be removed")
            await self._warmer.release(owner, everywhere=True)
        return await self._dropper.evict(request)
