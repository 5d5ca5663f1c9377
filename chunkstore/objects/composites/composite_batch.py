"""Packs in composites that are written again: many together, with one composite and one table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.objects.composites.composite_objects import CompositeObjects
from lodefs.chunkstore.objects.composites.layout import CompositePlace
from lodefs.chunkstore.types import Buffer

COMPOSITE_SIZE_BYTES = 32 * 1024 * 1024  # held in memory while it is made
COMPOSITE_PACKS_MAX = 16 * 1024


def composite_parts(packs: Iterable[tuple[PackId, int]]) -> Iterator[list[tuple[PackId, int]]]:
    """Packs with their sizes, as many at a time as go into one composite."""
    part: list[tuple[PackId, int]] = []
    room = COMPOSITE_SIZE_BYTES
    for pack, size_bytes in packs:
        if part and (size_bytes > room or len(part) == COMPOSITE_PACKS_MAX):
            yield part
            part, room = [], COMPOSITE_SIZE_BYTES
        part.append((pack, size_bytes))
        room -= size_bytes
    if part:
        yield part


class CompositeBatch:
    """What goes into the next composite, in memory until it is full or ``flush`` puts it. For one
    thread. Methods raise what CompositeTables.put_packs does; what was not put is lost then."""

    def __init__(self, objects: CompositeObjects) -> None:
        self._objects = objects
        self._packs: dict[PackId, Buffer] = {}
        self._seen: dict[PackId, CompositePlace] = {}
        self._size_bytes = 0
        self._taken: list[PackId] = []
        self.stayed: set[PackId] = set()  # that were moved since they were seen, and so not put

    def add(self, pack_id: PackId, data: Buffer, seen: CompositePlace) -> None:
        """A pack's whole object, and where the pack was when that was made of it."""
        size_bytes = memoryview(data).nbytes
        is_full = len(self._packs) == COMPOSITE_PACKS_MAX or pack_id in self._packs
        if is_full or self._size_bytes + size_bytes > COMPOSITE_SIZE_BYTES:
            self.flush()
        self._packs[pack_id], self._seen[pack_id] = data, seen
        self._size_bytes += size_bytes

    def take(self, pack_id: PackId, parts: Sequence[Buffer]) -> bool:
        """Adds a pack's object, if the pack lies in a composite now; whether it does. It is in the
        place of one of its own, too, that readers would take first."""
        place = self._objects.tables.newest().places.get(pack_id)
        if place is not None:
            self.add(pack_id, b"".join(parts), place)
            self._taken.append(pack_id)
        return place is not None

    def flush(self) -> None:
        """Puts what was added. Afterwards ``stayed`` is up to date."""
        packs, seen, taken = self._packs, self._seen, self._taken
        self._packs, self._seen, self._taken, self._size_bytes = {}, {}, [], 0
        put = self._objects.tables.put_packs(packs, seen) if packs else set()
        self.stayed |= packs.keys() - put
        for pack_id in taken:
            if pack_id in put:  # of one that stayed, an own object may have more than its place
                self._objects.plain.delete(keys.pack(pack_id))
