"""Places for uploads, which tokens share: nobody can take all of them from the others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PLACES = 32


class UploadPlaces:
    """A number of places. A token gets another place as long as it has fewer than are free: half of
    them if it is alone, and one beside any other, however slow the other's uploads are (dynamic
    thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 6 (2), 1998). For one event
    loop."""

    def __init__(self, places: int = PLACES) -> None:
        self._free = places
        self._taken: Counter[str] = Counter()  # by token
        self._changed = asyncio.Event()  # replaced when it is set

    @asynccontextmanager
    async def place(self, token: str) -> AsyncIterator[None]:
        """Waits for a place, and holds it for a block."""
        while self._taken[token] >= self._free:
            await self._changed.wait()
        self._free -= 1
        self._taken[token] += 1
        try:
            yield
        finally:
            self._free += 1
            self._taken[token] -= 1
            if not self._taken[token]:
                del self._taken[token]
            self._changed.set()
            self._changed = asyncio.Event()
