"""Messages between a proxy and its process that writes for Git LFS: one line of JSON each."""

from __future__ import annotations

import msgspec

from lodefs.chunkstore.format.lfs import Lock
from lodefs.chunkstore.protocol.wire import Failure


class StorePlace(msgspec.Struct, frozen=True):
    """The first line: the store to write to, and the directory of the push index."""

    store: str
    endpoint_url: str | None
    region: str | None
    index_dir: str


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


Order = PutObjects | ListLocks | AddLock | RemoveLock


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to one order. ``locks`` are those that were listed, added or removed; with
    ``is_refused``, nothing was done because of the one that somebody else has."""

    locks: list[Lock] = []
    is_refused: bool = False
    failure: Failure | None = None
