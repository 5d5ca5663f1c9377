"""The names of a store's repositories, listed in the background and kept for a while.

A list of a store may cost two calls for each repository. So it is read in groups, and who wants the
first page gets it as soon as it is there.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable

from lodefs.proxy.catalog import RepositoryPage

FRESH_S = 10.0  # then it is read again, and meanwhile shown as it was
FIRST_NAMES = 200  # of the first group, which somebody waits for
GROUP_NAMES = 2000  # of the others
NAMES_MAX = 100_000
PATIENCE_S = 5.0  # for a page that is not there yet

ReadGroup = Callable[[str, int], Awaitable[list[str]]]


class RepositoryNames:
    """The names of one store. Used from the event loop."""

    def __init__(self, read: ReadGroup, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        """``read`` gives the names after one, at most so many."""
        self._read = read
        self._clock_s = clock_s
        self._names: list[str] = []
        self._is_complete = False
        self._read_s = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._came = asyncio.Event()

    async def page(self, after: str, limit: int, keep: Callable[[str], bool]) -> RepositoryPage:
        """Names after one, at most ``limit``, as soon as so many are known. Raises what reading
        them raises, if none is known yet."""
        self._begin()
        ends_s = self._clock_s() + PATIENCE_S
        while True:
            self._came.clear()
            reading = self._reading
            found = self._find(after, limit + 1, keep)
            if len(found) > limit or self._is_complete or reading is None:
                break
            left_s = ends_s - self._clock_s()
            if left_s <= 0:
                break
            await self._wait(reading, left_s)
        if reading is not None and reading.done() and not self._names:
            reading.result()
        more = len(found) > limit
        return RepositoryPage(found[:limit], more, self._is_complete)

    async def _wait(self, reading: asyncio.Task[None], timeout_s: float) -> None:
        came = asyncio.create_task(self._came.wait())
        try:
            await asyncio.wait(
                (came, reading), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            came.cancel()

    async def close(self) -> None:
        """No more is read."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _find(self, after: str, limit: int, keep: Callable[[str], bool]) -> list[str]:
        names = self._names
        found: list[str] = []
        for n in range(bisect_right(names, after) if after else 0, len(names)):
            if keep(names[n]):
                found.append(names[n])
                if len(found) == limit:
                    break
        return found

    def _begin(self) -> None:
        if self._reading is not None and not self._reading.done():
            return
        if self._is_complete and self._clock_s() - self._read_s < FRESH_S:
            return
        self._reading = asyncio.create_task(self._read_all())
        self._reading.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _read_all(self) -> None:
        names: list[str] = []
        if not self._is_complete:  # it was broken off: what is known by then is shown meanwhile
            self._names = names
        while len(names) < NAMES_MAX:
            wanted = GROUP_NAMES if names else FIRST_NAMES
            group = await self._read(names[-1] if names else "", wanted)
            names += group
            self._came.set()
            if len(group) < wanted:
                break
        self._names, self._is_complete, self._read_s = sorted(names), True, self._clock_s()
