"""Repairs lost or damaged purges. What they said follows from the packs, whose indexes say of each
chunk whether it was purged.

Purges are numbered without gaps. A reader stops at a gap, so it would never see the purges after
it.
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
    """Returns all purges up to the newest one that a list shows, or what is wrong with them.
    Raises: UnknownFormat, since whoever does not know what was purged could bring it back."""
    last = -1
    for info in objects.list(keys.PURGES):
        digits = info.key.removeprefix(keys.PURGES)
        if digits.isdigit() and keys.purge(int(digits)) == info.key:
            last = max(last, int(digits))
    return {number: _read(objects, number) for number in range(last + 1)}


def purge_problems(purges: Mapping[int, Purge | str]) -> dict[str, str]:
    """Returns what is wrong, by key."""
    return {keys.purge(n): what for n, what in purges.items() if isinstance(what, str)}


def known_purged(objects: ObjectStore) -> set[ChunkId]:
    """Returns the chunks of all purges that can be read."""
    purges = listed_purges(objects)
    found = [one for one in purges.values() if isinstance(one, Purge)]
    if len(found) == len(purges):  # the list may lack the newest one
        found += Purges(objects).after(len(purges) - 1)
    return {chunk for one in found for chunk in one.chunks}


def repair_purges(
    objects: ObjectStore,
    purges: Mapping[int, Purge | str],
    clock: Callable[[], float] = time.time,
) -> set[int]:
    """Replaces bad purges by the chunks that packs call purged, that no other purge names, and that
    no pack has. (A chunk that some pack has was purged in another store, from which packs were
    copied.) Returns the numbers of purges that exist after all, or that somebody makes meanwhile:
    they stay."""
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
    """Puts a purge if there is none that can be read now. Otherwise returns the existing one, if it
    can be read. It never overwrites a purge, which may be the last one that names its chunks."""
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
    """Returns chunks that some packs call purged and none has, since a purge removes a chunk from
    all packs."""
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
