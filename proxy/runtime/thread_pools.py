"""The main bridge from asyncio to blocking code: thread pools with bounded queues.

There are six pools. So a stuck store cannot block reads from the disk, only a few threads hold the
memory of a large transfer, and nodes that wait for each other can still serve each other. A silent
node does not block fetches, nor does a client that lists all repositories.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import Future
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from traceback import walk_tb
from typing import Any, ParamSpec, TypeVar

from lodefs.chunkstore.errors import DeadlineExceeded, Unavailable

NOBODY, REMOTE = "", "remote"
current_owner: ContextVar[str] = ContextVar("current_owner", default=NOBODY)
"""The owner for whom something is done: a user of this machine by number, a client on another
machine as in ``remote_owner``, or NOBODY for the node itself. Tasks inherit it."""

P = ParamSpec("P")
T = TypeVar("T")

FETCH_THREADS = 32  # most of them wait for the store
LARGE_THREADS = 8
SERVING_THREADS = 8
JOBS_THREADS = 8  # threads that ask other nodes for progress
LARGE_SIZE_BYTES_MIN = 1024 * 1024  # a fetch of this size is a large one
LISTING_THREADS = 4  # threads that list repositories, branches and tags
LISTING_CALLS_MAX = 64  # calls that may wait for them; more are refused
DISK_THREADS = 4
QUEUE_CALLS_MAX = 4096
CLOSE_TIMEOUT_S = 2.0  # for calls still running at the end: a store may hang for minutes
_SUSPENDABLE = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


def remote_owner(name: str) -> str:
    """Returns the owner for requests of TCP clients. ``name`` is that of their token or S3 key, or
    their address if they have none."""
    return f"{REMOTE} {name}"


def is_remote(owner: str) -> bool:
    """Whether an owner is a TCP client."""
    return owner.startswith(REMOTE)


class Pool:
    """Threads for blocking calls, for one event loop. Nothing waits for the threads at exit: a call
    that hangs delays only its caller."""

    def __init__(self, name: str, *, threads: int, queue_calls_max: int = QUEUE_CALLS_MAX) -> None:
        self._name = name
        self.threads_max = threads
        # Limit for running calls and one owner's waiting calls
        self._calls_max = threads + queue_calls_max
        self._changed = threading.Condition()  # guards the fields below
        # By owner; the owner whose turn is next comes first; no empty ones.
        self._waiting: dict[str, dict[Future[Any], Callable[[], Any]]] = {}
        self._running = 0
        self._threads = 0
        self._idle = 0
        self._stopped = False

    @property
    def calls(self) -> int:
        """The number of running and waiting calls. A call whose caller has gone still counts."""
        with self._changed:
            return self._running + self._queued

    @property
    def running_and_waiting(self) -> tuple[int, int]:
        """Returns how many calls run, and how many wait for a thread."""
        with self._changed:
            return self._running, self._queued

    @property
    def _queued(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns the call's result. Raises: its exception; Unavailable if the queue is full. Each
        owner has its own queue, so that no owner gets another's calls refused.

        Cancelling the awaiting task does not stop a running call; a waiting one is dropped.
        """
        within = copy_context()  # so that the thread knows its request
        return await self._submit(partial(within.run, call, *args, **kwargs))

    async def bounded(self, what: str, deadline_s: float, call: Callable[[], T]) -> T:
        """Does what ``run`` does, for at most ``deadline_s`` including the wait. Raises:
        DeadlineExceeded.

        The thread is not stopped: the call's own time limits end it.
        """
        try:
            async with asyncio.timeout(deadline_s):
                return await self.run(call)
        except TimeoutError as error:
            raise DeadlineExceeded(f"{what} did not arrive within {deadline_s:g} s") from error

    async def close(self, timeout_s: float | None = CLOSE_TIMEOUT_S) -> int:
        """Drops waiting calls. Returns when the running ones have ended, or after ``timeout_s``
        (None: no limit); the result is how many still run."""
        with self._changed:
            self._stopped = True
            dropped = [future for queue in self._waiting.values() for future in queue]
            self._changed.notify_all()
        for future in dropped:
            future.cancel()
        left = await asyncio.to_thread(self._wait_end, timeout_s)
        if left:
            _given_up.append(self)
        return left

    def _wait_end(self, timeout_s: float | None) -> int:
        with self._changed:
            self._changed.wait_for(lambda: not self._running, timeout_s)
            return self._running

    def _submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = asyncio.get_running_loop().create_future()
        with self._changed:
            if self._stopped:
                raise Unavailable(f"the {self._name} threads have stopped")
            owner = current_owner.get()
            calls = self._running + len(self._waiting.get(owner, ()))
            if calls >= self._calls_max:
                raise Unavailable(f"{calls} calls wait for the {self._name} threads already")
            if self._queued >= self._idle and self._threads < self.threads_max:
                self._start_thread()
            self._waiting.setdefault(owner, {})[future] = call
            self._changed.notify()
        future.add_done_callback(partial(self._drop, owner))
        return future

    def _start_thread(self) -> None:
        name = f"lodefs-{self._name}_{self._threads}"
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except RuntimeError as error:
            if not self._threads:
                raise Unavailable(f"no {self._name} thread can be started: {error}") from error
            return
        self._threads += 1

    def _take(self) -> tuple[Future[Any], Callable[[], Any]]:
        """Returns the next call: one for each owner in turn, so that nobody waits for all earlier
        calls of another owner."""
        owner = next(iter(self._waiting))
        queue = self._waiting.pop(owner)
        future = next(iter(queue))
        call = queue.pop(future)
        if queue:
            self._waiting[owner] = queue
        return future, call

    def _drop(self, owner: str, future: Future[Any]) -> None:
        """Drops a call that has not begun, since nobody waits for it any more."""
        if future.cancelled():
            with self._changed:
                queue = self._waiting.get(owner, {})
                queue.pop(future, None)
                if not queue:
                    self._waiting.pop(owner, None)

    def _work(self) -> None:
        while self._work_once():
            pass

    def _work_once(self) -> bool:
        """Runs one call, and leaves nothing of it in this thread. Returns False at the end."""
        with self._changed:
            while not self._queued:
                if self._stopped:
                    return False
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            future, call = self._take()
            if future.cancelled():
                return True
            self._running += 1
        error, result = None, None
        try:
            result = _called(call)
        except BaseException as failure:  # noqa: BLE001 - the waiter gets it, whatever it is
            error = failure
        with self._changed:
            self._running -= 1
            if self._stopped:
                self._changed.notify_all()
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            future.get_loop().call_soon_threadsafe(_settle, future, result, error)
        del error, future  # the error holds this frame
        return True


def _settle(future: Future[Any], result: object, error: BaseException | None) -> None:
    """Gives the outcome of a call to its caller, who may have gone."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


_given_up: list[Pool] = []


def _called(call: Callable[[], T]) -> T:
    """Returns the call's result. Its exception keeps no variables of the frames that it passed:
    these may hold a hundred MiB until a reader takes the exception or the cycle collector runs."""
    try:
        return call()
    except Exception as error:
        found: BaseException | None = error
        seen: set[int] = set()  # causes and contexts may form a cycle
        while found is not None and id(found) not in seen:
            seen.add(id(found))
            _clear_frames(found)
            found = found.__cause__ or found.__context__
        raise


def _clear_frames(error: BaseException) -> None:
    """Does what traceback.clear_frames does, except for generators and coroutines: an exception
    that was raised before may have passed some that still run, and clearing would end them."""
    for frame, _ in walk_tb(error.__traceback__):
        if not frame.f_code.co_flags & _SUSPENDABLE:
            with suppress(RuntimeError):  # it still runs
                frame.clear()


class Pools:
    """The pools of a node."""

    def __init__(self, *, fetch: int = FETCH_THREADS, disk: int = DISK_THREADS) -> None:
        self.fetch = Pool("fetch", threads=fetch)
        self.large = Pool("large", threads=min(fetch, LARGE_THREADS))
        self.serving = Pool("serving", threads=min(fetch, SERVING_THREADS))
        self.jobs = Pool("jobs", threads=JOBS_THREADS)
        self.listing = Pool(
            "listing", threads=min(fetch, LISTING_THREADS), queue_calls_max=LISTING_CALLS_MAX
        )
        self.disk = Pool("disk", threads=disk)

    def status(self) -> dict[str, tuple[int, int]]:
        """Returns, by pool, the running and the waiting calls."""
        pools = {
            "fetch": self.fetch,
            "large": self.large,
            "serving": self.serving,
            "jobs": self.jobs,
            "disk": self.disk,
        }
        return {name: pool.running_and_waiting for name, pool in pools.items()}

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> int:
        """Ends all pools: those that only use the disk when they are done, others after at most
        ``timeout_s``. Returns how many calls still run."""
        others = (self.fetch, self.large, self.serving, self.jobs, self.listing)
        left = await asyncio.gather(*(pool.close(timeout_s) for pool in others))
        return sum(left) + await self.disk.close(None)

    def fetching(self, size_bytes: int, *, from_origin: bool = False) -> Pool:
        """Returns the pool for a fetch of ``size_bytes``. ``from_origin``: it is for a peer, so it
        must not wait behind fetches that wait for peers."""
        if from_origin:
            return self.serving
        return self.large if size_bytes >= LARGE_SIZE_BYTES_MIN else self.fetch


def calls_left() -> bool:
    """Whether closed pools of this process have left calls running."""
    return any(pool.calls for pool in _given_up)


async def paused(wait_s: float) -> None:
    """Waits for ``wait_s`` seconds; returns at once if that is 0."""
    if wait_s > 0:
        await asyncio.sleep(wait_s)
