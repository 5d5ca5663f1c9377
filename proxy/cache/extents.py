"""The known places of bytes in the cache, in memory: for one dataset file, and for packs."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from lodefs.chunkstore.format.names import PackId
from lodefs.proxy.cache.cache_file import CacheFile

EXTENTS_MAX = 4096  # for one dataset file or pack; beyond it, all are forgotten and learned again
PACK_EXTENTS_MAX = 256 * 1024  # for all packs; each takes 200 bytes


class Run(NamedTuple):
    """Bytes [start, end) of a dataset file or pack, and where the first of them lies."""

    start: int
    end: int
    file: CacheFile
    offset: int


class Extents:
    """Runs of the bytes of a dataset file, or of the raw bytes of a pack, sorted.

    A run is dropped when its file is gone, or has become stale since the run was added.
    """

    __slots__ = ("_ends", "_files", "_shifts", "_staled", "_starts")

    def __init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return len(self._starts)

    def clear(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._files: list[CacheFile] = []
        self._staled: list[int] = []  # ``staled`` of each file when its run was added
        self._shifts: list[int] = []  # from an offset in the dataset file to one in the cache file

    def add(self, start: int, size_bytes: int, file: CacheFile, offset: int) -> None:
        """Adds a run; one that continues its neighbour is merged with it."""
        at = bisect_right(self._starts, start)
        end, shift = start + size_bytes, offset - start
        if at and self._ends[at - 1] >= end and self._is_good(at - 1):
            return
        if at and self._ends[at - 1] >= start and self._is(at - 1, file, shift):
            at -= 1
            self._ends[at] = end
        elif len(self._starts) >= EXTENTS_MAX:
            self.clear()
            self._insert(0, start, end, file, shift)
            return
        else:
            self._insert(at, start, end, file, shift)
        after = at + 1
        while after < len(self._starts) and self._starts[after] <= self._ends[at]:
            if self._is(after, file, shift):
                self._ends[at] = max(self._ends[at], self._ends[after])
            elif self._ends[after] > self._ends[at]:
                break
            self._forget(after)  # it is a part of this run, and would hide what follows it

    def find(self, start: int) -> tuple[CacheFile, int, int] | None:
        """Returns cache file, offset and size of the extent from ``start`` on, if it is known."""
        at = self._at(start)
        if at < 0:
            return None
        return self._files[at], start + self._shifts[at], self._ends[at] - start

    def run(self, start: int) -> Run | None:
        """Returns the whole run with the byte ``start``, unless it was dropped."""
        at = self._at(start)
        if at < 0:
            return None
        first = self._starts[at]
        return Run(first, self._ends[at], self._files[at], first + self._shifts[at])

    def _at(self, start: int) -> int:
        while True:
            at = bisect_right(self._starts, start) - 1
            if at < 0:
                return -1
            if self._is_good(at):
                return at if start < self._ends[at] else -1
            self._forget(at)

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


class PackExtents:
    """The places of packs' chunks in the cache, by their raw offsets in the pack.

    Fetches and index lookups add to it, so that reads of neighbours need no lookup. The least
    recently used packs are dropped. For use on the event loop only.
    """

    def __init__(self) -> None:
        self._packs: OrderedDict[PackId, Extents] = OrderedDict()
        self._extents = 0  # in all packs

    def add(self, pack: PackId, runs: Iterable[Run]) -> None:
        extents = self._packs.get(pack)
        if extents is None:
            extents = self._packs[pack] = Extents()
        self._packs.move_to_end(pack)
        before = len(extents)
        for start, end, file, offset in runs:
            extents.add(start, end - start, file, offset)
        self._extents += len(extents) - before
        while self._extents > PACK_EXTENTS_MAX and len(self._packs) > 1:
            _, oldest = self._packs.popitem(last=False)
            self._extents -= len(oldest)

    def run(self, pack: PackId, raw_offset: int) -> Run | None:
        """Returns the run with a raw byte of a pack, if it is known."""
        extents = self._packs.get(pack)
        if extents is None:
            return None
        self._packs.move_to_end(pack)
        before = len(extents)
        found = extents.run(raw_offset)  # may drop runs
        self._extents += len(extents) - before
        return found
