"""A process that writes the objects and locks of Git LFS into a store.

Standard input has a StorePlace, then orders; standard output gets an Outcome for each, in order.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import Conflict, NoSpace, NotFound, Renamed
from lodefs.chunkstore.format.decoding import from_json, json_decoder
from lodefs.chunkstore.format.foreign import lfs
from lodefs.chunkstore.format.foreign.lfs import Lock, Owner
from lodefs.chunkstore.format.names import ID_BYTES, CommitId
from lodefs.chunkstore.format.tree import TreeEntry
from lodefs.chunkstore.protocol.access import hidden
from lodefs.chunkstore.protocol.lfs_recipe import decode_holes
from lodefs.chunkstore.protocol.orders.lfs_orders import (
    AddLock,
    FillHoles,
    FindChunks,
    KnownChunks,
    ListLocks,
    Order,
    Outcome,
    PutObjects,
    RemoveLock,
)
from lodefs.chunkstore.protocol.wire import failure_of
from lodefs.chunkstore.push.changes.branch_commits import read_living_head
from lodefs.chunkstore.push.changes.change import Change, Put, Remove
from lodefs.chunkstore.push.changes.commit_changes import commit_changes
from lodefs.chunkstore.push.lfs.chunks import ObjectChunks
from lodefs.chunkstore.push.session import PushOptions
from lodefs.chunkstore.push.store_process import store_of_parent, tell
from lodefs.chunkstore.repo.store import Store, open_store

AUTHOR = "Git LFS"
ATTEMPTS_MAX = 10  # at one lock, while other proxies change the same one
_NOTE = b"The files beside this one are locks of Git LFS. `git lfs locks` lists them.\n"
_NOTE_NAME = b"README"


def main() -> None:
    orders = json_decoder(Order)
    with store_of_parent() as (objects, place):
        writer: LfsWriter | None = None
        for line in sys.stdin.buffer:
            try:
                writer = writer or LfsWriter(open_store(objects), Path(place.index_dir))
                outcome = writer.carry_out(orders.decode(line))
            except NoSpace as error:  # of any kind, such as a quota
                outcome = Outcome(failure=failure_of(NoSpace(str(error))))
            except Exception as error:  # noqa: BLE001 - the proxy must hear of it
                outcome = Outcome(failure=failure_of(error))
            tell(outcome)


class LfsWriter:
    """Writes to one store. For one thread."""

    def __init__(self, store: Store, index_dir: Path) -> None:
        self._store = store
        self._index_dir = index_dir
        self._chunks: dict[str, ObjectChunks] = {}

    def carry_out(self, order: Order) -> Outcome:
        """Carries out one order. Raises: NotFound for a lock that nobody has; Renamed, since a
        client that may write under the old name perhaps may not under the new one; what
        commit_changes raises."""
        if self._store.new_name(order.repo) is not None:
            raise Renamed(str(hidden(order.repo)))
        if isinstance(order, PutObjects):
            return self._put(order)
        if isinstance(order, FindChunks):
            return Outcome(chunks=self._find(order))
        if isinstance(order, FillHoles):
            holes = decode_holes(order.holes)
            self._chunks_of(order.repo).fill(self._index_dir, Path(order.file), holes)
            return Outcome()
        if isinstance(order, ListLocks):
            return Outcome(self._locks(order.repo, order.path))
        for _ in range(ATTEMPTS_MAX):
            try:
                return self._add(order) if isinstance(order, AddLock) else self._remove(order)
            except Conflict as error:  # another proxy was faster: look at the lock again
                last = error
        raise last

    def _put(self, order: PutObjects) -> Outcome:
        changes = [Put(lfs.object_path(oid), Path(file)) for oid, file in order.files.items()]
        count = len(changes)
        message = f"{count} object{'' if count == 1 else 's'}"
        self._commit(order.repo, lfs.OBJECTS, changes, message)
        return Outcome()

    def _find(self, order: FindChunks) -> KnownChunks:
        sizes = self._store.settings.chunking
        starts = range(0, len(order.ids), ID_BYTES)
        ids = [order.ids[start : start + ID_BYTES] for start in starts]
        found = self._chunks_of(order.repo).find(self._index_dir, ids) if ids else {}
        return KnownChunks(
            (sizes.size_bytes_min, sizes.size_bytes_average, sizes.size_bytes_max),
            "".join("01"[one in found] for one in ids),
        )

    def _chunks_of(self, repo: str) -> ObjectChunks:
        return self._chunks.setdefault(repo, ObjectChunks(self._store, repo))

    def _add(self, order: AddLock) -> Outcome:
        name = lfs.lock_id(order.path)
        base, files = self._lock_files(order.repo)
        if base is None:  # a base is needed to see what others do meanwhile
            self._commit(order.repo, lfs.LOCKS, [Put(_NOTE_NAME, _NOTE)], "begin")
            base, files = self._lock_files(order.repo)
        if name in files:
            return Outcome([self._lock(files[name])], is_refused=True)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        lock = Lock(name, order.path, now, Owner(order.owner))
        change = Put(name, msgspec.json.encode(lock))
        self._commit(order.repo, lfs.LOCKS, [change], f"{order.owner} locks {order.path}", base)
        return Outcome([lock])

    def _remove(self, order: RemoveLock) -> Outcome:
        base, files = self._lock_files(order.repo)
        if order.id not in files:
            raise NotFound(f"{order.repo} has no lock {order.id[:80]}: `git lfs locks` lists all")
        lock = self._lock(files[order.id])
        if lock.owner.name != order.owner and not order.force:
            return Outcome([lock], is_refused=True)
        message = f"{order.owner} unlocks {lock.path}"
        self._commit(order.repo, lfs.LOCKS, [Remove(order.id)], message, base)
        return Outcome([lock])

    def _locks(self, repo: str, path: str) -> list[Lock]:
        _, files = self._lock_files(repo)
        if path:
            files = {name: file for name, file in files.items() if name == lfs.lock_id(path)}
        return [self._lock(file) for file in files.values()]

    def _lock_files(self, repo: str) -> tuple[CommitId | None, dict[str, TreeEntry]]:
        """Returns the head of the branch of locks, and its files by id; nothing if there is no
        branch."""
        try:
            _, head, commit = read_living_head(self._store, repo, lfs.LOCKS)
        except NotFound:
            return None, {}
        entries = self._store.packs.read_tree(commit.root)
        return head, {one.name.decode(): one for one in entries if one.name != _NOTE_NAME}

    def _lock(self, file: TreeEntry) -> Lock:
        return from_json(self._store.packs.read_range(file, 0, file.size_bytes), Lock)

    def _commit(
        self,
        repo: str,
        branch: str,
        changes: Sequence[Change],
        message: str,
        base: CommitId | None = None,
    ) -> None:
        options = PushOptions(
            message=message, author=AUTHOR, time_s=int(time.time()), index_dir=self._index_dir
        )
        commit_changes(self._store, repo, branch, changes, options, base=base)
