"""The one bridge from asyncio to blocking code: thread pools with bounded queues.

Five pools, so that a stuck store cannot hold up reads of the disk, few threads only ever hold the
memory of a large transfer, nodes that wait for each other can still serve each other, and one that
is silent holds up no fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from chunkstore.errors import DeadlineExceeded, Unavailable

P = ParamSpec("P")
T = TypeVar("T")

FETCH_THREADS = 32  # most of them wait for the store
LARGE_THREADS = 8
SERVING_THREADS = 8
JOBS_THREADS = 8  # that ask other nodes how far they are
LARGE_SIZE_BYTES_MIN = 1024 * 1024  # a fetch of this size is a large one
DISK_THREADS = 4
QUEUE_CALLS_MAX = 4096


class Pool:
    """Threads for blocking calls. Used from one event loop."""

    def __init__(self, name: str, *, threads: int, queue_calls_max: int = QUEUE_CALLS_MAX) -> None:
        self._name = name
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"lodefs-{name}")
        self._calls_max = threads + queue_calls_max
        self.calls = 0  # running and waiting

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The call's result or exception. Unavailable where the queue is full.

        Cancelling the awaiting task does not stop a call that runs.
        """
        if self.calls >= self._calls_max:
            raise Unavailable(f"{self.calls} calls wait for the {self._name} threads already")
        self.calls += 1
        try:
            future = self._executor.submit(call, *args, **kwargs)
        except RuntimeError as error:  # after shutdown
            self.calls -= 1
            raise Unavailable(f"the {self._name} threads have stopped") from error
        wrapped = asyncio.wrap_future(future)
        wrapped.add_done_callback(self._done)
        return await wrapped

    async def bounded(self, what: str, deadline_s: float, call: Callable[[], T]) -> T:
        """As ``run``, but no longer than ``deadline_s``, waiting included. DeadlineExceeded.

        The thread is not stopped: the call's own time limits end it.
        """
        try:
            async with asyncio.timeout(deadline_s):
                return await self.run(call)
        except TimeoutError as error:
            raise DeadlineExceeded(f"{what} did not come within {deadline_s:g} s") from error

    def _done(self, future: asyncio.Future[T]) -> None:
        self.calls -= 1
        if not future.cancelled():
            future.exception()  # seen, also where the waiter has gone

    async def close(self, then: Callable[[], None] | None = None) -> None:
        """Drops what waits; returns when what runs has ended, and ``then`` after it."""
        await asyncio.get_running_loop().run_in_executor(None, self._stop, then)

    def _stop(self, then: Callable[[], None] | None) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)
        if then is not None:
            then()


class Pools:
    """The pools of a node."""

    def __init__(self, *, fetch: int = FETCH_THREADS, disk: int = DISK_THREADS) -> None:
        self.fetch = Pool("fetch", threads=fetch)
        self.large = Pool("large", threads=min(fetch, LARGE_THREADS))
        self.serving = Pool("serving", threads=min(fetch, SERVING_THREADS))
        self.jobs = Pool("jobs", threads=JOBS_THREADS)
        self.disk = Pool("disk", threads=disk)

    def fetching(self, size_bytes: int, *, from_origin: bool = False) -> Pool:
        """The pool for a fetch of so many bytes. ``from_origin``: for a peer, so that it must not
        wait behind fetches that wait for peers."""
        if from_origin:
            return self.serving
        return self.large if size_bytes >= LARGE_SIZE_BYTES_MIN else self.fetch


async def paused(wait_s: float) -> None:
    """Returns after so many seconds; at once where there are none."""
    if wait_s > 0:
        await asyncio.sleep(wait_s)
