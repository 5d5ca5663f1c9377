"""The whole object of a pack, every byte of it verified: nothing else is put into a composite."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from lodefs.chunkstore.errors import Changed, Corrupt, NotFound, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.maintenance.compact import Rate
from lodefs.chunkstore.objects.composites.composite_objects import CompositeObjects
from lodefs.chunkstore.objects.composites.layout import CompositePlace
from lodefs.chunkstore.objects.interface import Part
from lodefs.chunkstore.repo.pack_reader import unpack_chunks
from lodefs.chunkstore.types import Buffer

PACK_SIZE_BYTES_MAX = 1 << 30  # none has so many
_TRIES = 2  # of one that was damaged on its way, maybe

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WholePack:
    """An object of a pack, as it was read."""

    index: PackIndex
    data: Buffer
    etag: str


def fetch(
    objects: CompositeObjects,
    pack: tuple[PackId, int],
    seen: Mapping[PackId, CompositePlace],
    rate: Rate,
) -> WholePack | None:
    """A pack's object; None for one that is to stay where it is. ``seen``: those in composites.
    Raises: what the store does."""
    pack_id, size_bytes = pack
    for count in range(1, _TRIES + 1):
        rate.take(size_bytes)
        try:
            if pack_id in seen:  # an own object beside that may have what was purged since
                found = verified(pack_id, objects.get_in_composite(pack_id, size=size_bytes))
            else:
                found = verified(pack_id, objects.get(keys.pack(pack_id), size=size_bytes))
            break
        except (NotFound, Changed, Corrupt, UnknownFormat) as error:
            if count == _TRIES or not isinstance(error, Corrupt):
                _log.warning("pack %s is not moved: %s", pack_id.hex(), error)
                return None
    # What a pack of its own lacks, a copy or a repair may yet bring: in a composite it would not
    # count.
    return None if found.index.has_gone and pack_id not in seen else found


def verified(pack_id: PackId, part: Part) -> WholePack:
    """Raises: Corrupt, UnknownFormat."""
    size_bytes = part.object_size_bytes
    index = PackIndex.decode(pack_id, part.data)
    if len(part.data) != size_bytes or index.offsets[-1] + len(index.encode()) != size_bytes:
        raise Corrupt(f"{keys.pack(pack_id)} has {size_bytes} bytes, which is not what it says")
    unpack_chunks(index, 0, len(index), part.data)
    return WholePack(index, part.data, part.etag)
