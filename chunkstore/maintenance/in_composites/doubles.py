"""Packs that lie in composites and have an object of their own as well: a merge that died left it,
or a push, a copy, a compaction that did not know."""

from __future__ import annotations

import logging
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from dataclasses import dataclass

from lodefs.chunkstore.errors import Changed, Corrupt, NotFound, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import ChunkId, PackId
from lodefs.chunkstore.format.pack import PURGED, PackIndex
from lodefs.chunkstore.maintenance.compact import TRIES
from lodefs.chunkstore.maintenance.in_composites.whole_packs import (
    PACK_SIZE_BYTES_MAX,
    WholePack,
    verified,
)
from lodefs.chunkstore.objects.composites.composite_objects import CompositeObjects, split_etag
from lodefs.chunkstore.repo.pack_reader import read_index

_log = logging.getLogger(__name__)


def doubles(objects: CompositeObjects) -> list[PackId]:
    """Those that a list shows. Raises: what the store does."""
    places = objects.tables.newest().places
    if not places:
        return []
    listed = (keys.pack_of(info.key) for info in objects.plain.list(keys.PACKS))
    return [pack for pack in listed if pack is not None and pack in places]


def doubles_with(
    objects: CompositeObjects, ids: AbstractSet[ChunkId], executor: Executor
) -> dict[PackId, int]:
    """Those whose own objects have bytes of these chunks, by the bits of their numbers. One that is
    damaged is left out: no reader gets anything of it. Raises: what the store does."""
    found = doubles(objects) if ids else []
    held = executor.map(lambda pack: _held(objects, pack, ids), found)
    return {pack: bits for pack, bits in zip(found, held, strict=True) if bits}


def drop_doubles(objects: CompositeObjects, executor: Executor) -> None:
    """Deletes the own objects of all packs that are in composites. Raises: what the store does."""
    for _ in executor.map(lambda pack: drop_double(objects, pack), doubles(objects)):
        pass


def drop_double(objects: CompositeObjects, pack_id: PackId) -> None:
    """Deletes a pack's own object, if the composite has it undamaged. What the own object has more
    goes into the composite first; what was purged of it goes from the composite too."""
    for _ in range(TRIES):
        joined = _join(objects, pack_id)
        if joined is None:
            return
        if joined.index.codecs == joined.inside.index.codecs:
            objects.plain.delete(keys.pack(pack_id))
            return
        if (found := split_etag(joined.inside.etag)) is not None:  # where that was read
            objects.tables.put_packs({pack_id: joined.data}, {pack_id: found[0]})
    _log.warning("the own object of pack %s stays: others write it again and again", pack_id.hex())


@dataclass(frozen=True, slots=True)
class _Joined:
    """What is in a composite, and that with what the pack's own object says."""

    inside: WholePack
    index: PackIndex
    data: bytes


def _join(objects: CompositeObjects, pack_id: PackId) -> _Joined | None:
    """None, with a warning, if the composite lacks it, or has it damaged."""
    try:
        place = objects.tables.find(pack_id)
        size_bytes = place.size_bytes if place is not None else 0
        inside = verified(pack_id, objects.get_in_composite(pack_id, size=size_bytes))
    except (NotFound, Corrupt, UnknownFormat) as error:
        _log.warning("the own object of pack %s stays: %s", pack_id.hex(), error)
        return None
    try:
        own = verified(pack_id, objects.plain.get(keys.pack(pack_id), size=PACK_SIZE_BYTES_MAX))
    except (NotFound, Corrupt, UnknownFormat):  # gone, or of no use to anybody
        own = inside
    return _Joined(inside, *_joined(inside, own))


def _held(objects: CompositeObjects, pack_id: PackId, ids: AbstractSet[ChunkId]) -> int:
    try:
        index = read_index(objects.plain, pack_id).index
    except (NotFound, Corrupt, UnknownFormat, Changed):
        return 0
    numbers = (n for n in range(len(index)) if index.chunk_id(n) in ids)
    return sum(1 << n for n in numbers if not index.is_gone(n))


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
