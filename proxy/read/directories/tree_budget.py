"""Limits the bytes of trees in memory while directories are loaded.

Until they are rows in the node's index, a tree's entries take up to 13 times the bytes of its
stored form. The size that a directory claims is counted before any of it is held. Small trees have
their own room, so that a huge one, hostile or just slow, delays nobody else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from lodefs.chunkstore.errors import DeadlineExceeded

SMALL_SIZE_BYTES_MAX = 1024 * 1024  # of a tree: some ten thousand entries
SMALL_ROOM_SIZE_BYTES = 8 * 1024 * 1024
LARGE_ROOM_SIZE_BYTES = 24 * 1024 * 1024  # a larger tree is loaded when no other large one is


class TreeRoom:
    """The room of a node. For use on the event loop only."""

    def __init__(
        self,
        *,
        deadline_s: float,
        small_size_bytes: int = SMALL_ROOM_SIZE_BYTES,
        large_size_bytes: int = LARGE_ROOM_SIZE_BYTES,
    ) -> None:
        """``deadline_s`` is how long a caller waits for room."""
        self._deadline_s = deadline_s
        self._small = _Room(small_size_bytes)
        self._large = _Room(large_size_bytes)

    @asynccontextmanager
    async def of(self, size_bytes: int, what: str) -> AsyncIterator[None]:
        """Yields when there is room for trees that claim ``size_bytes``, in the order of calls.
        Raises: DeadlineExceeded, which names ``what``."""
        room = self._small if size_bytes <= SMALL_SIZE_BYTES_MAX else self._large
        taken_bytes = min(size_bytes, room.size_bytes)
        try:
            async with asyncio.timeout(self._deadline_s):
                await room.take(taken_bytes)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"{what}: other large directories were loaded for {self._deadline_s:g} s"
            ) from error
        try:
            yield
        finally:
            room.give_back(taken_bytes)


class _Room:
    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._free_bytes = size_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size_bytes: int) -> None:
        if not self._waiting and size_bytes <= self._free_bytes:
            self._free_bytes -= size_bytes
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the turn came just now
                self.give_back(size_bytes)
            else:
                with suppress(ValueError):  # it is skipped when room becomes free
                    self._waiting.remove((size_bytes, turn))
                self._let_in()
            raise

    def give_back(self, size_bytes: int) -> None:
        self._free_bytes += size_bytes
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            size_bytes, turn = self._waiting[0]
            if not turn.done():  # otherwise it was cancelled, and its waiter has not noticed yet
                if size_bytes > self._free_bytes:
                    return
                self._free_bytes -= size_bytes
                turn.set_result(None)
            self._waiting.popleft()
