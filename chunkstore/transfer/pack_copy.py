"""Copies one pack as it is, and checks every byte of it on the way."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from lodefs.chunkstore.errors import AlreadyExists, Changed, Conflict, Corrupt
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import ChunkId, PackId
from lodefs.chunkstore.format.pack import DROPPED, PURGED, PackIndex, unpack
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.objects.interface import Md5Buffers, ObjectStore
from lodefs.chunkstore.push.pack_check import is_whole
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion, read_pack
from lodefs.chunkstore.system.parallel_map import map_ahead
from lodefs.chunkstore.types import Buffer

_MD5_ETAG = re.compile(r'"([0-9a-f]{32})"\Z')


def copy_pack(
    source: ObjectStore,
    destination: ObjectStore,
    pack_id: PackId,
    purged: Collection[ChunkId],
    may_join: Callable[[], None],
) -> tuple[PackIndex, int]:
    """Copies a pack and checks all its chunks. Chunks that were purged in the destination are left
    out. ``may_join`` is that of put_pack. Returns the index of the resulting pack, and the bytes
    that were sent. Raises: what fetch_pack, the stores and ``may_join`` raise."""
    version, payload = _fetch_twice(source, pack_id)
    index, left = without_purged(version.index, payload, purged)
    md5 = md5_of(version.etag) if index is version.index else None
    return put_pack(destination, index, left, md5=md5, may_join=may_join)


@dataclass(frozen=True, slots=True)
class CopiedPack:
    """A pack that was put: its index, and the bytes that were sent. ``index`` None: it was not put,
    since another one with its id must be joined with it, which one process does alone."""

    index: PackIndex | None
    sent_bytes: int = 0


SendPacks = Callable[[Iterable[tuple[PackId, int]]], Iterator[CopiedPack]]
"""Copies packs, each given with its bytes, and yields the results in their order."""


def copy_group(
    source: ObjectStore, destination: ObjectStore, packs: Sequence[PackId], workers: int
) -> list[CopiedPack]:
    """Copies packs for another process, which has a place in the journal of the destination. Raises
    what copy_pack raises."""
    purged = Purges(destination).chunks()

    def copied(pack_id: PackId) -> CopiedPack:
        try:
            return CopiedPack(*copy_pack(source, destination, pack_id, purged, _refuse_join))
        except _Joins:
            return CopiedPack(None)

    with ThreadPoolExecutor(workers, "lodefs-copy") as executor:
        return list(map_ahead(executor, copied, packs, workers))


class _Joins(Conflict):
    """A pack must be joined with one that is there."""


def _refuse_join() -> None:
    raise _Joins("another pack is there")


def fetch_pack(source: ObjectStore, pack_id: PackId) -> tuple[PackIndex, Buffer]:
    """Returns the index and the stored chunks of a pack, each of which matches its id.

    It reads once more if the pack was rewritten meanwhile, or arrived damaged. Raises: NotFound,
    Corrupt, UnknownFormat; what the store raises.
    """
    version, payload = _fetch_twice(source, pack_id)
    return version.index, payload


def md5_of(etag: str) -> bytes | None:
    """Returns the MD5 that an ETag of S3 may be, for an object that was put at once; otherwise
    None."""
    found = _MD5_ETAG.match(etag)
    return None if found is None else bytes.fromhex(found[1])


def put_pack(
    destination: ObjectStore,
    index: PackIndex,
    payload: Buffer,
    *,
    overwrite: bool = False,
    md5: bytes | None = None,
    may_join: Callable[[], None] = lambda: None,
) -> tuple[PackIndex, int]:
    """Puts a checked pack without what was purged in the destination. Returns the index of the
    resulting pack and the bytes that were sent, 0 if the pack existed already. An existing pack
    gains the chunks that it lacks and loses none; ``overwrite`` replaces it. ``md5`` may be that of
    the object. ``may_join`` is called before an existing pack is read once more and overwritten; it
    raises if others may do so at once."""
    buffers: list[Buffer] = [payload, index.encode()]
    if md5 is not None:
        buffers = Md5Buffers(buffers, md5)
    put = partial(_put_pack, destination, index, payload, buffers, may_join, overwrite=overwrite)
    try:
        return put()
    except Changed:  # it was moved or rewritten
        return put()


def _put_pack(
    destination: ObjectStore,
    index: PackIndex,
    payload: Buffer,
    buffers: list[Buffer],
    may_join: Callable[[], None],
    *,
    overwrite: bool,
) -> tuple[PackIndex, int]:
    key = keys.pack(index.pack_id)
    try:
        destination.put(key, buffers, if_absent=not overwrite)
    except AlreadyExists:
        over = _over(destination, index, payload, buffers)
        if not over.is_there:
            may_join()
            over = _over(destination, index, payload, buffers)
        if over.is_there:
            return over.index, 0
        index, buffers = over.index, over.buffers
        destination.put(key, buffers)
    return index, sum(memoryview(buffer).nbytes for buffer in buffers)


@dataclass(frozen=True, slots=True)
class _Over:
    """The pack to put at a key. ``is_there``: the key has one already."""

    index: PackIndex
    buffers: list[Buffer]
    is_there: bool


def _over(
    destination: ObjectStore, index: PackIndex, payload: Buffer, buffers: list[Buffer]
) -> _Over:
    there = _there(destination, index)
    if there is None:
        return _Over(index, buffers, is_there=False)
    joined, parts = _joined(*there, index, payload)
    return _Over(joined, [*parts, joined.encode()], joined.codecs == there[0].codecs)


def _there(destination: ObjectStore, index: PackIndex) -> tuple[PackIndex, Buffer] | None:
    """Returns the existing pack at the key; None if it may be overwritten. Raises: Corrupt if it is
    damaged, and may have chunks that the new one lacks."""
    if not is_whole(destination, index.pack_id):
        return None
    try:
        return fetch_pack(destination, index.pack_id)
    except Corrupt:
        if index.has_gone:
            raise
        return None


def without_purged(
    index: PackIndex, payload: Buffer, purged: Collection[ChunkId]
) -> tuple[PackIndex, Buffer]:
    """Returns a pack without the chunks that were purged in its destination."""
    gone = index.held(purged) if purged else 0
    return index.cut(gone, PURGED, payload) if gone else (index, payload)


def _joined(
    there: PackIndex, there_payload: Buffer, index: PackIndex, payload: Buffer
) -> tuple[PackIndex, list[Buffer]]:
    """Returns a pack with the chunks that either of two copies has. The second one lacks what was
    purged in the store of the first. If its own codec says that a chunk was purged, that happened
    in the store that it came from."""
    parts: list[Buffer] = []
    codecs, stored_sizes = bytearray(), array("I")
    for n, codec in enumerate(there.codecs):
        is_better = codec == DROPPED or (codec == PURGED and not index.is_gone(n))
        one, data = (index, payload) if is_better else (there, there_payload)
        parts.append(memoryview(data)[one.offsets[n] : one.offsets[n + 1]])
        codecs.append(one.codecs[n])
        stored_sizes.append(one.stored_sizes[n])
    return PackIndex(there.ids, there.raw_sizes, stored_sizes, bytes(codecs)), parts


def check_payload(index: PackIndex, payload: Buffer) -> None:
    """Raises: Corrupt unless ``payload`` is the stored form of the chunks of a pack."""
    view = memoryview(payload)
    if view.nbytes != index.offsets[-1]:
        raise Corrupt(
            f"pack {index.pack_id.hex()} has {view.nbytes} bytes of chunks, but its index says "
            f"{index.offsets[-1]}"
        )
    for number, place in enumerate(index.places(0, len(index))):
        if index.is_gone(number):
            continue
        try:
            unpack(place, view[place.offset : place.offset + place.stored_size_bytes])
        except Corrupt as error:
            raise Corrupt(f"chunk {number} of pack {index.pack_id.hex()}: {error}") from error


def _fetch_twice(source: ObjectStore, pack_id: PackId) -> tuple[PackIndexVersion, Buffer]:
    try:
        return _fetch(source, pack_id)
    except (Changed, Corrupt):
        return _fetch(source, pack_id)


def _fetch(source: ObjectStore, pack_id: PackId) -> tuple[PackIndexVersion, Buffer]:
    version, payload = read_pack(source, pack_id)
    check_payload(version.index, payload)
    return version, payload
