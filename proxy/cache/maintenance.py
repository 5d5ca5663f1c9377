"""Background work for a node's cache: after a start, from time to time, and in idle time.

Three tasks run independently: recovery checks what a power cut may have damaged, which can take
hours; maintenance syncs the cache to disk and handles pins and damage reports; the scrub reads old
files again. A step that fails is logged and retried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from lodefs.chunkstore.errors import LodefsError, NoSpace
from lodefs.chunkstore.system.progress import Progress
from lodefs.proxy.cache import durability, recovery
from lodefs.proxy.cache.chunk_cache import Cache
from lodefs.proxy.cache.scrub import Scrub
from lodefs.proxy.metrics.counters import Counter
from lodefs.proxy.runtime.thread_pools import Pool, Pools

log = logging.getLogger("lodefs.cache")

T = TypeVar("T")

THREADS = 3  # recovery, scrub and damage reports may each take hours, so reads use other threads


class Maintenance:
    """The background work of one cache. ``every_s`` is the time between syncs to disk."""

    def __init__(
        self,
        cache: Cache,
        scrub: Scrub,
        pools: Pools,
        drop_purged: Callable[[], None],
        *,
        every_s: float,
    ) -> None:
        self._cache = cache
        self._purge = drop_purged
        self._scrub = scrub
        self._disk = pools.disk
        self._own = Pool("maintenance", threads=THREADS)
        self._every_s = every_s
        self._stopping = False
        self._recovery = Progress()
        self._pinned_bytes = 0  # at the last count

    def status(self) -> dict[str, object]:
        """Returns fields of all three tasks. ``recovery_...`` are the files and bytes to check
        after a power cut, and how many of them were checked."""
        return {
            "pinned_bytes": self._pinned_bytes,
            "recovery_files": self._recovery.files_total,
            "recovery_files_done": self._recovery.files_done,
            "recovery_bytes": self._recovery.bytes_total,
            "recovery_bytes_done": self._recovery.bytes_done,
            **self._scrub.status(),
        }

    async def run(self) -> None:
        """Works until it is cancelled. Returns when its threads have ended."""
        try:
            async with asyncio.TaskGroup() as group:
                for work in (self._recover, self._look_after, self._scrub_on):
                    group.create_task(work())
        finally:
            self._stopping = True
            self._scrub.stop()
            await self._own.close(None)  # its calls end within one chunk

    async def _recover(self) -> None:
        while await self._done("the cache is not cleaned up", self._clean) is not True:
            log.info("the cleanup is tried again in %g s", self._every_s)
            await asyncio.sleep(self._every_s)

    async def _clean(self) -> bool:
        """Cleans up. Returns whether nothing is left to do."""
        left = await self._own.run(
            recovery.clean,
            self._cache,
            stopping=lambda: self._stopping,
            progress=self._recovery,
        )
        return not left

    async def _look_after(self) -> None:
        disk, cache = self._disk, self._cache
        steps: list[tuple[str, Pool, Callable[[], object]]] = [
            ("the cache is not synced to disk", disk, lambda: durability.sync(cache)),
            ("the times of last use are not stored", disk, lambda: durability.save_uses(cache)),
            ("evictions are not completed", disk, cache.eviction.finish),
            ("expired pins are not removed", disk, cache.pins.expire),
            ("damage reports are not handled", self._own, self._check_reported),
            ("the scrub's coverage is unknown", disk, self._scrub.look),
        ]
        await self._done("purged chunks are not dropped", self._drop_purged)
        while True:
            await self._done("pinned files are not counted", self._count_pinned)
            await asyncio.sleep(self._every_s)
            for what, pool, step in steps:
                await self._done(what, partial(pool.run, step))
            await self._done("purged chunks are not dropped", self._drop_purged)

    async def _drop_purged(self) -> None:
        await self._own.run(self._purge)

    async def _count_pinned(self) -> None:
        self._pinned_bytes = await self._disk.run(self._cache.pins.pinned_bytes)

    def _check_reported(self) -> None:
        recovery.check_reported(self._cache, stopping=lambda: self._stopping)

    async def _scrub_on(self) -> None:
        while self._scrub.settings.bytes_per_s_max:
            await self._done("the cache is not scrubbed", lambda: self._own.run(self._scrub.run))
            await asyncio.sleep(self._every_s)

    async def _done(self, what: str, step: Callable[[], Awaitable[T]]) -> T | None:
        """Returns the result of a step. If the step fails, logs that and returns None: the work
        continues."""
        try:
            return await step()
        except LodefsError as error:
            if isinstance(error, NoSpace):
                self._cache.counts.add(Counter.NO_SPACE)
            log.warning("%s for now: %s", what, error)
        except Exception:
            log.exception("%s for now", what)
        return None
