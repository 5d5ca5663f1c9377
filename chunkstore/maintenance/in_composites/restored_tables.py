"""The table of composites as a repair makes it again, by what a list of composites shows.

At some older place a pack may have bytes that were purged since, which nobody may read again. And
what the list has lacked is taken into the table when it is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from typing import NamedTuple

from lodefs.chunkstore.errors import Corrupt, NotFound, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import ChunkId, PackId
from lodefs.chunkstore.format.pack import PURGED, PackIndex
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.maintenance.in_composites.whole_packs import verified
from lodefs.chunkstore.objects.composites.composite_batch import composite_parts
from lodefs.chunkstore.objects.composites.composite_objects import CompositeObjects
from lodefs.chunkstore.objects.composites.layout import CompositePlace
from lodefs.chunkstore.objects.interface import Part
from lodefs.chunkstore.types import Buffer

_TRIES = 2  # of one that was damaged on its way, maybe

Places = Mapping[PackId, CompositePlace]


def restore_tables(objects: CompositeObjects, executor: Executor, *, dry_run: bool) -> str:
    """Makes a lost table again from the composites; no pack that it names has bytes that were
    purged. What was wrong; "" if nothing was. Raises: what the store does, Corrupt for a purge's
    document."""

    def cleaning(places: Places) -> Iterator[dict[PackId, Buffer]]:
        if purged := _purged(objects):
            for read in _read(objects, places, purged, executor, lambda one: one.is_hit):
                yield {one.pack: one.data for one in read}

    what = objects.tables.restore(dry_run=dry_run, cleaning=cleaning)
    if what and not dry_run:  # other places may count now than when they were looked at
        objects.plain.delete(keys.COMPOSITES_LOOKED)
    return what


def sweep_composites(objects: CompositeObjects, executor: Executor) -> None:
    """Deletes composites that no table names. Of those that a repair may have overlooked, the packs
    are put again first. Raises: as of restore_tables."""
    overlooked = objects.tables.sweep()
    if not overlooked:
        return
    before = objects.tables.newest().places
    wanted = lambda one: one.is_sound or one.pack not in before  # noqa: E731
    for read in _read(objects, overlooked, _purged(objects), executor, wanted):
        objects.tables.put_packs({one.pack: one.data for one in read}, before)
    objects.tables.sweep()


class _Read(NamedTuple):
    """A pack's object, without what was purged of it; ``is_hit``: it has had bytes of that."""

    pack: PackId
    data: Buffer
    is_hit: bool
    is_sound: bool


def _purged(objects: CompositeObjects) -> AbstractSet[ChunkId]:
    return frozenset(chunk for one in Purges(objects).after(-1) for chunk in one.chunks)


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
