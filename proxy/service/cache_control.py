"""Control of a node's cache: puts warming, pins and dropping together."""

from __future__ import annotations

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.nodeapi.cache_control import (
    EvictRequest,
    EvictView,
    PinsView,
    WarmJobs,
    WarmRequest,
    WarmStatus,
)
from lodefs.proxy.cache.chunk_cache import Cache
from lodefs.proxy.runtime.thread_pools import Pools
from lodefs.proxy.warm.cluster_jobs import ClusterWarmer
from lodefs.proxy.warm.dataset_eviction import DatasetEviction, views


class NodeCacheControl:
    """proxy.cache_control.CacheControl of a StoreNode's cache. Used from the event loop."""

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
                raise InvalidInput("on all nodes only an owner's pins of everything can be removed")
            await self._warmer.release(owner, everywhere=True)
        return await self._dropper.evict(request)
