"""Which groups of commits name which packs: 24 bytes a pack, however many groups there are."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from concurrent.futures import Executor

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.objects.interface import ObjectStore

_NOBODY = -1
_PREFIX_BYTES = 8


class PackCounts:
    """The packs of a store with their stored bytes, and bytes by group.

    Groups have numbers from 0; each names all of its packs before the next one begins. A pack is
    known by the first 8 bytes of its id.
    """

    def __init__(self, objects: ObjectStore, executor: Executor) -> None:
        """Lists the packs, in sixteen parts side by side."""
        self._ids = array("Q")
        self._sizes = array("Q")
        parts = [f"{keys.PACKS}{digit:x}" for digit in range(16)]
        for ids, sizes in executor.map(lambda prefix: _listed(objects, prefix), parts):
            self._ids.extend(ids)
            self._sizes.extend(sizes)
        self._first = array("i", [_NOBODY]) * len(self._ids)  # the group that named it first
        self._last = array("i", self._first)
        self.size_bytes = sum(self._sizes)
        self.stored_bytes: defaultdict[int, int] = defaultdict(int)  # of all that a group names
        self.sole_bytes: defaultdict[int, int] = defaultdict(int)  # that no other group names
        self.first_bytes: defaultdict[int, int] = defaultdict(int)  # that no group before it names

    def __len__(self) -> int:
        return len(self._ids)

    def name(self, pack: PackId, group: int) -> None:
        """A group names a pack. One that is not there counts for nothing."""
        at = self._find(pack)
        if at < 0 or self._last[at] == group:
            return
        size_bytes = self._sizes[at]
        self.stored_bytes[group] += size_bytes
        if self._first[at] == _NOBODY:
            self._first[at] = group
            self.first_bytes[group] += size_bytes
            self.sole_bytes[group] += size_bytes
        elif self._first[at] == self._last[at]:  # until now only that group had named it
            self.sole_bytes[self._first[at]] -= size_bytes
        self._last[at] = group

    def unnamed(self) -> tuple[int, int]:
        """Packs that no group names: how many, and their bytes."""
        sizes = [
            size for size, first in zip(self._sizes, self._first, strict=True) if first == _NOBODY
        ]
        return len(sizes), sum(sizes)

    def _find(self, pack: PackId) -> int:
        number = int.from_bytes(pack[:_PREFIX_BYTES])
        at = bisect_left(self._ids, number)
        return at if at < len(self._ids) and self._ids[at] == number else -1


def _listed(objects: ObjectStore, prefix: str) -> tuple[array[int], array[int]]:
    """The packs below a prefix, in the order of their ids, which is that of their keys."""
    ids, sizes = array("Q"), array("Q")
    for info in objects.list(prefix):
        if (pack := keys.pack_of(info.key)) is not None:
            ids.append(int.from_bytes(pack[:_PREFIX_BYTES]))
            sizes.append(info.size_bytes)
    return ids, sizes
