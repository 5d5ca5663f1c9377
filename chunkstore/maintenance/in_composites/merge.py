"""Merging: many small packs are put into few composites, and keep their ids
(docs/decisions/0051)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from lodefs.chunkstore.errors import Changed, Corrupt, NotFound, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import CompositeName, PackId
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.maintenance.compact import Rate
from lodefs.chunkstore.maintenance.in_composites.doubles import drop_double
from lodefs.chunkstore.maintenance.in_composites.whole_packs import WholePack, fetch
from lodefs.chunkstore.maintenance.late_writes import drop_purged
from lodefs.chunkstore.objects.composites.composite_batch import (
    COMPOSITE_SIZE_BYTES,
    composite_parts,
)
from lodefs.chunkstore.objects.composites.composite_objects import CompositeObjects
from lodefs.chunkstore.objects.composites.layout import (
    TABLE_PACKS_MAX,
    CompositePlace,
    CompositeTable,
)
from lodefs.chunkstore.repo.pack_reader import read_index
from lodefs.chunkstore.system.progress import Progress

BELOW_BYTES_MAX = COMPOSITE_SIZE_BYTES // 2
_GROWTH = 4  # a composite that is so many times larger than all that joins it stays as it is

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Merged:
    """``packs`` of ``size_bytes`` that were objects of their own, or in ``composites_before``, are
    now in ``composites``."""

    packs: int = 0
    size_bytes: int = 0
    composites_before: int = 0
    composites: int = 0


def batches(
    small: Iterable[tuple[PackId, int]], table: CompositeTable
) -> list[list[tuple[PackId, int]]]:
    """Which packs, with their sizes, go into one composite each: ``small`` ones, and those of
    composites with room, if there are fewer objects afterwards."""
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


def whole_packs(
    objects: CompositeObjects,
    small: Sequence[tuple[PackId, int]],
    table: CompositeTable,
    compacted: Container[PackId],
    executor: Executor,
) -> list[tuple[PackId, int]]:
    """Those that may be put into composites, or lie there: what a pack of its own lacks, a copy or
    a repair may yet bring. ``compacted``: packs that will lack chunks. Raises: what the store
    does."""

    def may_move(one: tuple[PackId, int]) -> bool:
        if one[0] in table.places:
            return True
        try:
            return one[0] not in compacted and not read_index(objects, one[0]).index.has_gone
        except (NotFound, Changed, Corrupt, UnknownFormat):  # merging finds out, and says so
            return True

    return [one for one, may in zip(small, executor.map(may_move, small), strict=True) if may]


def would_merge(small: Iterable[tuple[PackId, int]], table: CompositeTable) -> Merged:
    """What merging would do."""
    parts = batches(small, table)
    packs = [one for part in parts for one in part]
    before = {table.places[pack].composite for pack, _ in packs if pack in table.places}
    return Merged(len(packs), sum(size for _, size in packs), len(before), len(parts))


def merge_packs(
    objects: CompositeObjects,
    small: Sequence[tuple[PackId, int]],
    executor: Executor,
    rate: Rate,
    progress: Progress,
) -> Merged:
    """Puts small packs that are in use into composites. Those that are damaged, or lack chunks,
    stay where they are. Raises: what the store does."""
    result, purges = Merged(), Purges(objects)
    table, newest_purge = objects.tables.newest(), purges.newest()
    parts = batches(_that_fit(small, table), table)
    progress.phase = f"merging {sum(map(len, parts))} packs"
    progress.files_done, progress.files_total = 0, sum(map(len, parts))
    before = {
        table.places[pack].composite for part in parts for pack, _ in part if pack in table.places
    }
    for part in parts:
        found = executor.map(lambda one: fetch(objects, one, table.places, rate), part)
        read = [one for one in found if one is not None]
        progress.files_done += len(part)
        ids = [one.index.pack_id for one in read]
        if (
            len({table.places[pack].composite if pack in table.places else pack for pack in ids})
            < 2
        ):
            continue  # the others are damaged, or lack chunks
        still = lambda: purges.newest(newest_purge) == newest_purge  # noqa: E731
        if not _move(objects, read, table.places, executor, still):
            break  # what was read may have been purged since: the next merge reads it again
        drop_purged(objects, ids, executor, rate)
        result.composites += 1
        result.packs += len(read)
        result.size_bytes += sum(len(one.data) for one in read)
    left = {place.composite for place in objects.tables.newest().places.values()}
    result.composites_before = len(before - left)
    return result


def _that_fit(
    small: Sequence[tuple[PackId, int]], table: CompositeTable
) -> Sequence[tuple[PackId, int]]:
    room = max(0, TABLE_PACKS_MAX - len(table.places))
    new = [one for one in small if one[0] not in table.places]
    if len(new) > room:
        _log.warning("%d packs are not merged: the table of composites is full", len(new) - room)
    return new[:room]


def _move(
    objects: CompositeObjects,
    read: Sequence[WholePack],
    seen: Mapping[PackId, CompositePlace],
    executor: Executor,
    still: Callable[[], bool],
) -> bool:
    """Puts packs into a composite, then deletes their own objects. Whether it was, and is,
    allowed."""
    packs = {one.index.pack_id: one.data for one in read}
    objects.tables.put_packs(packs, seen, still)

    def drop(one: WholePack) -> None:
        pack_id = one.index.pack_id
        if pack_id in seen or objects.tables.find(pack_id) is None:
            return
        try:
            etag = objects.plain.head(keys.pack(pack_id)).etag
        except NotFound:
            return
        if etag == one.etag:
            # Who writes it from now on looks at the table afterwards, and finds it there.
            objects.plain.delete(keys.pack(pack_id))
        else:
            drop_double(objects, pack_id)

    for _ in executor.map(drop, read):
        pass
    return still()
