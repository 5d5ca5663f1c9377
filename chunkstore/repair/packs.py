"""Packs that are lost or damaged: what is wrong with them, and what of them is good."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lodefs.chunkstore.errors import UNREADABLE, Changed, Corrupt, NotFound, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.pack import DROPPED, PackIndex, unpack
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repo.pack_reader import check_bound, read_index, read_stored
from lodefs.chunkstore.types import Buffer

Pieces = dict[int, tuple[int, Buffer]]  # by chunk number: codec and stored bytes


@dataclass(slots=True)
class PackDamage:
    """A pack that is not whole. It holds no bytes: there may be very many. ``chunks``: how many it
    has, if its index can be read; ``good``: which of them are as they should be, bits of their
    numbers; ``is_newer``: only a newer lodefs can read it; ``is_partial``: it was written without
    some of its chunks; ``absent``: which chunks no source has, of ``absent_of``, where a repair has
    looked for them."""

    pack_id: PackId
    is_lost: bool
    what: str
    chunks: int | None = None
    good: int = 0
    is_newer: bool = False
    is_partial: bool = False
    repaired_from: str | None = None
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


def examine(
    objects: ObjectStore, pack_id: PackId, *, data: bool, named: int = 0
) -> PackDamage | None:
    """What is wrong with a pack: of its index, with ``data`` of every byte. None: nothing. Chunks
    that were dropped are damage if versions name them (``named``: bits of their numbers)."""
    try:
        version = read_index(objects, pack_id)
    except NotFound:
        return PackDamage(pack_id, is_lost=True, what="lost")
    except (Corrupt, Changed) as error:
        return PackDamage(pack_id, is_lost=False, what=str(error))
    except UnknownFormat as error:
        return PackDamage(pack_id, is_lost=False, what=str(error), is_newer=True)
    index = version.index
    dropped = dropped_of(index, named)
    if not data and not dropped:
        return None
    check_bound(index)
    try:
        stored = read_stored(objects, version, 0, len(index))
    except (Changed, NotFound):  # written again, or collected, at this moment
        return None
    pieces, what = _good_pieces(index, memoryview(stored))
    if dropped and not what:
        what = f"versions need {dropped.bit_count()} of its {len(index)} chunks, which were dropped"
    if not what:
        return None
    good = sum(1 << number for number in pieces) & ~dropped
    return PackDamage(pack_id, is_lost=False, what=what, chunks=len(index), good=good)


def dropped_of(index: PackIndex, named: int) -> int:
    """Those of its chunks that versions name and that were dropped: bits of their numbers."""
    return index.lacks(named, bytes((DROPPED,))) & ((1 << len(index)) - 1)


@dataclass(frozen=True, slots=True)
class FoundPieces:
    """What of a pack is there: its index, those of its chunks that are as they should be, and all
    as they are."""

    index: PackIndex
    good: Pieces
    stored: Pieces


def find_pieces(objects: ObjectStore, pack_id: PackId) -> FoundPieces | None:
    """What of a pack is there; None if its index cannot be read."""
    try:
        version = read_index(objects, pack_id)
        check_bound(version.index)
        stored = memoryview(read_stored(objects, version, 0, len(version.index)))
    except (*UNREADABLE, Changed):
        return None
    index = version.index
    places = enumerate(index.places(0, len(index)))
    whole: Pieces = {n: (at.codec, stored[at.offset :][: at.stored_size_bytes]) for n, at in places}
    return FoundPieces(index, _good_pieces(index, stored)[0], whole)


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
