"""What the store was found to have damaged a moment ago: it fails at once, and is not read again.

A damaged chunk costs two reads of it and of its pack's index before it is known to be so; without
this memory every reader pays that anew, and with many readers so does the store. The memory is
short, so that a store that was repaired is seen soon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import NamedTuple

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.system.lru import Lru

KEPT_FOR_S = 5.0  # docs/safety.md says so
ENTRIES_MAX = 1024


class Known(NamedTuple):
    """A part [first, end) that is damaged, until when that is believed, and why it is."""

    first: int
    end: int
    until_s: float
    why: str


class DamagedChunks:
    """By any key, the last part [first, end) that was found to be damaged, and why. For any
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
        """Stores that the part was read twice and is damaged. It replaces the key's last part."""
        until_s = self._clock_s() + self._kept_for_s
        self._parts.put(key, Known(first, end, until_s, str(error)))

    def check(self, key: Hashable, first: int = 0, end: int = 1) -> None:
        """Raises Corrupt if [first, end) contains a part that is known to be damaged."""
        known = self.find(key, first, end)
        if known is not None:
            raise Corrupt(known.why)

    def find(self, key: Hashable, first: int, end: int) -> Known | None:
        """The part within [first, end) that is known to be damaged."""
        found = self._parts.get(key)
        if found is None:
            return None
        if self._clock_s() >= found.until_s:
            return None
        if not (first <= found.first and found.end <= end):
            return None
        why = f"{found.why} (found a moment ago: it is read again in a few seconds)"
        return found._replace(why=why)
