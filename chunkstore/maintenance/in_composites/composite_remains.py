"""What lies in composites and counts no more: packs there that were written again elsewhere since,
or were deleted. Their bytes go when all that counts has been moved out of the composite."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from dataclasses import dataclass

from lodefs.chunkstore.errors import Corrupt, NotFound, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import ChunkId, CompositeName, PackId
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.maintenance.compact import Rate
from lodefs.chunkstore.maintenance.in_composites.looked import (
    Looked,
    encode_looked,
    read_looked,
)
from lodefs.chunkstore.maintenance.in_composites.whole_packs import fetch
from lodefs.chunkstore.objects.composites.composite_batch import composite_parts
from lodefs.chunkstore.objects.composites.composite_objects import CompositeObjects
from lodefs.chunkstore.objects.composites.layout import CompositePlace


@dataclass(frozen=True, slots=True)
class Remains:
    """Bytes of chunks in a composite, at a place of a pack that counts no more. ``index``: of the
    pack as it is there; None if that, or the composite's list, is damaged or hidden: it may have
    them."""

    composite: CompositeName
    pack: PackId
    index: PackIndex | None


def find_remains(
    objects: CompositeObjects,
    ids: AbstractSet[ChunkId],
    executor: Executor,
    composites: Iterable[CompositeName] | None = None,
) -> list[Remains]:
    """Where bytes of these chunks remain, or may, in those composites, or all. Raises: what the
    store does, Corrupt for a lost table."""
    if composites is None:
        composites = objects.tables.unused_bytes()
    dead = objects.tables.dead_places(composites)
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
    move_out(objects, {one.composite for one in found}, executor, rate)
    named = {place.composite for place in objects.tables.newest().places.values()}
    return sorted({one.pack for one in found if one.composite in named})


def drop_purged_remains(objects: CompositeObjects, executor: Executor, rate: Rate) -> None:
    """As drop_remains, of all chunks that purges wanted gone. A composite that was looked at is
    looked at again only after another purge, or when more of it counts no more."""
    unused = objects.tables.unused_bytes() if objects.tables.newest().places else {}
    newest = Purges(objects).newest() if unused else -1
    if newest < 0:
        return
    looked = read_looked(objects)
    known = looked.unused if looked.purge == newest else {}
    new = {name for name, size_bytes in unused.items() if known.get(name) != size_bytes}
    if not new:
        return
    purged = Purges(objects).chunks()
    hit = {one.composite for one in find_remains(objects, purged, executor, new)}
    move_out(objects, hit, executor, rate)
    after = objects.tables.unused_bytes()  # the same, where nothing has changed meanwhile
    clean = {n: size for n, size in unused.items() if n not in hit and after.get(n) == size > 0}
    objects.plain.put(keys.COMPOSITES_LOOKED, [encode_looked(Looked(newest, clean))])


def move_out(
    objects: CompositeObjects,
    composites: AbstractSet[CompositeName],
    executor: Executor,
    rate: Rate,
) -> None:
    """Moves all sound packs out of composites, each of which is deleted if that were all. Raises:
    what the store does."""
    places = objects.tables.newest().places
    packs = ((pack, at.size_bytes) for pack, at in places.items() if at.composite in composites)
    for some in composite_parts(packs):
        found = executor.map(lambda pack: fetch(objects, pack, places, rate), some)
        read = {one.index.pack_id: one.data for one in found if one is not None}
        if read:
            objects.tables.put_packs(read, places)


def _remains(
    objects: CompositeObjects, pack: PackId, place: CompositePlace, ids: AbstractSet[ChunkId]
) -> Remains | None:
    key = keys.composite(place.composite)
    try:
        part = objects.plain.get(key, offset=place.offset, size=place.size_bytes)
        index = PackIndex.decode(pack, part.data)
    except NotFound:  # one that a list shows all the same is hidden, and may have them
        is_listed = next(iter(objects.plain.list(key, limit=1)), None) is not None
        return Remains(place.composite, pack, None) if is_listed else None
    except (Corrupt, UnknownFormat):
        return Remains(place.composite, pack, None)
    held = (index.chunk_id(n) for n in range(len(index)) if not index.is_gone(n))
    return None if ids.isdisjoint(held) else Remains(place.composite, pack, index)
