"""A short memory of damage in the store: reads of damaged bytes fail at once, without reading
again.

A damaged chunk costs two reads of it and of its pack's index before the damage is certain. Without
this memory every reader would pay that again, and so would the store. The memory is short, so that
repairs are noticed soon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import NamedTuple

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.system.lru import Lru

KEPT_FOR_S = 5.0  # docs/safety.md gives this figure
ENTRIES_MAX = 1024


class Known(NamedTuple):
    """A damaged part [first, end), until when that is believed, and the reason."""

    first: int
    end: int
    until_s: float
    why: str


class DamagedChunks:
    """The last part [first, end) that was found to be damaged, and the reason, by any key. For any
    thread."""

    def __init__(
        self,
        *,
        kept_for_s: float = KEPT_FOR_S,
        entries_max: int = ENTRIES_MAX,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kept_for_s = kept_for_s
        self._clock_s = clock_s
        self._parts: Lru[Hashable, Known] = Lru(entries_max)

    def note(self, key: Hashable, error: Corrupt, first: int = 0, end: int = 1) -> None:
        """Adds a part that was read twice and is damaged. It replaces the key's last part."""
        until_s = self._clock_s() + self._kept_for_s
        self._parts.put(key, Known(first, end, until_s, str(error)))

    def check(self, key: Hashable, first: int = 0, end: int = 1) -> None:
        """Raises: Corrupt if [first, end) contains a known damaged part."""
        known = self.find(key, first, end)
        if known is not None:
            raise Corrupt(known.why)

    def find(self, key: Hashable, first: int, end: int) -> Known | None:
        """Returns the known damaged part within [first, end)."""
        found = self._parts.get(key)
        if found is None:
            return None
        if self._clock_s() >= found.until_s:
            return None
        if not (first <= found.first and found.end <= end):
            return None
        why = f"{found.why} (found a moment ago: try again in a few seconds)"
        return found._replace(why=why)
