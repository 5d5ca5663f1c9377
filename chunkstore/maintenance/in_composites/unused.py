"""Composites of which too little counts are put again, as packs are compacted: without what was
deleted, compacted or written again elsewhere. Else such bytes stay until all that counts has gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from lodefs.chunkstore.format.names import CompositeName, PackId
from lodefs.chunkstore.maintenance.compact import Rate
from lodefs.chunkstore.maintenance.in_composites.composite_remains import move_out
from lodefs.chunkstore.objects.composites.composite_batch import COMPOSITE_SIZE_BYTES
from lodefs.chunkstore.objects.composites.composite_objects import CompositeObjects
from lodefs.chunkstore.objects.composites.composite_tables import unused_of
from lodefs.chunkstore.objects.composites.layout import CompositePlace, CompositeTable


@dataclass(slots=True)
class Unused:
    """So many composites were put again, without ``freed_bytes`` that did not count; ``left_bytes``
    that do not count stay in others."""

    composites: int = 0
    freed_bytes: int = 0
    left_bytes: int = 0


def rewrite_sparse(
    objects: CompositeObjects, min_used: float | None, executor: Executor, rate: Rate
) -> Unused:
    """Puts composites again of which less than ``min_used`` (0 to 1; None: nothing is put) counts.
    One with damaged packs stays, for who repairs it. Raises: what the store does."""
    table = objects.tables.newest()
    if not table.places:
        return Unused()
    sizes_bytes = objects.tables.sizes_bytes()
    sparse = _sparse(table, sizes_bytes, min_used)
    move_out(objects, sparse, executor, rate)
    named = {place.composite for place in objects.tables.newest().places.values()}
    return _amount(table, sizes_bytes, sparse - named)


def would_rewrite(
    table: CompositeTable, sizes_bytes: Mapping[CompositeName, int], min_used: float | None
) -> Unused:
    """What that would do with such a table."""
    return _amount(table, sizes_bytes, _sparse(table, sizes_bytes, min_used))


def foreseen(
    table: CompositeTable, gone: Collection[PackId], smaller_by: Mapping[PackId, int]
) -> CompositeTable:
    """The table without packs that are deleted or merged, and with others that are written again
    and then take so many bytes less."""
    places = {pack: at for pack, at in table.places.items() if pack not in gone}
    name, room = CompositeName(table.number + 1, "f" * 16), COMPOSITE_SIZE_BYTES
    for pack in sorted(places.keys() & smaller_by.keys()):
        size_bytes = places[pack].size_bytes - smaller_by[pack]
        if size_bytes > room:
            name, room = CompositeName(name.number + 1, name.token), COMPOSITE_SIZE_BYTES
        places[pack] = CompositePlace(name, COMPOSITE_SIZE_BYTES - room, size_bytes)
        room -= size_bytes
    return replace(table, places=places)


def _sparse(
    table: CompositeTable, sizes_bytes: Mapping[CompositeName, int], min_used: float | None
) -> set[CompositeName]:
    found = unused_of(table, sizes_bytes)
    return {
        name
        for name, unused_bytes in found.items()
        if unused_bytes > 0
        and sizes_bytes[name] - unused_bytes < (min_used or 0) * sizes_bytes[name]
    }


def _amount(
    table: CompositeTable,
    sizes_bytes: Mapping[CompositeName, int],
    gone: Collection[CompositeName],
) -> Unused:
    found = {name: n for name, n in unused_of(table, sizes_bytes).items() if n > 0}
    freed_bytes = sum(found[name] for name in gone)
    return Unused(len(gone), freed_bytes, sum(found.values()) - freed_bytes)
