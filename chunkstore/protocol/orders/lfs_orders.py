"""Messages between a proxy and its process that writes for Git LFS: one line of JSON each."""

from __future__ import annotations

import msgspec

from lodefs.chunkstore.format.foreign.lfs import Lock
from lodefs.chunkstore.protocol.wire import Failure


class PutObjects(msgspec.Struct, frozen=True, tag=True):
    """Stores objects, whose bytes were checked. ``files`` maps their ids to local files."""

    repo: str
    files: dict[str, str]


class ListLocks(msgspec.Struct, frozen=True, tag=True):
    """Lists the locks of a repository by id, or the one of ``path``."""

    repo: str
    path: str = ""


class AddLock(msgspec.Struct, frozen=True, tag=True):
    """Locks a path, unless somebody has locked it."""

    repo: str
    path: str
    owner: str


class RemoveLock(msgspec.Struct, frozen=True, tag=True):
    """Removes a lock; that of another owner only with ``force``."""

    repo: str
    id: str
    owner: str
    force: bool


class FindChunks(msgspec.Struct, frozen=True, tag=True):
    """Asks which chunks the objects of a repository have. ``ids`` are one after the other."""

    repo: str
    ids: bytes


class FillHoles(msgspec.Struct, frozen=True, tag=True):
    """Writes chunks to their places in a local file. ``holes`` are as of lfs_recipe."""

    repo: str
    file: str
    holes: bytes


Order = FindChunks | FillHoles | PutObjects | ListLocks | AddLock | RemoveLock


class KnownChunks(msgspec.Struct, frozen=True):
    """What a client must know to cut objects: the sizes of the store's chunks (least, average,
    largest), and for each chunk that it asked about, "1" if it is there or "0"."""

    sizes_bytes: tuple[int, int, int]
    known: str


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to one order. ``locks`` are those that were listed, added or removed; with
    ``is_refused``, nothing was done because of the one that somebody else has."""

    locks: list[Lock] = []
    is_refused: bool = False
    failure: Failure | None = None
    chunks: KnownChunks | None = None
