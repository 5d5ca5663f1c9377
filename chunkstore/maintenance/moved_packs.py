"""Packs that were moved into composites (docs/decisions/0051): what remains at their old places,
and how a repair finds their locations.

A pack in a composite may have an object of its own as well, left by a merge that died, or put by a
push, copy or compaction that did not know. And packs that were rewritten elsewhere or deleted
remain in a composite until all its used packs are moved out.
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
from lodefs.chunkstore.format.pack import PURGED, PackIndex, unpack_chunks
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.maintenance.compact import TRIES
from lodefs.chunkstore.maintenance.late_writes import drop_purged, holding
from lodefs.chunkstore.objects.interface import Part, read_whole
from lodefs.chunkstore.objects.pack_locations import PackLocations, composite_parts, place_of
from lodefs.chunkstore.repo.pack_reader import index_or_none
from lodefs.chunkstore.system.rate import Rate
from lodefs.chunkstore.types import Buffer

PACK_SIZE_BYTES_MAX = 1 << 30  # no pack is this large
_READS = 2  # a second one, as transport may have damaged the first

Places = Mapping[PackId, CompositePlace]
Purged = Callable[[], AbstractSet[ChunkId]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WholePack:
    """An object of a pack, with every byte verified. Nothing else is moved."""

    index: PackIndex
    data: Buffer
    etag: str


def fetch(
    objects: PackLocations, pack: tuple[PackId, int], seen: Places, rate: Rate
) -> WholePack | None:
    """Returns a pack's object; None for a pack that must stay where it is. ``seen`` are packs in
    composites. Raises: what the store raises."""
    pack_id, size_bytes = pack
    for count in range(1, _READS + 1):
        rate.take(size_bytes)
        try:
            if pack_id in seen:  # an own object beside it may have bytes that were purged since
                found = _verified(pack_id, objects.get_in_composite(pack_id, size=size_bytes))
            else:
                found = _verified(pack_id, objects.get(keys.pack(pack_id), size=size_bytes))
            break
        except (NotFound, Changed, Corrupt, UnknownFormat) as error:
            if count == _READS or not isinstance(error, Corrupt):
                _log.warning("pack %s is not moved: %s", pack_id.hex(), error)
                return None
    # A copy or a repair may still restore the chunks that a pack of its own lacks. In a composite
    # these would not count.
    return None if found.index.has_gone and pack_id not in seen else found


def move_out(
    objects: PackLocations, composites: AbstractSet[CompositeName], executor: Executor, rate: Rate
) -> None:
    """Moves all sound packs out of composites, and deletes each composite that has no others.
    Raises: what the store raises."""
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
        raise Corrupt(f"{keys.pack(pack_id)} has {size_bytes} bytes, which contradicts its index")
    unpack_chunks(index, 0, len(index), part.data)
    return WholePack(index, part.data, part.etag)


# Own objects beside composites


def _doubles(objects: PackLocations) -> list[PackId]:
    """Returns the packs in composites that also have an own object in a list."""
    places = objects.tables.newest().places
    listed = (keys.pack_of(i.key) for i in (objects.inner.list(keys.PACKS) if places else ()))
    return [pack for pack in listed if pack is not None and pack in places]


def doubles_with(
    objects: PackLocations, ids: AbstractSet[ChunkId], executor: Executor
) -> dict[PackId, int]:
    """Returns the packs whose own objects have bytes of these chunks (bits of their numbers). It
    skips damaged packs, since no reader gets anything from them. Raises: what the store raises."""
    found = holding(objects.inner, _doubles(objects) if ids else (), ids, executor)
    return {one.pack: one.chunks for one in found}


def drop_doubles(objects: PackLocations, executor: Executor) -> None:
    """Deletes the own objects of all packs in composites. Raises: what the store raises."""
    for _ in executor.map(lambda pack: drop_double(objects, pack), _doubles(objects)):
        pass


def drop_double(objects: PackLocations, pack_id: PackId) -> None:
    """Deletes a pack's own object if the composite has the pack undamaged. Chunks that only the own
    object has go into the composite first; chunks purged from it are removed there, too."""
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
        except (NotFound, Corrupt, UnknownFormat):  # gone, or useless
            index, data = inside.index, b""
        if index.codecs == inside.index.codecs:
            objects.inner.delete(keys.pack(pack_id))
            return
        if (place := place_of(inside.etag)) is not None:  # the place that it was read from
            objects.tables.put_packs({pack_id: data}, {pack_id: place})
    _log.warning("the own object of pack %s stays: others keep rewriting it", pack_id.hex())


def _joined(inside: WholePack, own: WholePack) -> tuple[PackIndex, bytes]:
    """Joins the chunks of two objects of a pack, except those that either says were purged."""
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


# Unused parts of composites


@dataclass(frozen=True, slots=True)
class Remains:
    """Bytes of chunks in a composite, at a place of a pack that is no longer used. ``index`` is
    that of the pack there; None if it, or the composite's list, is damaged or hidden, so that it
    may have them."""

    composite: CompositeName
    pack: PackId
    index: PackIndex | None


def find_remains(
    objects: PackLocations,
    ids: AbstractSet[ChunkId],
    executor: Executor,
    composites: Iterable[CompositeName] | None = None,
) -> list[Remains]:
    """Finds where bytes of these chunks remain, or may remain, in those composites, or in all.
    Raises: Corrupt for a lost table; what the store raises."""
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
    except NotFound:  # if a list shows it anyway, it is hidden and may have them
        is_listed = next(iter(objects.inner.list(place.composite.key, limit=1)), None) is not None
        return Remains(place.composite, pack, None) if is_listed else None
    except (Corrupt, UnknownFormat):
        return Remains(place.composite, pack, None)
    return Remains(place.composite, pack, index) if index.held(ids) else None


def drop_remains(
    objects: PackLocations, ids: AbstractSet[ChunkId], executor: Executor, rate: Rate
) -> list[PackId]:
    """Removes the bytes of these chunks that remain in composites. Returns the packs whose bytes
    must stay, since they lie beside a damaged pack, which a repair must move. Raises what
    find_remains raises."""
    found = find_remains(objects, ids, executor)
    move_out(objects, {one.composite for one in found}, executor, rate)
    left = objects.tables.newest().composites
    return sorted({one.pack for one in found if one.composite in left})


def drop_purged_remains(objects: PackLocations, executor: Executor, rate: Rate) -> None:
    """Does what drop_remains does for all purged chunks. A composite that was examined is examined
    again only after another purge, or when more of it is unused."""
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
    after = tables.unused_bytes()  # equal if nothing has changed meanwhile
    clean = {n: size for n, size in unused.items() if n not in hit and after.get(n) == size > 0}
    objects.inner.put(LOOKED, [encode_looked(PurgeScanState(newest, clean))])


def _looked(objects: PackLocations) -> PurgeScanState:
    """Returns an empty state if it is missing, damaged, or of a newer version. Raises: what the
    store raises."""
    try:
        return decode_looked(read_whole(objects, LOOKED, LOOKED_SIZE_BYTES_MAX).data, LOOKED)
    except (NotFound, Corrupt, UnknownFormat):
        return PurgeScanState()


# Locations of packs, from a list of composites


def restore_locations(
    objects: PackLocations, executor: Executor, purged: Purged, *, dry_run: bool
) -> tuple[str, str, str] | None:
    """Rebuilds a lost table from the composites. No pack that it names has chunks that ``purged``
    knows as purged; a pack may have them at an older place. Returns the key of what was lost, what
    was wrong, and its source; None if nothing was lost. Raises: what the store and ``purged``
    raise."""

    def cleaning(places: Places) -> Iterator[dict[PackId, Buffer]]:
        if gone := purged():
            for read in _read(objects, places, gone, executor, lambda one: one.is_hit):
                yield {one.pack: one.data for one in read}

    what = objects.tables.restore(dry_run=dry_run, cleaning=cleaning)
    if what and not dry_run:  # the used places may have changed since they were examined
        objects.inner.delete(LOOKED)
    return (TABLES, what, "the composites") if what else None


def purged_in_places(objects: PackLocations, executor: Executor) -> set[ChunkId]:
    """Returns the chunks that packs call purged, in their own objects and in all composites of a
    list, even in unused parts. It reads all of these."""
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
    """Deletes composites that no table names. If a repair may have overlooked some, their packs are
    put again first. Raises: Corrupt for a purge's document; what the store raises."""
    for _ in range(_READS):
        overlooked = objects.tables.sweep()
        if not overlooked or _put_again(objects, overlooked, executor):
            break
    if overlooked:
        objects.tables.sweep()


def _put_again(objects: PackLocations, overlooked: Places, executor: Executor) -> bool:
    """Returns False if somebody purged meanwhile: then the bytes that were read may be purged, and
    are not put."""
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
    """A pack's object without its purged chunks. ``is_hit``: it had bytes of such chunks."""

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
    """Yields the packs at those places, as many at a time as fit into a composite."""
    for some in composite_parts((pack, at.size_bytes) for pack, at in places.items()):
        read = executor.map(lambda one: _without(objects, one[0], places[one[0]], purged), some)
        if found := [one for one in read if one is not None and is_wanted(one)]:
            yield found


def _without(
    objects: PackLocations, pack: PackId, place: CompositePlace, purged: AbstractSet[ChunkId]
) -> _Read | None:
    """Returns None if the pack is missing. Damaged bytes stay, for `lodefs repair`."""
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
