"""What lies in crates and counts no more: packs there that were written again elsewhere since, or
were deleted. Their bytes go when all that counts has been moved out of the crate."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from dataclasses import dataclass

from lodefs.chunkstore.errors import Corrupt, NotFound, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import ChunkId, CrateName, PackId
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.maintenance.compact import Rate
from lodefs.chunkstore.maintenance.in_crates.whole_packs import fetch
from lodefs.chunkstore.objects.crates.crated import Crated
from lodefs.chunkstore.objects.crates.layout import CratePlace


@dataclass(frozen=True, slots=True)
class Remains:
    """Bytes of chunks in a crate, at a place of a pack that counts no more. ``index``: of the pack
    as it is there; None if that, or the crate's list, is damaged: it may have them."""

    crate: CrateName
    pack: PackId
    index: PackIndex | None


def find_remains(objects: Crated, ids: AbstractSet[ChunkId], executor: Executor) -> list[Remains]:
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
    unknown = {crate for crate, places in dead.items() if not places}
    for pack, place in objects.tables.newest().places.items():
        if place.crate in unknown:
            unknown.discard(place.crate)
            found.append(Remains(place.crate, pack, None))
    return found


def drop_remains(
    objects: Crated, ids: AbstractSet[ChunkId], executor: Executor, rate: Rate
) -> list[PackId]:
    """Removes the bytes of these chunks that remain in crates. Gives the packs whose bytes have to
    stay: beside one that is damaged, which a repair is to move. Raises: as of find_remains."""
    found = find_remains(objects, ids, executor)
    for crate in sorted({one.crate for one in found}):
        _empty(objects, crate, executor, rate)
    named = {place.crate for place in objects.tables.newest().places.values()}
    return sorted({one.pack for one in found if one.crate in named})


def drop_purged_remains(objects: Crated, executor: Executor, rate: Rate) -> None:
    """As drop_remains, of all chunks that purges wanted gone."""
    if objects.tables.newest().places:
        purged = frozenset(chunk for one in Purges(objects).after(-1) for chunk in one.chunks)
        if purged:
            drop_remains(objects, purged, executor, rate)


def _remains(
    objects: Crated, pack: PackId, place: CratePlace, ids: AbstractSet[ChunkId]
) -> Remains | None:
    key = keys.crate(place.crate)
    try:
        part = objects.plain.get(key, offset=place.offset, size=place.size_bytes)
        index = PackIndex.decode(pack, part.data)
    except NotFound:
        return None
    except (Corrupt, UnknownFormat):
        return Remains(place.crate, pack, None)
    held = (index.chunk_id(n) for n in range(len(index)) if not index.is_gone(n))
    return None if ids.isdisjoint(held) else Remains(place.crate, pack, index)


def _empty(objects: Crated, crate: CrateName, executor: Executor, rate: Rate) -> None:
    """Moves all sound packs out of a crate, which is deleted if that were all."""
    places = objects.tables.newest().places
    packs = [(pack, at.size_bytes) for pack, at in places.items() if at.crate == crate]
    read = [
        one
        for one in executor.map(lambda pack: fetch(objects, pack, places, rate), packs)
        if one is not None
    ]
    objects.tables.put_packs({one.index.pack_id: one.data for one in read}, places)
