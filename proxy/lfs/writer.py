"""Writes for Git LFS, in a process of its own, so that cutting and compressing never delay reads.

Objects that come while a commit is being made share the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lodefs.chunkstore import python_process
from lodefs.chunkstore.errors import InvalidInput, LodefsError, Unavailable
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.protocol.orders.lfs_orders import Order, Outcome, PutObjects
from lodefs.chunkstore.protocol.orders.store_place import StorePlace
from lodefs.chunkstore.protocol.wire import error_of
from lodefs.proxy.runtime.store_process import StoreProcess

log = logging.getLogger("lodefs.lfs")

IDLE_S = 60.0  # without an order the process ends
ORDER_S_MAX = 3600.0
OBJECTS_MAX = 1000  # in one commit
LINE_BYTES_MAX = 64 << 20  # a list of 10,000 locks with long paths
_COMMAND = python_process.command("lodefs.chunkstore.push.lfs.writer")


@dataclass(frozen=True, slots=True)
class LfsSettings:
    """The store that is written to, and a directory for uploads and what else is kept of them."""

    place: StorePlace
    directory: Path


@dataclass(slots=True, eq=False)
class _Waiting:
    order: Order
    done: asyncio.Future[Outcome]


class LfsProcess:
    """Implements group_commits.Orders. For use on the event loop only."""

    def __init__(self, settings: LfsSettings) -> None:
        self._settings = settings
        self._waiting: deque[_Waiting] = deque()
        self._came = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def carry_out(self, order: Order) -> Outcome:
        waiting = _Waiting(order, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._came.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        outcome = await waiting.done
        if outcome.failure is not None:
            raise error_of(outcome.failure)
        return outcome

    async def close(self) -> None:
        """Ends the process. No client was told that an uncommitted write succeeded."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for one in self._waiting:
            one.done.set_exception(Unavailable("the proxy is stopping: repeat the command"))

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._until_idle()
        finally:
            self._task = None

    async def _until_idle(self) -> None:
        """Starts the process and has it carry out orders. After a failure, those that it has not
        begun stay for another one."""
        taken: Sequence[_Waiting] = tuple(self._waiting)  # they fail if it does not start
        error: LodefsError = Unavailable("the proxy is stopping: repeat the command")
        try:
            async with StoreProcess(_COMMAND, self._settings.place, LINE_BYTES_MAX) as process:
                while await self._has_order():
                    taken = self._next()
                    async with asyncio.timeout(ORDER_S_MAX):
                        outcome = await _ask(process, _joined(taken))
                    for one in taken:
                        if not one.done.done():
                            one.done.set_result(outcome)
        except (OSError, TimeoutError, ValueError, InvalidInput, EOFError) as problem:
            log.warning("the process that writes for Git LFS failed: %r", problem)
            error = Unavailable("the process that writes for Git LFS ended: repeat the command")
        finally:
            for one in taken:
                if not one.done.done():
                    one.done.set_exception(error)
            self._waiting = deque(one for one in self._waiting if not one.done.done())

    async def _has_order(self) -> bool:
        """Waits for an order. Returns whether there is one."""
        if not self._waiting:
            self._came.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._came.wait(), IDLE_S)
        return bool(self._waiting)

    def _next(self) -> Sequence[_Waiting]:
        """Takes the oldest order; with objects, also those that others put into its repository."""
        first = self._waiting.popleft()
        if not isinstance(first.order, PutObjects):
            return [first]
        repo = first.order.repo
        same = [
            one
            for one in self._waiting
            if isinstance(one.order, PutObjects) and one.order.repo == repo
        ][: OBJECTS_MAX - 1]
        for one in same:
            self._waiting.remove(one)
        return [first, *same]


def _joined(taken: Sequence[_Waiting]) -> Order:
    first = taken[0].order
    if not isinstance(first, PutObjects):
        return first
    files: dict[str, str] = {}
    for one in taken:
        assert isinstance(one.order, PutObjects)
        files |= one.order.files
    return PutObjects(first.repo, files)


async def _ask(process: StoreProcess, order: Order) -> Outcome:
    """Returns the outcome of an order. Raises: EOFError if the process has ended; OSError."""
    await process.tell(order)
    line = await process.line()
    if not line:
        raise EOFError(f"exit code {await process.end()}")
    return from_json(line, Outcome)
