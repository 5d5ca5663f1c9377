"""Purges that are lost or damaged: what they said follows from the packs, which tell of each chunk
whether it was purged.

A reader of the row of purges ends at a gap: who follows it would never see the ones behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from lodefs.chunkstore.errors import AlreadyExists, Corrupt, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import ChunkId
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.journal.purges import (
    CHUNKS_MAX,
    SIZE_BYTES_MAX,
    Purge,
    Purges,
    decode_purge,
    encode_purge,
)
from lodefs.chunkstore.objects.interface import ObjectStore, read_whole
from lodefs.chunkstore.repo.pack_reader import index_or_none

WHAT = "made again by a repair"
LOST = "lost"


def listed_purges(objects: ObjectStore) -> dict[int, Purge | str]:
    """All purges up to the newest one that a list shows, or what is wrong with them. Raises:
    UnknownFormat: who does not know what was purged brings it back."""
    last = -1
    for info in objects.list(keys.PURGES):
        digits = info.key.removeprefix(keys.PURGES)
        if digits.isdigit() and keys.purge(int(digits)) == info.key:
            last = max(last, int(digits))
    return {number: _read(objects, number) for number in range(last + 1)}


def purge_problems(purges: Mapping[int, Purge | str]) -> dict[str, str]:
    """What is wrong, by key."""
    return {keys.purge(n): what for n, what in purges.items() if isinstance(what, str)}


def known_purged(objects: ObjectStore) -> set[ChunkId]:
    """The chunks of all purges that can be read."""
    purges = listed_purges(objects)
    found = [one for one in purges.values() if isinstance(one, Purge)]
    if len(found) == len(purges):  # the list may lack the newest
        found += Purges(objects).after(len(purges) - 1)
    return {chunk for one in found for chunk in one.chunks}


def repair_purges(
    objects: ObjectStore,
    purges: Mapping[int, Purge | str],
    clock: Callable[[], float] = time.time,
) -> set[int]:
    """Puts those that are wrong again: what packs say was purged, and no other purge says, and no
    pack has: that was purged in another store, of which packs were copied. Gives
    the numbers of those that were there after all, or are of somebody who purges meanwhile: what
    they say stays."""
    bad = [number for number, what in purges.items() if isinstance(what, str)]
    if not bad:
        return set()
    known = {chunk for one in purges.values() if isinstance(one, Purge) for chunk in one.chunks}
    left = sorted(_purged_in_packs(objects) - known)
    kept = set()
    for number in bad:
        purge = Purge(number, int(clock()), WHAT, tuple(left[:CHUNKS_MAX]))
        there = _put_if_wrong(objects, purge)
        if there is not purge:
            kept.add(number)
        told = set(there.chunks) if there else set()
        left = [chunk for chunk in left if chunk not in told]
    if left:
        Purges(objects).append(left, WHAT, int(clock()))
    return kept


def _put_if_wrong(objects: ObjectStore, purge: Purge) -> Purge | None:
    """Puts a purge where there is none that can be read, now; the one that is there then, if that
    is known. A purge may be the last that tells of its chunks: it is never written over."""
    what = _read(objects, purge.number)
    if isinstance(what, Purge):
        return what
    try:
        objects.put(keys.purge(purge.number), [encode_purge(purge)], if_absent=what == LOST)
    except AlreadyExists:  # put meanwhile
        what = _read(objects, purge.number)
        return what if isinstance(what, Purge) else None
    return purge


def _purged_in_packs(objects: ObjectStore) -> set[ChunkId]:
    """What some packs say was purged, and none has. A purge takes a chunk out of all packs."""
    purged: set[ChunkId] = set()
    for index in _indexes(objects):
        purged.update(index.purged())
    for index in _indexes(objects) if purged else ():
        for number in range(len(index)):
            if not index.is_gone(number):
                purged.discard(index.chunk_id(number))
    return purged


def _indexes(objects: ObjectStore) -> Iterator[PackIndex]:
    for info in objects.list(keys.PACKS):
        pack_id = keys.pack_of(info.key)
        index = None if pack_id is None else index_or_none(objects, pack_id)
        if index is not None:
            yield index


def _read(objects: ObjectStore, number: int) -> Purge | str:
    key = keys.purge(number)
    try:
        return decode_purge(read_whole(objects, key, SIZE_BYTES_MAX).data, number, key)
    except NotFound:
        return LOST
    except Corrupt as error:
        return f"damaged: {error}"
