"""Merging: puts many small packs into few composites, where they keep their ids, and rewrites
composites with many unused bytes, as compaction rewrites packs (docs/decisions/0051)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from lodefs.chunkstore.errors import UNREADABLE, Changed, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.composite import (
    TABLE_PACKS_MAX,
    CompositeName,
    CompositePlace,
    CompositeTable,
)
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.maintenance.late_writes import drop_purged
from lodefs.chunkstore.maintenance.moved_packs import (
    Places,
    WholePack,
    drop_double,
    drop_doubles,
    drop_purged_remains,
    fetch,
    move_out,
    sweep_moved,
)
from lodefs.chunkstore.objects.composite_tables import NO_TABLE, unused_of
from lodefs.chunkstore.objects.in_place.virtual_packs import is_virtual_etag
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.objects.pack_locations import (
    COMPOSITE_SIZE_BYTES,
    composite_parts,
    locations_of,
)
from lodefs.chunkstore.repo.pack_reader import read_index
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.system.rate import Rate

BELOW_BYTES_MAX = COMPOSITE_SIZE_BYTES // 2
_GROWTH = 4  # a composite that is this many times larger than all that would join it stays

Sizes = Iterable[tuple[PackId, int]]
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Merged:
    """``packs`` of ``size_bytes`` that lay alone, or in ``objects_before`` composites, are now in
    ``objects``."""

    packs: int = 0
    size_bytes: int = 0
    objects_before: int = 0
    objects: int = 0


@dataclass(slots=True)
class Unused:
    """``objects`` composites were rewritten without ``freed_bytes`` that were unused. Others still
    have ``left_bytes`` that are unused."""

    objects: int = 0
    freed_bytes: int = 0
    left_bytes: int = 0


class Merging:
    """The work of one gc run on the locations of packs. With ``dry_run`` it only reports what it
    would do. Its methods raise what the store raises."""

    def __init__(
        self, objects: ObjectStore, executor: Executor, rate: Rate, *, dry_run: bool
    ) -> None:
        self._objects = locations_of(objects)
        self._tables = self._objects.tables
        self._executor = executor
        self._rate = rate
        self._dry_run = dry_run
        self._foreseen = NO_TABLE  # the table that a dry run would leave
        # Bytes that compaction would save, by pack, in a dry run
        self._smaller_by: Mapping[PackId, int] = {}

    def begin(self) -> None:
        """Removes what interrupted merges have left."""
        sweep_moved(self._objects, self._executor)
        drop_doubles(self._objects, self._executor)

    def combined(self) -> tuple[int, int]:
        """Returns how many packs lie in composites, and the number of these."""
        table = self._tables.newest()
        return len(table.places), len(table.composites)

    def forget(self, dead: Collection[PackId], smaller_by: Mapping[PackId, int]) -> None:
        """Removes packs that the gc run has deleted for good. ``smaller_by`` says by how much a dry
        run would make others smaller."""
        if self._dry_run:
            self._smaller_by = smaller_by
            self._foreseen = foreseen(self._tables.newest(), dead, smaller_by)
        else:
            self._tables.remove(dead)

    def merge(self, small: Sequence[tuple[PackId, int]], progress: Progress) -> Merged:
        """Puts small packs that are in use into composites. Damaged packs, packs that lack
        chunks and virtual packs stay where they are."""
        table = self._table()
        if not batches(small, table):
            return Merged()
        small = self._whole_packs(small, table)
        parts = batches(small, table)
        packs = [one for part in parts for one in part]
        before = {table.places[pack].composite for pack, _ in packs if pack in table.places}
        if self._dry_run:
            self._foreseen = foreseen(table, {pack for pack, _ in packs}, {})
            return Merged(len(packs), sum(size for _, size in packs), len(before), len(parts))
        if not parts:
            return Merged()
        self._tables.admit()
        return self._merge_all(small, progress)

    def rewrite(self, min_used: float | None) -> Unused:
        """Rewrites composites that use less than ``min_used`` (0 to 1; None: no composite) of their
        bytes. Otherwise the bytes of deleted, compacted or moved packs would stay until the whole
        composite is unused. A composite with damaged packs stays, for `lodefs repair`. Afterwards
        no purged bytes remain in unused parts."""
        table = self._table()
        if not table.places:
            return Unused()
        sizes_bytes = self._tables.sizes_bytes()
        unused = {name: n for name, n in unused_of(table, sizes_bytes).items() if n > 0}
        gone = {
            name
            for name, unused_bytes in unused.items()
            if sizes_bytes[name] - unused_bytes < (min_used or 0) * sizes_bytes[name]
        }
        if not self._dry_run:
            move_out(self._objects, gone, self._executor, self._rate)
            gone -= self._tables.newest().composites
            drop_purged_remains(self._objects, self._executor, self._rate)
        freed_bytes = sum(unused[name] for name in gone)
        return Unused(len(gone), freed_bytes, sum(unused.values()) - freed_bytes)

    def _table(self) -> CompositeTable:
        return self._foreseen if self._dry_run else self._tables.newest()

    def _whole_packs(self, small: Sizes, table: CompositeTable) -> list[tuple[PackId, int]]:
        """Returns the packs that may go into composites, or lie in one. A pack that lacks chunks
        stays alone, since a copy or a repair may still restore them, and so does a virtual one,
        which may be adopted."""

        def may_move(one: tuple[PackId, int]) -> bool:
            if one[0] in table.places:
                return True
            try:
                version = read_index(self._objects, one[0])
            except (*UNREADABLE, Changed):  # merging finds this out and reports it
                return True
            may_grow = version.index.has_gone or is_virtual_etag(version.etag)
            return one[0] not in self._smaller_by and not may_grow

        small = list(small)
        moves = self._executor.map(may_move, small)
        return [one for one, may in zip(small, moves, strict=True) if may]

    def _merge_all(self, small: Sizes, progress: Progress) -> Merged:
        result, purges = Merged(), Purges(self._objects)
        table, newest_purge = self._tables.newest(), purges.newest()
        parts = batches(_that_fit(small, table), table)
        progress.phase = f"merging {sum(map(len, parts))} packs"
        progress.files_done, progress.files_total = 0, sum(map(len, parts))
        places = table.places

        def still() -> bool:
            return purges.newest(newest_purge) == newest_purge

        before = {places[pack].composite for part in parts for pack, _ in part if pack in places}
        for part in parts:
            found = self._executor.map(
                lambda one: fetch(self._objects, one, places, self._rate), part
            )
            read = {one.index.pack_id: one for one in found if one is not None}
            progress.files_done += len(part)
            if len({places[pack].composite if pack in places else pack for pack in read}) < 2:
                continue  # too few are left: others are damaged or lack chunks
            packs = {pack: one.data for pack, one in read.items()}
            self._tables.put_packs(packs, places, still)
            for _ in self._executor.map(lambda one: self._drop_own(one, places), read.values()):
                pass
            if not still():
                break  # a purge may have changed what was read: the next merge reads it again
            drop_purged(self._objects, read, self._executor, self._rate)
            result.objects += 1
            result.packs += len(read)
            result.size_bytes += sum(map(len, packs.values()))
        result.objects_before = len(before - self._tables.newest().composites)
        return result

    def _drop_own(self, one: WholePack, seen: Places) -> None:
        """Deletes the own object of a pack that was put into a composite."""
        pack_id = one.index.pack_id
        if pack_id in seen or self._tables.find(pack_id) is None:
            return
        try:
            etag = self._objects.inner.head(keys.pack(pack_id)).etag
        except NotFound:
            return
        if etag == one.etag:
            # A writer that puts it from now on reads the table afterwards, and finds it there.
            self._objects.inner.delete(keys.pack(pack_id))
        else:
            drop_double(self._objects, pack_id)


def batches(small: Sizes, table: CompositeTable) -> list[list[tuple[PackId, int]]]:
    """Groups packs, with their sizes, for one composite each. It takes ``small`` packs, and those
    of composites with room, if fewer objects result."""
    composites: dict[CompositeName, list[tuple[PackId, int]]] = {}
    for pack, place in table.places.items():
        composites.setdefault(place.composite, []).append((pack, place.size_bytes))
    chosen = sorted(one for one in small if one[0] not in table.places)
    objects, size_bytes = len(chosen), sum(size for _, size in chosen)
    for packs in sorted(composites.values(), key=lambda packs: sum(size for _, size in packs)):
        own_bytes = sum(size for _, size in packs)
        if own_bytes > min(_GROWTH * (size_bytes or own_bytes), COMPOSITE_SIZE_BYTES // 2):
            break
        chosen += sorted(packs)
        objects += 1
        size_bytes += own_bytes
    found = list(composite_parts(chosen))
    return found if len(found) < objects else []


def foreseen(
    table: CompositeTable, gone: Collection[PackId], smaller_by: Mapping[PackId, int]
) -> CompositeTable:
    """Returns the table without packs that are deleted or merged, and with packs that get smaller
    by ``smaller_by`` bytes."""
    places = {pack: at for pack, at in table.places.items() if pack not in gone}
    name, room = CompositeName(table.number + 1, "f" * 16), COMPOSITE_SIZE_BYTES
    for pack in sorted(places.keys() & smaller_by.keys()):
        size_bytes = places[pack].size_bytes - smaller_by[pack]
        if size_bytes > room:
            name, room = CompositeName(name.number + 1, name.token), COMPOSITE_SIZE_BYTES
        places[pack] = CompositePlace(name, COMPOSITE_SIZE_BYTES - room, size_bytes)
        room -= size_bytes
    return replace(table, places=places)


def _that_fit(small: Sizes, table: CompositeTable) -> Sequence[tuple[PackId, int]]:
    room = max(0, TABLE_PACKS_MAX - len(table.places))
    new = [one for one in small if one[0] not in table.places]
    if len(new) > room:
        _log.warning("%d packs are not merged: the table of composites is full", len(new) - room)
    return new[:room]
