"""What lies in composites and counts no more: packs there that were written again elsewhere since,
or were deleted. Their bytes go when all that counts has been moved out of the composite."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from dataclasses import dataclass

from lodefs.chunkstore.errors import Corrupt, NotFound, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import ChunkId, CompositeName, PackId
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.maintenance.compact import Rate
from lodefs.chunkstore.maintenance.in_composites.whole_packs import fetch
from lodefs.chunkstore.objects.composites.composite_objects import CompositeObjects
from lodefs.chunkstore.objects.composites.layout import CompositePlace


@dataclass(frozen=True, slots=True)
class Remains:
    """Bytes of chunks in a composite, at a place of a pack that counts no more. ``index``: of the
    pack as it is there; None if that, or the composite's list, is damaged: it may have them."""

    composite: CompositeName
    pack: PackId
    index: PackIndex | None


def find_remains(
    objects: CompositeObjects, ids: AbstractSet[ChunkId], executor: Executor
) -> list[Remains]:
    """Where bytes of these chunks remain, or may. Raises: what the store does, Corrupt for a lost
    table."""
    dead = objects.tables.dead_places()
    found = [
        one
        for one in executor.map(
            lambda at: _remains(objects, at[0], at[1], ids),
            [(pack, place) for places in dead.values() for pack, place in places.items()],
        )
        if one is not None
    ]
    unknown = {composite for composite, places in dead.items() if not places}
    for pack, place in objects.tables.newest().places.items():
        if place.composite in unknown:
            unknown.discard(place.composite)
            found.append(Remains(place.composite, pack, None))
    return found


def drop_remains(
    objects: CompositeObjects, ids: AbstractSet[ChunkId], executor: Executor, rate: Rate
) -> list[PackId]:
    """Removes the bytes of these chunks that remain in composites. Gives the packs whose bytes have
    to stay: beside one that is damaged, which a repair is to move. Raises: as of find_remains."""
    found = find_remains(objects, ids, executor)
    for composite in sorted({one.composite for one in found}):
        _empty(objects, composite, executor, rate)
    named = {place.composite for place in objects.tables.newest().places.values()}
    return sorted({one.pack for one in found if one.composite in named})


def drop_purged_remains(objects: CompositeObjects, executor: Executor, rate: Rate) -> None:
    """As drop_remains, of all chunks that purges wanted gone."""
    if objects.tables.newest().places:
        purged = frozenset(chunk for one in Purges(objects).after(-1) for chunk in one.chunks)
        if purged:
            drop_remains(objects, purged, executor, rate)


def _remains(
    objects: CompositeObjects, pack: PackId, place: CompositePlace, ids: AbstractSet[ChunkId]
) -> Remains | None:
    key = keys.composite(place.composite)
    try:
        part = objects.plain.get(key, offset=place.offset, size=place.size_bytes)
        index = PackIndex.decode(pack, part.data)
    except NotFound:
        return None
    except (Corrupt, UnknownFormat):
        return Remains(place.composite, pack, None)
    held = (index.chunk_id(n) for n in range(len(index)) if not index.is_gone(n))
    return None if ids.isdisjoint(held) else Remains(place.composite, pack, index)


def _empty(
    objects: CompositeObjects, composite: CompositeName, executor: Executor, rate: Rate
) -> None:
    """Moves all sound packs out of a composite, which is deleted if that were all."""
    places = objects.tables.newest().places
    packs = [(pack, at.size_bytes) for pack, at in places.items() if at.composite == composite]
    read = [
        one
        for one in executor.map(lambda pack: fetch(objects, pack, places, rate), packs)
        if one is not None
    ]
    objects.tables.put_packs({one.index.pack_id: one.data for one in read}, places)
