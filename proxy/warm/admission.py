"""How much of all warm jobs together is on its way: bounds their memory, and leaves room for
readers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

MIB = 1024 * 1024


class WindowSize(NamedTuple):
    """Units and raw bytes that may be on their way together; one unit always may."""

    units: int
    size_bytes: int


ALONE = WindowSize(24, 64 * MIB)  # eight whole units: as many as pull reads at a time
BESIDE_READERS = WindowSize(6, 24 * MIB)


class AdmissionWindow:
    """Admits units, in the order in which they ask. Used from the event loop alone."""

    def __init__(self, has_readers: Callable[[], bool]) -> None:
        """``has_readers``: whether somebody else is being fetched for just now."""
        self._has_readers = has_readers
        self._units = 0
        self._size_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size_bytes: int) -> None:
        """Returns when a unit of so many bytes may start."""
        if not self._waiting and self._has_room(size_bytes):
            self._take(size_bytes)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):  # passed over already
                    self._waiting.remove((size_bytes, turn))
            else:
                self.leave(size_bytes)
            raise

    def leave(self, size_bytes: int) -> None:
        """A unit is over."""
        self._units -= 1
        self._size_bytes -= size_bytes
        while self._waiting and self._has_room(self._waiting[0][0]):
            size_bytes, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._take(size_bytes)
                turn.set_result(None)

    def _has_room(self, size_bytes: int) -> bool:
        if not self._units:
            return True
        width = BESIDE_READERS if self._has_readers() else ALONE
        return self._units < width.units and self._size_bytes + size_bytes <= width.size_bytes

    def _take(self, size_bytes: int) -> None:
        self._units += 1
        self._size_bytes += size_bytes
