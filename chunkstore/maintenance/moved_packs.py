"""Packs that were moved into composites (docs/decisions/0051): what is left where they lay before,
and where they lie, as a repair finds it out again.

A pack in a composite may have an object of its own as well: a merge that died left it, or a push, a
copy, a compaction that did not know. And what was written again elsewhere since, or deleted, stays
in a composite until all that counts has been moved out of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple

from lodefs.chunkstore.errors import Changed, Corrupt, NotFound, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.composite import (
    LOOKED,
    LOOKED_SIZE_BYTES_MAX,
    TABLES,
    CompositeName,
    CompositePlace,
    PurgeScanState,
    decode_looked,
    encode_looked,
)
from lodefs.chunkstore.format.names import ChunkId, PackId
from lodefs.chunkstore.format.pack import PURGED, PackIndex
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.maintenance.compact import TRIES, Rate
from lodefs.chunkstore.maintenance.late_writes import drop_purged, holding
from lodefs.chunkstore.objects.interface import Part, read_whole
from lodefs.chunkstore.objects.pack_locations import PackLocations, composite_parts, place_of
from lodefs.chunkstore.repo.pack_reader import index_or_none, unpack_chunks
from lodefs.chunkstore.types import Buffer

PACK_SIZE_BYTES_MAX = 1 << 30  # none has so many
_READS = 2  # of one that was damaged on its way, maybe

Places = Mapping[PackId, CompositePlace]
Purged = Callable[[], AbstractSet[ChunkId]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WholePack:
    """An object of a pack, as it was read, every byte of it verified: nothing else is moved."""

    index: PackIndex
    data: Buffer
    etag: str


def fetch(
    objects: PackLocations, pack: tuple[PackId, int], seen: Places, rate: Rate
) -> WholePack | None:
    """A pack's object; None for one that is to stay where it is. ``seen``: those in composites.
    Raises: what the store does."""
    pack_id, size_bytes = pack
    for count in range(1, _READS + 1):
        rate.take(size_bytes)
        try:
            if pack_id in seen:  # an own object beside that may have what was purged since
                found = _verified(pack_id, objects.get_in_composite(pack_id, size=size_bytes))
            else:
                found = _verified(pack_id, objects.get(keys.pack(pack_id), size=size_bytes))
            break
        except (NotFound, Changed, Corrupt, UnknownFormat) as error:
            if count == _READS or not isinstance(error, Corrupt):
                _log.warning("pack %s is not moved: %s", pack_id.hex(), error)
                return None
    # What a pack of its own lacks, a copy or a repair may yet bring: in a composite it would not
    # count.
    return None if found.index.has_gone and pack_id not in seen else found


def move_out(
    objects: PackLocations, composites: AbstractSet[CompositeName], executor: Executor, rate: Rate
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


def _verified(pack_id: PackId, part: Part) -> WholePack:
    """Raises: Corrupt, UnknownFormat."""
    size_bytes = part.object_size_bytes
    index = PackIndex.decode(pack_id, part.data)
    if len(part.data) != size_bytes or index.offsets[-1] + len(index.encode()) != size_bytes:
        raise Corrupt(f"{keys.pack(pack_id)} has {size_bytes} bytes, which is not what it says")
    unpack_chunks(index, 0, len(index), part.data)
    return WholePack(index, part.data, part.etag)


# own objects beside composites


def _doubles(objects: PackLocations) -> list[PackId]:
    """The packs in composites that have an object of their own, which a list shows."""
    places = objects.tables.newest().places
    listed = (keys.pack_of(i.key) for i in (objects.inner.list(keys.PACKS) if places else ()))
    return [pack for pack in listed if pack is not None and pack in places]


def doubles_with(
    objects: PackLocations, ids: AbstractSet[ChunkId], executor: Executor
) -> dict[PackId, int]:
    """Those whose own objects have bytes of these chunks, by the bits of their numbers. One that is
    damaged is left out: no reader gets anything of it. Raises: what the store does."""
    found = holding(objects.inner, _doubles(objects) if ids else (), ids, executor)
    return {one.pack: one.chunks for one in found}


def drop_doubles(objects: PackLocations, executor: Executor) -> None:
    """Deletes the own objects of all packs that are in composites. Raises: what the store does."""
    for _ in executor.map(lambda pack: drop_double(objects, pack), _doubles(objects)):
        pass


def drop_double(objects: PackLocations, pack_id: PackId) -> None:
    """Deletes a pack's own object, if the composite has it undamaged. What the own object has more
    goes into the composite first; what was purged of it goes from the composite too."""
    for _ in range(TRIES):
        try:
            place = objects.tables.find(pack_id)
            size_bytes = place.size_bytes if place is not None else 0
            inside = _verified(pack_id, objects.get_in_composite(pack_id, size=size_bytes))
        except (NotFound, Corrupt, UnknownFormat) as error:
            _log.warning("the own object of pack %s stays: %s", pack_id.hex(), error)
            return
        try:
            part = objects.inner.get(keys.pack(pack_id), size=PACK_SIZE_BYTES_MAX)
            index, data = _joined(inside, _verified(pack_id, part))
        except (NotFound, Corrupt, UnknownFormat):  # gone, or of no use to anybody
            index, data = inside.index, b""
        if index.codecs == inside.index.codecs:
            objects.inner.delete(keys.pack(pack_id))
            return
        if (place := place_of(inside.etag)) is not None:  # where that was read
            objects.tables.put_packs({pack_id: data}, {pack_id: place})
    _log.warning("the own object of pack %s stays: others write it again and again", pack_id.hex())


def _joined(inside: WholePack, own: WholePack) -> tuple[PackIndex, bytes]:
    """A pack with the chunks that one of two objects of it has, and neither says were purged."""
    codecs, sizes, stored = bytearray(inside.index.codecs), inside.index.stored_sizes[:], []
    for n in range(len(inside.index)):
        source = inside if not inside.index.is_gone(n) or own.index.is_gone(n) else own
        index = source.index
        codecs[n], sizes[n] = index.codecs[n], index.stored_sizes[n]
        if PURGED in (inside.index.codecs[n], own.index.codecs[n]):
            codecs[n], sizes[n] = PURGED, 0
        begin = index.offsets[n]
        stored.append(memoryview(source.data)[begin : begin + sizes[n]])
    joined = PackIndex(inside.index.ids, inside.index.raw_sizes, sizes, bytes(codecs))
    return joined, b"".join([*stored, joined.encode()])


# what counts no more in composites


@dataclass(frozen=True, slots=True)
class Remains:
    """Bytes of chunks in a composite, at a place of a pack that counts no more. ``index``: of the
    pack as it is there; None if that, or the composite's list, is damaged or hidden: it may have
    them."""

    composite: CompositeName
    pack: PackId
    index: PackIndex | None


def find_remains(
    objects: PackLocations,
    ids: AbstractSet[ChunkId],
    executor: Executor,
    composites: Iterable[CompositeName] | None = None,
) -> list[Remains]:
    """Where bytes of these chunks remain, or may, in those composites, or all. Raises: what the
    store does, Corrupt for a lost table."""
    tables = objects.tables
    dead = tables.dead_places(tables.unused_bytes() if composites is None else composites)
    places = [one for some in dead.values() for one in some.items()]
    remains = executor.map(lambda one: _remains(objects, one[0], one[1], ids), places)
    found = [one for one in remains if one is not None]
    unknown = {composite for composite, some in dead.items() if not some}
    for pack, place in tables.newest().places.items():
        if place.composite in unknown:
            unknown.discard(place.composite)
            found.append(Remains(place.composite, pack, None))
    return found


def _remains(
    objects: PackLocations, pack: PackId, place: CompositePlace, ids: AbstractSet[ChunkId]
) -> Remains | None:
    try:
        index = PackIndex.decode(pack, objects.read(place).data)
    except NotFound:  # one that a list shows all the same is hidden, and may have them
        is_listed = next(iter(objects.inner.list(place.composite.key, limit=1)), None) is not None
        return Remains(place.composite, pack, None) if is_listed else None
    except (Corrupt, UnknownFormat):
        return Remains(place.composite, pack, None)
    return Remains(place.composite, pack, index) if index.held(ids) else None


def drop_remains(
    objects: PackLocations, ids: AbstractSet[ChunkId], executor: Executor, rate: Rate
) -> list[PackId]:
    """Removes the bytes of these chunks that remain in composites. Gives the packs whose bytes have
    to stay: beside one that is damaged, which a repair is to move. Raises: as of find_remains."""
    found = find_remains(objects, ids, executor)
    move_out(objects, {one.composite for one in found}, executor, rate)
    left = objects.tables.newest().composites
    return sorted({one.pack for one in found if one.composite in left})


def drop_purged_remains(objects: PackLocations, executor: Executor, rate: Rate) -> None:
    """As drop_remains, of all chunks that purges wanted gone. A composite that was looked at is
    looked at again only after another purge, or when more of it counts no more."""
    tables, purges = objects.tables, Purges(objects)
    unused = tables.unused_bytes() if tables.newest().places else {}
    newest = purges.newest() if unused else -1
    if newest < 0:
        return
    looked = _looked(objects)
    known = looked.unused if looked.purge == newest else {}
    new = {name for name, size_bytes in unused.items() if known.get(name) != size_bytes}
    if not new:
        return
    hit = {one.composite for one in find_remains(objects, purges.chunks(), executor, new)}
    move_out(objects, hit, executor, rate)
    after = tables.unused_bytes()  # the same, where nothing has changed meanwhile
    clean = {n: size for n, size in unused.items() if n not in hit and after.get(n) == size > 0}
    objects.inner.put(LOOKED, [encode_looked(PurgeScanState(newest, clean))])


def _looked(objects: PackLocations) -> PurgeScanState:
    """Nothing, if it is not there, damaged, or a newer version's. Raises: what the store does."""
    try:
        return decode_looked(read_whole(objects, LOOKED, LOOKED_SIZE_BYTES_MAX).data, LOOKED)
    except (NotFound, Corrupt, UnknownFormat):
        return PurgeScanState()


# where packs lie, by what a list of composites shows


def restore_locations(
    objects: PackLocations, executor: Executor, purged: Purged, *, dry_run: bool
) -> tuple[str, str, str] | None:
    """Makes a lost table again from the composites; no pack that it names has bytes that were
    purged, as far as ``purged`` knows: at some older place a pack may have such. The key of what
    was lost, what was wrong, and what it was made of; None if nothing was. Raises: what the store
    and ``purged`` do."""

    def cleaning(places: Places) -> Iterator[dict[PackId, Buffer]]:
        if gone := purged():
            for read in _read(objects, places, gone, executor, lambda one: one.is_hit):
                yield {one.pack: one.data for one in read}

    what = objects.tables.restore(dry_run=dry_run, cleaning=cleaning)
    if what and not dry_run:  # other places may count now than when they were looked at
        objects.inner.delete(LOOKED)
    return (TABLES, what, "the composites") if what else None


def purged_in_places(objects: PackLocations, executor: Executor) -> set[ChunkId]:
    """What packs say was purged, wherever they lie: as their own objects, and in all composites
    that a list shows, also where they count no more. It reads all of these."""
    own = ((pack, None) for i in objects.inner.list(keys.PACKS) if (pack := keys.pack_of(i.key)))
    places = [*own, *objects.tables.listed_places()]
    found = executor.map(lambda one: _purged_at(objects, *one), places)
    return {chunk for some in found for chunk in some}


def _purged_at(objects: PackLocations, pack: PackId, place: CompositePlace | None) -> list[ChunkId]:
    if place is None:
        index = index_or_none(objects.inner, pack)
        return [] if index is None else index.purged()
    try:
        return PackIndex.decode(pack, objects.read(place).data).purged()
    except (NotFound, Changed, Corrupt, UnknownFormat):
        return []


def sweep_moved(objects: PackLocations, executor: Executor) -> None:
    """Deletes composites that no table names. Of those that a repair may have overlooked, the packs
    are put again first. Raises: what the store does, Corrupt for a purge's document."""
    for _ in range(_READS):
        overlooked = objects.tables.sweep()
        if not overlooked or _put_again(objects, overlooked, executor):
            break
    if overlooked:
        objects.tables.sweep()


def _put_again(objects: PackLocations, overlooked: Places, executor: Executor) -> bool:
    """False if somebody purged meanwhile: what was read may be purged since, and is not put."""
    purges, before = Purges(objects), objects.tables.newest().places
    newest = purges.newest()

    def still() -> bool:
        return purges.newest(newest) == newest

    wanted = lambda one: one.is_sound or one.pack not in before  # noqa: E731
    for read in _read(objects, overlooked, purges.chunks(), executor, wanted):
        objects.tables.put_packs({one.pack: one.data for one in read}, before, still)
        drop_purged(objects, [one.pack for one in read], executor, Rate(None))
    return still()


class _Read(NamedTuple):
    """A pack's object, without what was purged of it; ``is_hit``: it has had bytes of that."""

    pack: PackId
    data: Buffer
    is_hit: bool
    is_sound: bool


def _read(
    objects: PackLocations,
    places: Places,
    purged: AbstractSet[ChunkId],
    executor: Executor,
    is_wanted: Callable[[_Read], bool],
) -> Iterator[list[_Read]]:
    """The packs at those places, as many at a time as a composite takes."""
    for some in composite_parts((pack, at.size_bytes) for pack, at in places.items()):
        read = executor.map(lambda one: _without(objects, one[0], places[one[0]], purged), some)
        if found := [one for one in read if one is not None and is_wanted(one)]:
            yield found


def _without(
    objects: PackLocations, pack: PackId, place: CompositePlace, purged: AbstractSet[ChunkId]
) -> _Read | None:
    """None if it is missing. What is damaged stays so, for who repairs it."""
    found: _Read | None = None
    for _ in range(_READS):
        try:
            part = objects.read(place)
            found = found or _Read(pack, part.data, is_hit=False, is_sound=False)
            index = PackIndex.decode(pack, part.data)
            data = part.data
            if gone := index.held(purged):
                left, payload = index.cut(gone, PURGED, part.data)
                data = payload + left.encode()
            found = _Read(pack, data, is_hit=gone > 0, is_sound=False)
            _verified(pack, part)
            return found._replace(is_sound=True)
        except NotFound:
            break
        except (Corrupt, UnknownFormat):
            continue
    return found
