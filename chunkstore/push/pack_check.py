"""Finds the chunks that a commit will name and the store lacks.

A push that builds on stored chunks could otherwise name bytes that are not there, although the
source has them. The existence of a pack does not prove that it has all of its chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Protocol

from lodefs.chunkstore.errors import (
    UNREADABLE,
    Changed,
    Corrupt,
    Denied,
    NotFound,
    SourceLost,
    UnknownFormat,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import ChunkId, PackId
from lodefs.chunkstore.format.pack import DROPPED, GONE, PackIndex
from lodefs.chunkstore.journal.named_packs import NamedPacks
from lodefs.chunkstore.objects.in_place.virtual_packs import check_in_place, virtual_pack_of
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion, read_index

REQUESTS_MAX = 16  # concurrent requests


class PacksLost(Corrupt):
    """Packs that a commit would name are missing in the store, or truncated."""

    def __init__(self, message: str, packs: set[PackId]) -> None:
        super().__init__(message)
        self.packs = packs


class PacksCollected(PacksLost):
    """A gc run has deleted them, or ``chunks`` of them (bits of their numbers). Their contents must
    be stored under other ids, since a gc run that was suspended may delete the old ids again."""

    def __init__(self, message: str, packs: set[PackId], chunks: Mapping[PackId, int]) -> None:
        super().__init__(message, packs)
        self.chunks = chunks


class Relies(Protocol):
    """Says on which chunks in place a commit must not rely."""

    def __call__(self, objects: ObjectStore, version: PackIndexVersion, named: int) -> int:
        """Returns those of the ``named`` chunks (bits of their numbers) that lie in objects of a
        source, and that must be stored instead."""


def all_in_place(objects: ObjectStore, version: PackIndexVersion, named: int) -> int:
    """Implements Relies for what is to be stored: all of them."""
    pack = virtual_pack_of(objects, version.index.pack_id, version.etag)
    return 0 if pack is None else named & pack.placed()


def lost_in_place(objects: ObjectStore, version: PackIndexVersion, named: int) -> int:
    """Implements Relies for an import: those in objects that are not what they were, or that this
    machine cannot reach. Asks for each object."""
    pack = virtual_pack_of(objects, version.index.pack_id, version.etag)
    if pack is None:
        return 0
    lost = 0
    for number in {run.object for run in pack.runs if named & pack.bits(run)}:
        try:
            check_in_place(objects, pack.objects[number])
        except (SourceLost, Denied):
            lost |= named & pack.placed(number)
    return lost


def all_lost_in_place(objects: ObjectStore, pack_id: PackId) -> int:
    """Returns what lost_in_place returns for all chunks of a pack; 0 for a pack that cannot be
    read, which the check at the end finds."""
    try:
        version = read_index(objects, pack_id)
    except (*UNREADABLE, Changed):
        return 0
    return lost_in_place(objects, version, (1 << len(version.index)) - 1)


def missing_packs(objects: ObjectStore, pack_ids: Collection[PackId]) -> set[PackId]:
    """Returns the packs that are not in the store. Sends a HEAD for each, several at once."""
    if not pack_ids:
        return set()
    with ThreadPoolExecutor(REQUESTS_MAX, "lodefs-check") as executor:
        return _failing(executor, partial(_is_there, objects), pack_ids)


def lacking_chunks(
    objects: ObjectStore,
    named: Mapping[PackId, int],
    gone: bytes = GONE,
    more: Callable[[PackIndexVersion], int] = lambda _: 0,
) -> dict[PackId, int | None]:
    """Returns the chunks (bits of their numbers, by pack) that the store lacks. It reads the index
    of each pack: a chunk is lacking if its codec is one of ``gone``, or if ``more`` says so. None
    stands for a pack that is missing, damaged, or of an unknown format."""
    if not named:
        return {}

    def lacking(pack_id: PackId) -> int | None:
        try:
            version = read_index(objects, pack_id)
            return version.index.lacks(named[pack_id], gone) | more(version)
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
    """Returns the packs that are not in the store, or lack chunks (bits of their numbers) that were
    not purged. A chunk that a pack calls purged, and that is not in ``purged``, was purged only
    where the pack came from. It is lacking, too, if the pack that is ``offered`` has it."""
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
    objects: ObjectStore,
    named: NamedPacks,
    own: Collection[PackId],
    more: Callable[[PackIndexVersion], int],
) -> dict[PackId, int | None]:
    """Does what ``lacking_chunks`` does for all that a directory names, except the packs in
    ``own``. Packs of trees that could not be read count as damaged."""
    found = {pack: bits for pack, bits in named.found.items() if pack not in own}
    lacking = lacking_chunks(objects, found, more=more)
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


def gone_chunks(objects: ObjectStore, pack_id: PackId, relies: Relies | None = None) -> int | None:
    """Returns the chunks (bits of their numbers) whose bytes a pack no longer has; None if the pack
    is damaged otherwise, or has chunks in place on which a commit must not rely."""
    try:
        version = read_index(objects, pack_id)
    except (Corrupt, NotFound):
        return None
    except UnknownFormat:  # a newer lodefs wrote it and is trusted
        return 0
    every = (1 << len(version.index)) - 1
    if relies is not None and relies(objects, version, every):
        return None
    return version.index.lacks(every)


def is_whole(objects: ObjectStore, pack_id: PackId) -> bool:
    """Whether the object ends with the index of that pack and has the length that it gives."""
    return gone_chunks(objects, pack_id) is not None
