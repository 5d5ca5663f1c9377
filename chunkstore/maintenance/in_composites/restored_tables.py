"""The table of composites as a repair makes it again, by what a list of composites shows.

At some older place a pack may have bytes that were purged since, which nobody may read again. And
what the list has lacked is taken into the table when it is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from typing import NamedTuple

from lodefs.chunkstore.errors import Changed, Corrupt, NotFound, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import ChunkId, PackId
from lodefs.chunkstore.format.pack import PURGED, PackIndex
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.maintenance.compact import Rate
from lodefs.chunkstore.maintenance.in_composites.whole_packs import verified
from lodefs.chunkstore.maintenance.late_writes import drop_purged
from lodefs.chunkstore.objects.composites.composite_batch import composite_parts
from lodefs.chunkstore.objects.composites.composite_objects import CompositeObjects
from lodefs.chunkstore.objects.composites.layout import CompositePlace
from lodefs.chunkstore.objects.interface import Part
from lodefs.chunkstore.repo.pack_reader import read_index
from lodefs.chunkstore.types import Buffer

_TRIES = 2  # of one that was damaged on its way, maybe

Places = Mapping[PackId, CompositePlace]
Purged = Callable[[], AbstractSet[ChunkId]]


def restore_tables(
    objects: CompositeObjects, executor: Executor, purged: Purged, *, dry_run: bool
) -> str:
    """Makes a lost table again from the composites; no pack that it names has bytes that were
    purged, as far as ``purged`` knows. What was wrong; "" if nothing was. Raises: what the store
    and ``purged`` do."""

    def cleaning(places: Places) -> Iterator[dict[PackId, Buffer]]:
        if gone := purged():
            for read in _read(objects, places, gone, executor, lambda one: one.is_hit):
                yield {one.pack: one.data for one in read}

    what = objects.tables.restore(dry_run=dry_run, cleaning=cleaning)
    if what and not dry_run:  # other places may count now than when they were looked at
        objects.plain.delete(keys.COMPOSITES_LOOKED)
    return what


def purged_in_places(objects: CompositeObjects, executor: Executor) -> set[ChunkId]:
    """What packs say was purged, wherever they lie: as their own objects, and in all composites
    that a list shows, also where they count no more. It reads all of these."""
    own = ((pack, None) for i in objects.plain.list(keys.PACKS) if (pack := keys.pack_of(i.key)))
    found: set[ChunkId] = set()
    for some in executor.map(
        lambda one: _purged_at(objects, *one), [*own, *objects.tables.listed_places()]
    ):
        found.update(some)
    return found


def _purged_at(
    objects: CompositeObjects, pack: PackId, place: CompositePlace | None
) -> list[ChunkId]:
    try:
        if place is None:
            index = read_index(objects.plain, pack).index
        else:
            key = keys.composite(place.composite)
            part = objects.plain.get(key, offset=place.offset, size=place.size_bytes)
            index = PackIndex.decode(pack, part.data)
    except (NotFound, Changed, Corrupt, UnknownFormat):
        return []
    codecs = enumerate(index.codecs if index.has_gone else b"")
    return [index.chunk_id(number) for number, codec in codecs if codec == PURGED]


def sweep_composites(objects: CompositeObjects, executor: Executor) -> None:
    """Deletes composites that no table names. Of those that a repair may have overlooked, the packs
    are put again first. Raises: what the store does, Corrupt for a purge's document."""
    for _ in range(_TRIES):
        overlooked = objects.tables.sweep()
        if not overlooked or _put_again(objects, overlooked, executor):
            break
    if overlooked:
        objects.tables.sweep()


def _put_again(objects: CompositeObjects, overlooked: Places, executor: Executor) -> bool:
    """False if somebody purged meanwhile: what was read may be purged since, and is not put."""
    purges, before = Purges(objects), objects.tables.newest().places
    newest = purges.newest()

    def still() -> bool:
        return purges.newest(newest) == newest

    wanted = lambda one: one.is_sound or one.pack not in before  # noqa: E731
    for read in _read(objects, overlooked, _purged(objects), executor, wanted):
        objects.tables.put_packs({one.pack: one.data for one in read}, before, still)
        drop_purged(objects, [one.pack for one in read], executor, Rate(None))
    return still()


class _Read(NamedTuple):
    """A pack's object, without what was purged of it; ``is_hit``: it has had bytes of that."""

    pack: PackId
    data: Buffer
    is_hit: bool
    is_sound: bool


def _purged(objects: CompositeObjects) -> AbstractSet[ChunkId]:
    return Purges(objects).chunks()


def _read(
    objects: CompositeObjects,
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
    objects: CompositeObjects, pack: PackId, place: CompositePlace, purged: AbstractSet[ChunkId]
) -> _Read | None:
    """None if it is missing. What is damaged stays so, for who repairs it."""
    key = keys.composite(place.composite)
    found: _Read | None = None
    for _ in range(_TRIES):
        try:
            part = objects.plain.get(key, offset=place.offset, size=place.size_bytes)
            found = found or _Read(pack, part.data, is_hit=False, is_sound=False)
            index = PackIndex.decode(pack, part.data)
            numbers = (n for n in range(len(index)) if index.chunk_id(n) in purged)
            gone = sum(1 << n for n in numbers if not index.is_gone(n))
            data = _cut(index, gone, part.data) if gone else part.data
            found = _Read(pack, data, is_hit=gone > 0, is_sound=False)
            verified(pack, Part(part.data, place.size_bytes, part.etag))
            return found._replace(is_sound=True)
        except NotFound:
            break
        except (Corrupt, UnknownFormat):
            continue
    return found


def _cut(index: PackIndex, gone: int, data: Buffer) -> bytes:
    left, view = index.without(gone, PURGED), memoryview(data)
    runs = left.live_runs(0, len(left))
    parts = [view[index.offsets[at] : index.offsets[at + count]] for at, count in runs]
    return b"".join([*parts, left.encode()])
