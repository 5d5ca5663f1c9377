"""Warm jobs, which fetch the files of a snapshot into the cache in the background.

Jobs end with the process. Cached data is not fetched again, so repeating an interrupted job costs
little.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lodefs.chunkstore.errors import Conflict, LodefsError, Unavailable
from lodefs.chunkstore.format.names import check_repo, check_revision
from lodefs.chunkstore.protocol.cache_control import WarmRequest, decoded
from lodefs.proxy.cache.pins import PinScope
from lodefs.proxy.node import no_job
from lodefs.proxy.runtime.backoff import Backoff
from lodefs.proxy.warm.job import AdmissionWindow, Job
from lodefs.proxy.warm.job_run import WarmContext, WarmRun
from lodefs.proxy.warm.path_patterns import Selection

log = logging.getLogger("lodefs.cache")

JOBS_MAX = 8  # at a time
JOBS_KEPT = 64  # finished jobs that are kept


@dataclass(eq=False)
class _Beginning:
    """A job before it starts, while its names are looked up. ``is_over``: it must not start."""

    owner: str
    job_id: str | None
    is_over: bool = False


class Warmer:
    """The warm jobs of one node, for use on the event loop only."""

    def __init__(
        self,
        context: WarmContext,
        *,
        backoff: Callable[[], Backoff] = Backoff,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        fetcher = context.fetcher
        self._context = context
        self._window = AdmissionWindow(lambda: fetcher.in_flight_bytes > fetcher.bulk_bytes)
        self._backoff = backoff
        self._clock_s = clock_s
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._beginning: set[_Beginning] = set()
        self._selecting = asyncio.Lock()  # it only computes, so two at once would not be faster

    async def start(
        self, request: WarmRequest, job_id: str | None = None, *, is_here: bool = True
    ) -> Job:
        """Returns a new job, or the one with this id if it exists: a caller that missed the answer
        may ask again. ``is_here`` False is a job for other nodes, which is done on this one.
        Raises: NotFound, InvalidInput; Unavailable if too many run; Conflict if it was ended
        meanwhile."""
        check_repo(request.repo)
        check_revision(request.rev)
        with self._begins(_Beginning(request.owner, job_id)):
            async with self._selecting:
                selection = await self._context.pools.jobs.run(_selection_of, request)
            snapshot = await self._context.namespace.snapshot(request.repo, request.rev)
        if job_id is not None and job_id in self._jobs:
            return self._jobs[job_id]
        if self.running >= JOBS_MAX:
            raise Unavailable(f"{JOBS_MAX} warm jobs run already: wait for one, or cancel it")
        until_s = int(self._context.cache.now_s()) + request.pin_s if request.pin_s else None
        job = Job(
            request,
            snapshot,
            selection,
            job_id=job_id,
            pinned_until_s=until_s,
            clock_s=self._clock_s,
        )
        self._jobs[job.id] = job
        over = [one.id for one in self._jobs.values() if not one.is_running]
        for job_id in over[: max(0, len(over) - JOBS_KEPT)]:
            del self._jobs[job_id]
        if not is_here:
            job.files_total = job.bytes_total = 0
            job.end("done")
            return job
        task = self._tasks[job.id] = asyncio.create_task(self._run(job))
        task.add_done_callback(lambda _: self._tasks.pop(job.id, None))
        return job

    def job(self, job_id: str) -> Job:
        """Returns a job. Raises: NotFound, also for one of an earlier process."""
        found = self._jobs.get(job_id)
        if found is None:
            raise no_job(job_id)
        return found

    @property
    def jobs(self) -> list[Job]:
        """Returns the jobs, newest first."""
        return list(reversed(self._jobs.values()))

    @property
    def running(self) -> int:
        return sum(job.is_running for job in self._jobs.values())

    async def cancel(self, job_id: str) -> Job:
        """Ends a job. Its data stays in the cache; a pin that the job made is removed. Raises:
        NotFound, also for a job that has not started, which then never starts."""
        self._end_beginnings(lambda one: one.job_id == job_id)
        job = self.job(job_id)
        task = self._tasks.get(job_id)
        if job.is_running and task is not None:
            job.end("cancelled")
            task.cancel()
            await asyncio.wait([task])
        return job

    async def cancel_pinning(self, scope: PinScope, owner: str | None) -> None:
        """Ends the jobs whose pins lie in a scope, for one owner, or for all if ``owner`` is None.
        They put no pin afterwards."""
        for job in self.jobs:
            is_owners = owner in (None, job.request.owner)
            if job.is_running and job.pinned_until_s is not None and is_owners:
                path = await self._context.pools.jobs.run(job.directory)
                if scope.covers(job.snapshot.repo, job.snapshot.commit, path):
                    await self.cancel(job.id)

    async def release(self, owner: str) -> None:
        """Ends all jobs and pins of an owner."""
        self._end_beginnings(lambda one: one.owner == owner)
        for job in self.jobs:
            if job.is_running and job.request.owner == owner:
                await self.cancel(job.id)
        pins = self._context.cache.pins
        listed = await self._context.pools.disk.run(pins.listed)
        await self._context.pools.disk.run(pins.release, list(listed), owner)

    @contextmanager
    def _begins(self, beginning: _Beginning) -> Iterator[None]:
        """Registers a job for the block, since a slow store may delay its start, and it may be
        ended meanwhile."""
        self._beginning.add(beginning)
        try:
            yield
        finally:
            self._beginning.discard(beginning)
        if beginning.is_over:
            raise Conflict("this warm job was ended before it started")

    def _end_beginnings(self, is_meant: Callable[[_Beginning], bool]) -> None:
        for beginning in self._beginning:
            beginning.is_over = beginning.is_over or is_meant(beginning)

    async def close(self) -> None:
        """Ends all jobs. Their pins stay for the next request of the same files."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, job: Job) -> None:
        run = WarmRun(self._context, self._window, job, self._backoff())
        try:
            await run.run()
        except asyncio.CancelledError:
            # The job was ended on request, not with the process
            if not job.is_running and run.made_pin is not None:
                release = self._context.cache.pins.release
                await self._context.pools.disk.run(release, [run.made_pin], job.request.owner)
            job.end("cancelled")
        except LodefsError as error:
            job.add_error(error)
        except Exception:
            log.exception("a warm job failed")
            job.add_error(LodefsError("an error inside the proxy; its log says more"))
        job.end("failed" if job.errors_total else "done")
        log.info(
            "warming %s@%s: %s",
            job.snapshot.repo,
            job.snapshot.commit[:12],
            job.state,
            extra={"files": job.files_done, "bytes": job.bytes_done, "errors": job.errors_total},
        )


def _selection_of(request: WarmRequest) -> Selection:
    """Returns what a request selects. Raises: InvalidInput."""
    return Selection([*map(decoded, request.paths)], [*map(decoded, request.globs)])
