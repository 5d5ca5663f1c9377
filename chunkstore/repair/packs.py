"""Examines lost or damaged packs: what is wrong with them, and which chunks are good."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lodefs.chunkstore.errors import (
    UNREADABLE,
    Changed,
    Corrupt,
    NotFound,
    SourceLost,
    SourceUnknown,
    UnknownFormat,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.pack import DROPPED, PackIndex, unpack
from lodefs.chunkstore.format.virtual_pack import PlacedRun
from lodefs.chunkstore.objects.in_place.virtual_packs import virtual_pack_of
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repo.pack_reader import (
    PackIndexVersion,
    check_bound,
    read_index,
    read_stored,
)
from lodefs.chunkstore.types import Buffer

Pieces = dict[int, tuple[int, Buffer]]  # by chunk number: codec and stored bytes


@dataclass(slots=True)
class PackDamage:
    """A pack that is not whole. It holds no bytes, since there may be very many. ``chunks`` is
    their number, if its index can be read. ``good`` are bits of the numbers of the good ones.
    ``is_newer``: only a newer lodefs can read it. ``is_partial``: it was written without some of
    its chunks. ``absent`` are the chunks that no source has, out of ``absent_of``, if a repair has
    searched for them."""

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
        """The numbers of the missing chunks; None if the pack's chunks are unknown."""
        if self.chunks is None:
            return None
        return {number for number in range(self.chunks) if not self.good >> number & 1}

    def lacks(self, first: int, count: int) -> bool:
        """Whether any of these chunks is missing, as far as is known."""
        return ~(self.good >> first) & ((1 << count) - 1) != 0


def examine(
    objects: ObjectStore,
    pack_id: PackId,
    *,
    data: bool,
    named: int = 0,
    in_place: bool = True,
) -> PackDamage | None:
    """Returns the damage of a pack's index, or with ``data`` of any byte; None if there is none.
    Dropped chunks are damage if versions name them (``named``: bits of their numbers). Without
    ``in_place`` nothing is read from sources. Raises: SourceUnknown, which is no damage."""
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
        stored, lost = _stored_pieces(objects, version, in_place=in_place)
    except (Changed, NotFound):  # rewritten, or deleted by gc, just now
        return None
    pieces, wrong = _good_pieces(index, stored)
    what = wrong or lost
    if dropped and not what:
        what = f"versions need {dropped.bit_count()} of its {len(index)} chunks, which are dropped"
    if not what:
        return None
    good = sum(1 << number for number in pieces) & ~dropped
    return PackDamage(pack_id, is_lost=False, what=what, chunks=len(index), good=good)


def dropped_of(index: PackIndex, named: int) -> int:
    """Returns the chunks (bits of their numbers) that versions name and that were dropped."""
    return index.lacks(named, bytes((DROPPED,))) & ((1 << len(index)) - 1)


@dataclass(frozen=True, slots=True)
class FoundPieces:
    """The parts of a pack that exist: its index, its good chunks, and all chunks as they are,
    except those in objects of a source that are lost, or in sources that the settings do not name.
    """

    index: PackIndex
    good: Pieces
    stored: Pieces


def find_pieces(objects: ObjectStore, pack_id: PackId) -> FoundPieces | None:
    """Returns what exists of a pack; None if its index cannot be read."""
    try:
        version = read_index(objects, pack_id)
        check_bound(version.index)
        stored = _reachable_pieces(objects, version)
    except (*UNREADABLE, Changed):
        return None
    return FoundPieces(version.index, _good_pieces(version.index, stored)[0], stored)


def _reachable_pieces(objects: ObjectStore, version: PackIndexVersion) -> Pieces:
    """Returns the stored chunks of a pack, or those that lie in the store if the settings do not
    name a source of the others. Raises: what reading raises."""
    try:
        return _stored_pieces(objects, version)[0]
    except SourceUnknown:
        return _stored_pieces(objects, version, in_place=False)[0]


def _stored_pieces(
    objects: ObjectStore, version: PackIndexVersion, *, in_place: bool = True
) -> tuple[Pieces, str]:
    """Returns the stored chunks of a pack, and which object of a source is lost, if any: the chunks
    in it are missing, and without ``in_place`` those in all objects. Raises: what reading raises,
    except SourceLost."""
    index = version.index
    virtual = virtual_pack_of(objects, index.pack_id, version.etag)
    runs = [(0, len(index))] if virtual is None else virtual.all_runs()
    pieces: Pieces = {}
    lost = ""
    for run in runs:
        first, count = run[:2]
        if isinstance(run, PlacedRun) and not in_place:
            continue
        try:
            stored = memoryview(read_stored(objects, version, first, count))
        except SourceLost as error:
            lost = lost or str(error)
            continue
        begin = index.offsets[first]
        for number, at in enumerate(index.places(first, count), first):
            piece = stored[at.offset - begin :][: at.stored_size_bytes]
            pieces[number] = at.codec, piece
    return pieces, lost


def _good_pieces(index: PackIndex, stored: Pieces) -> tuple[Pieces, str]:
    """Returns the good ones of the stored chunks, and what is wrong with the first of the others.
    Chunks that were dropped or purged for good count as good, with no bytes."""
    good: Pieces = {}
    what = ""
    for number, place in enumerate(index.places(0, len(index))):
        if index.is_gone(number):
            good[number] = place.codec, b""
            continue
        if number not in stored:
            continue
        piece = stored[number][1]
        try:
            unpack(place, piece)
        except Corrupt as error:
            what = what or f"chunk {number}: {error}"
        else:
            good[number] = place.codec, piece
    return good, what


def key_of(damage: PackDamage) -> str:
    """Returns the key of the object."""
    return keys.pack(damage.pack_id)
