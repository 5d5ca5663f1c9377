"""A ServerCopy between two stores in memory: the reference, for tests."""

from __future__ import annotations

from collections.abc import Callable

from lodefs.chunkstore.errors import Changed
from tests.support.chunkstore.memory_objects import MemoryObjects


class MemoryServerCopy:
    """Copies bytes from one dictionary to another, or does what ``instead`` does."""

    def __init__(self, source: MemoryObjects, destination: MemoryObjects) -> None:
        self.copied: list[str] = []
        self.asked: list[str] = []
        self.instead: Callable[[str, str], str] | None = None
        self._source = source
        self._destination = destination

    def copy(self, key: str, if_match: str) -> str:
        self.asked.append(key)
        if self.instead is not None:
            return self.instead(key, if_match)
        part = self._source.get(key, size=1 << 30, if_match=if_match)
        if key in self._destination.objects:
            raise Changed(f"{key} is taken")
        self.copied.append(key)
        return self._destination.put(key, [part.data])

    def close(self) -> None:
        """Nothing to free."""
