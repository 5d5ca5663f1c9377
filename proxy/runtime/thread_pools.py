"""The one bridge from asyncio to blocking code: thread pools with bounded queues.

Six pools, so that a stuck store cannot hold up reads of the disk, few threads only ever hold the
memory of a large transfer, nodes that wait for each other can still serve each other, one that is
silent holds up no fetch, and neither does a client that lists all repositories.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from traceback import walk_tb
from typing import Any, ParamSpec, TypeVar

from lodefs.chunkstore.errors import DeadlineExceeded, Unavailable

NOBODY, REMOTE = "", "remote"
current_owner: ContextVar[str] = ContextVar("current_owner", default=NOBODY)
"""For whom something is done: a user of this machine by number, a client that is not on it as
``remote_owner`` has it, NOBODY for the node itself. Tasks inherit it."""

P = ParamSpec("P")
T = TypeVar("T")

FETCH_THREADS = 32  # most of them wait for the store
LARGE_THREADS = 8
SERVING_THREADS = 8
JOBS_THREADS = 8  # that ask other nodes how far they are
LARGE_SIZE_BYTES_MIN = 1024 * 1024  # a fetch of this size is a large one
LISTING_THREADS = 4  # that list repositories, branches and tags
LISTING_CALLS_MAX = 64  # that wait for them; more are refused
DISK_THREADS = 4
QUEUE_CALLS_MAX = 4096
CLOSE_TIMEOUT_S = 2.0  # for calls that run at the end: a store may hang for minutes
_SUSPENDABLE = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


def remote_owner(name: str) -> str:
    """The owner of what clients on TCP want: ``name`` is that of their token or key for S3, or
    their address where there are none."""
    return f"{REMOTE} {name}"


def is_remote(owner: str) -> bool:
    """Whether an owner is a client on TCP."""
    return owner.startswith(REMOTE)


class Pool:
    """Threads for blocking calls. Used from one event loop. Nothing waits for its threads at the
    process's end: a call that hangs holds up nothing but its caller."""

    def __init__(self, name: str, *, threads: int, queue_calls_max: int = QUEUE_CALLS_MAX) -> None:
        self._name = name
        self.threads_max = threads
        self._calls_max = threads + queue_calls_max  # that run, and that wait of one owner
        self._changed = threading.Condition()  # guards what follows
        # By owner, the one whose turn is next first; none is empty.
        self._waiting: dict[str, dict[Future[Any], Callable[[], Any]]] = {}
        self._running = 0
        self._threads = 0
        self._idle = 0
        self._stopped = False

    @property
    def calls(self) -> int:
        """Running and waiting. A call whose caller has gone runs on, and counts."""
        with self._changed:
            return self._running + self._queued

    @property
    def running_and_waiting(self) -> tuple[int, int]:
        """How many calls run, and how many wait for a thread."""
        with self._changed:
            return self._running, self._queued

    @property
    def _queued(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The call's result or exception. Raises: Unavailable if the queue is full: each owner has
        one, so that nobody has another's calls refused.

        Cancelling the awaiting task does not stop a call that runs; one that waits is dropped.
        """
        within = copy_context()  # so that the thread knows for which request it works
        return await asyncio.wrap_future(self._submit(partial(within.run, call, *args, **kwargs)))

    async def bounded(self, what: str, deadline_s: float, call: Callable[[], T]) -> T:
        """As ``run``, but no longer than ``deadline_s``, waiting included. Raises:
        DeadlineExceeded.

        The thread is not stopped: the call's own time limits end it.
        """
        try:
            async with asyncio.timeout(deadline_s):
                return await self.run(call)
        except TimeoutError as error:
            raise DeadlineExceeded(f"{what} did not come within {deadline_s:g} s") from error

    async def close(self, timeout_s: float | None = CLOSE_TIMEOUT_S) -> int:
        """Drops what waits; returns when what runs has ended, or after ``timeout_s``: how many
        calls then run still. None: that is waited for, however long it takes."""
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
        future: Future[T] = Future()
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
        """The next call: owners in turns one each, so that none waits for all that another asked
        for before."""
        owner = next(iter(self._waiting))
        queue = self._waiting.pop(owner)
        future = next(iter(queue))
        call = queue.pop(future)
        if queue:
            self._waiting[owner] = queue
        return future, call

    def _drop(self, owner: str, future: Future[Any]) -> None:
        """Nobody waits any more for a call that has not begun."""
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
        """One call, with nothing of it left behind in this thread; False at the end."""
        with self._changed:
            while not self._queued:
                if self._stopped:
                    return False
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            future, call = self._take()
            if not future.set_running_or_notify_cancel():
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
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
            del error, future  # the error holds this frame
        return True


_given_up: list[Pool] = []


def _called(call: Callable[[], T]) -> T:
    """What the call gives. Its exception keeps no variables of the frames that it came through:
    they may have held a hundred MiB, and an exception that waits for a reader, or for the collector
    of cycles, would keep them."""
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
    """As traceback.clear_frames, but for generators and coroutines: an error that was raised before
    came through some that still run, and clearing these would end them."""
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
        """By pool: calls that run, and calls that wait."""
        pools = {
            "fetch": self.fetch,
            "large": self.large,
            "serving": self.serving,
            "jobs": self.jobs,
            "disk": self.disk,
        }
        return {name: pool.running_and_waiting for name, pool in pools.items()}

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> int:
        """Ends all of them: those that only use the disk when they are done, others also when
        they are not, after ``timeout_s``. How many calls then run still."""
        others = (self.fetch, self.large, self.serving, self.jobs, self.listing)
        left = await asyncio.gather(*(pool.close(timeout_s) for pool in others))
        return sum(left) + await self.disk.close(None)

    def fetching(self, size_bytes: int, *, from_origin: bool = False) -> Pool:
        """The pool for a fetch of so many bytes. ``from_origin``: for a peer, so that it must not
        wait behind fetches that wait for peers."""
        if from_origin:
            return self.serving
        return self.large if size_bytes >= LARGE_SIZE_BYTES_MIN else self.fetch


def calls_left() -> bool:
    """Whether pools of this process that are closed left calls behind, which run still."""
    return any(pool.calls for pool in _given_up)


async def paused(wait_s: float) -> None:
    """Returns after so many seconds; at once if there are none."""
    if wait_s > 0:
        await asyncio.sleep(wait_s)
