"""Packs that are lost or spoilt: what is wrong with them, and what of them is good."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lodefs.chunkstore.errors import Changed, Corrupt, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.pack import PackIndex, unpack
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repo.pack_reader import check_bound, read_index, read_stored
from lodefs.chunkstore.types import Buffer

Pieces = dict[int, tuple[int, Buffer]]  # by chunk number: codec and stored bytes


@dataclass(slots=True)
class PackDamage:
    """A pack that is not whole. It holds no bytes: there may be very many. ``chunks``: how many it
    has, if its index can be read; ``good``: which of them are as they should be, bits of their
    numbers; ``has_gone``: some were dropped or purged on purpose; ``absent``: which chunks no
    source has, of ``absent_of``, where a repair has looked for them."""

    pack_id: PackId
    is_lost: bool
    what: str
    chunks: int | None = None
    good: int = 0
    has_gone: bool = False
    healed_from: str | None = None
    absent: int = 0
    absent_of: int = 0

    @property
    def bad(self) -> Collection[int] | None:
        """Numbers of the chunks that are not there; None: not known which it has."""
        if self.chunks is None:
            return None
        return {number for number in range(self.chunks) if not self.good >> number & 1}

    def lacks(self, first: int, count: int) -> bool:
        """Whether any of these chunks is not there, as far as is known."""
        return ~(self.good >> first) & ((1 << count) - 1) != 0


def examine(objects: ObjectStore, pack_id: PackId, *, data: bool) -> PackDamage | None:
    """What is wrong with a pack: of its index, with ``data`` of every byte. None: nothing."""
    try:
        version = read_index(objects, pack_id)
    except NotFound:
        return PackDamage(pack_id, is_lost=True, what="lost")
    except (Corrupt, Changed) as error:
        return PackDamage(pack_id, is_lost=False, what=str(error))
    if not data:
        return None
    index = version.index
    check_bound(index)
    try:
        stored = read_stored(objects, version, 0, len(index))
    except (Changed, NotFound):  # written again, or collected, at this moment
        return None
    pieces, what = _good_pieces(index, memoryview(stored))
    if not what:
        return None
    good = sum(1 << number for number in pieces)
    return PackDamage(
        pack_id,
        is_lost=False,
        what=what,
        chunks=len(index),
        good=good,
        has_gone=index.has_gone,
    )


def good_pieces(objects: ObjectStore, pack_id: PackId) -> tuple[PackIndex | None, Pieces]:
    """The index of a pack, if it can be read, and those of its chunks that are as they should
    be."""
    try:
        version = read_index(objects, pack_id)
        check_bound(version.index)
        stored = read_stored(objects, version, 0, len(version.index))
    except (NotFound, Corrupt, Changed):
        return None, {}
    return version.index, _good_pieces(version.index, memoryview(stored))[0]


def _good_pieces(index: PackIndex, stored: memoryview) -> tuple[Pieces, str]:
    """The good chunks, also those that were dropped or purged and are not to come back, with no
    bytes; and what is wrong with the first of the others."""
    good: Pieces = {}
    what = ""
    for number, place in enumerate(index.places(0, len(index))):
        if index.is_gone(number):
            good[number] = place.codec, b""
            continue
        piece = stored[place.offset : place.offset + place.stored_size_bytes]
        try:
            unpack(place, piece)
        except Corrupt as error:
            what = what or f"chunk {number}: {error}"
        else:
            good[number] = place.codec, piece
    return good, what


def key_of(damage: PackDamage) -> str:
    """The key of the object."""
    return keys.pack(damage.pack_id)
