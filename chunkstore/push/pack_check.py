"""What the store lacks of the chunks that a commit will name.

A push that builds on what the store has would otherwise name bytes that are not there, although the
source has them. That a pack is there does not say that it has all of its chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

from lodefs.chunkstore.errors import UNREADABLE, Corrupt, NotFound, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import ChunkId, PackId
from lodefs.chunkstore.format.pack import DROPPED, GONE, PackIndex
from lodefs.chunkstore.journal.named_packs import NamedPacks
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repo.pack_reader import read_index

REQUESTS_MAX = 16  # at once


class PacksLost(Corrupt):
    """Packs that a commit would name are missing in the store, or cut off."""

    def __init__(self, message: str, packs: set[PackId]) -> None:
        super().__init__(message)
        self.packs = packs


class PacksCollected(PacksLost):
    """They were deleted by a gc run, or ``chunks`` of them (bits of their numbers): what they
    held has to be stored under other ids, since a gc run that stood still may delete it again
    where it was."""

    def __init__(self, message: str, packs: set[PackId], chunks: Mapping[PackId, int]) -> None:
        super().__init__(message, packs)
        self.chunks = chunks


def missing_packs(objects: ObjectStore, pack_ids: Collection[PackId]) -> set[PackId]:
    """Those of the packs that are not in the store: a HEAD for each, several at once."""
    if not pack_ids:
        return set()
    with ThreadPoolExecutor(REQUESTS_MAX, "lodefs-check") as executor:
        return _failing(executor, partial(_is_there, objects), pack_ids)


def lacking_chunks(
    objects: ObjectStore, named: Mapping[PackId, int], gone: bytes = GONE
) -> dict[PackId, int | None]:
    """What the store lacks of some chunks (bits of their numbers, by pack), as the index of each
    pack says, which is read: the chunks that have one of the codecs ``gone``; None of a pack that
    is missing, damaged, or of a format that is not known."""
    if not named:
        return {}

    def lacking(pack_id: PackId) -> int | None:
        try:
            return read_index(objects, pack_id).index.lacks(named[pack_id], gone)
        except UNREADABLE:
            return None

    with ThreadPoolExecutor(REQUESTS_MAX, "lodefs-check") as executor:
        found = zip(named, executor.map(lacking, named), strict=True)
        return {pack: bits for pack, bits in found if bits is None or bits}


def packs_lacking(
    objects: ObjectStore,
    named: Mapping[PackId, int],
    purged: Collection[ChunkId] = (),
    offered: Callable[[PackId], PackIndex] | None = None,
) -> set[PackId]:
    """Those of the packs that are not in the store, or lack chunks (bits of their numbers) that
    were not purged. A chunk that a pack calls purged, and that is not among ``purged``, was purged
    only where the pack came from: it is lacking, too, if the pack that is ``offered`` has it."""
    gone = lacking_chunks(objects, named)
    partial = {pack: bits for pack, bits in gone.items() if bits is not None}
    lacking = gone.keys() - partial.keys()
    lacking |= lacking_chunks(objects, partial, bytes((DROPPED,))).keys()
    if offered is None or not partial.keys() - lacking:
        return lacking

    def offers_none(pack_id: PackId) -> bool:
        try:
            index = offered(pack_id)
        except UNREADABLE:
            return True
        there = partial[pack_id] & ~index.lacks(partial[pack_id])
        return all(index.chunk_id(n) in purged for n in range(len(index)) if there >> n & 1)

    with ThreadPoolExecutor(REQUESTS_MAX, "lodefs-check") as executor:
        return lacking | _failing(executor, offers_none, partial.keys() - lacking)


def lacking_named(
    objects: ObjectStore, named: NamedPacks, own: Collection[PackId]
) -> dict[PackId, int | None]:
    """As ``lacking_chunks``, of all that a directory names but the packs in ``own``; packs of
    trees that could not be read are damaged."""
    found = {pack: bits for pack, bits in named.found.items() if pack not in own}
    lacking = lacking_chunks(objects, found)
    return {**lacking, **dict.fromkeys(named.unreadable - lacking.keys())}


def _failing(
    executor: Executor, check: Callable[[PackId], bool], packs: Collection[PackId]
) -> set[PackId]:
    return {pack for pack, fine in zip(packs, executor.map(check, packs), strict=True) if not fine}


def _is_there(objects: ObjectStore, pack_id: PackId) -> bool:
    try:
        return objects.head(keys.pack(pack_id)).size_bytes > 0
    except NotFound:
        return False


def gone_chunks(objects: ObjectStore, pack_id: PackId) -> int | None:
    """The chunks whose bytes a pack does not have any more, by the bits of their numbers; None if
    it is not whole otherwise."""
    try:
        index = read_index(objects, pack_id).index
    except (Corrupt, NotFound):
        return None
    except UnknownFormat:  # of a newer lodefs, which knows what it wrote
        return 0
    return index.lacks((1 << len(index)) - 1)


def is_whole(objects: ObjectStore, pack_id: PackId) -> bool:
    """Whether the object ends with the index of that pack, and is as long as this says."""
    return gone_chunks(objects, pack_id) is not None
