"""What is known in memory of where the bytes of one dataset file lie in the cache."""

from __future__ import annotations

from bisect import bisect_right

from lodefs.proxy.cache.cache_file import CacheFile

EXTENTS_MAX = 4096  # of one dataset file; beyond, all are forgotten and learned again


class Extents:
    """Runs of a dataset file's bytes: start and end in it, cache file, offset there. Sorted.

    A run is forgotten when its file is gone, or has become stale since the run was learned.
    """

    __slots__ = ("_ends", "_files", "_shifts", "_staled", "_starts")

    def __init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return len(self._starts)

    def clear(self) -> None:
        """Forgets all."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._files: list[CacheFile] = []
        self._staled: list[int] = []  # of each file, when its run was learned
        self._shifts: list[int] = []  # from an offset in the dataset file to that in the cache's

    def add(self, start: int, size_bytes: int, file: CacheFile, offset: int) -> None:
        """Learns a run; one that continues its neighbour becomes a part of it."""
        at = bisect_right(self._starts, start)
        end, shift = start + size_bytes, offset - start
        if at and self._ends[at - 1] >= end and self._is_good(at - 1):
            return
        if at and self._ends[at - 1] == start and self._is(at - 1, file, shift):
            self._ends[at - 1] = end
            at -= 1
        elif len(self._starts) >= EXTENTS_MAX:
            self.clear()
            self.add(start, size_bytes, file, offset)
            return
        else:
            self._insert(at, start, end, file, shift)
        after = at + 1
        if (
            after < len(self._starts)
            and self._starts[after] == end
            and self._is(after, file, shift)
        ):
            self._ends[at] = self._ends[after]
            self._forget(after)

    def find(self, start: int) -> tuple[CacheFile, int, int] | None:
        """The cache file, offset there and size of what is known from ``start`` on, unless it
        is forgotten."""
        at = bisect_right(self._starts, start) - 1
        if at < 0 or self._ends[at] <= start:
            return None
        file = self._files[at]
        if not self._is_good(at):
            self._forget(at)
            return self.find(start)
        return file, start + self._shifts[at], self._ends[at] - start

    def _is_good(self, at: int) -> bool:
        file = self._files[at]
        return file.is_alive and self._staled[at] == file.staled

    def _is(self, at: int, file: CacheFile, shift: int) -> bool:
        return self._files[at] is file and self._shifts[at] == shift and self._is_good(at)

    def _forget(self, at: int) -> None:
        for column in (self._starts, self._ends, self._files, self._staled, self._shifts):
            del column[at]

    def _insert(self, at: int, start: int, end: int, file: CacheFile, shift: int) -> None:
        self._starts.insert(at, start)
        self._ends.insert(at, end)
        self._files.insert(at, file)
        self._staled.insert(at, file.staled)
        self._shifts.insert(at, shift)
