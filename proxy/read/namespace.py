"""Snapshots and their entries: from the node's index, or loaded from the store on demand.

What the node knows needs no store, even after a restart. Inode numbers are derived from paths
(inodes.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice

from lodefs.chunkstore.errors import Denied, NotADirectory, NotFound, TooLarge, Unavailable
from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.chunkstore.format.names import ID_BYTES, CommitId, Spec, is_commit_prefix, split_path
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.nodecache import name_rows
from lodefs.chunkstore.nodecache.kv import KeyValues
from lodefs.chunkstore.nodecache.layout import SNAPSHOTS
from lodefs.chunkstore.nodecache.name_rows import EntryRow
from lodefs.chunkstore.protocol.connection import BODY_BYTES_MAX
from lodefs.chunkstore.protocol.wire import Entry, Page, Snapshot
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.lru import Lru
from lodefs.proxy.metrics.counters import Counts
from lodefs.proxy.node import NamePage, SnapshotFile
from lodefs.proxy.read.directories.directory_loader import DirectoryLoader
from lodefs.proxy.read.directories.directory_rows import DirectoryRows, name_of
from lodefs.proxy.read.directories.tree_source import Outcome, Trees
from lodefs.proxy.read.directories.write_buffer import WriteBuffer
from lodefs.proxy.read.last_seen import LastSeen
from lodefs.proxy.read.revisions import Revisions
from lodefs.proxy.runtime.shared_tasks import SharedTasks
from lodefs.proxy.runtime.thread_pools import Pools

RESOLVED_FOR_S = 1.0  # how old the answer for a branch may be
RESOLVED_MAX = 1024
SNAPSHOTS_MAX = 1024  # in memory
MET_MAX = 2000


class Namespace:
    """Snapshots, entries and directories of one store. For use on the event loop only."""

    def __init__(
        self,
        store: Store,
        trees: Trees,
        kv: KeyValues,
        pools: Pools,
        counts: Counts,
        *,
        deadline_s: float,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._kv = WriteBuffer(kv)
        self._rows = DirectoryRows(self._kv)
        self._loader = DirectoryLoader(self._rows, trees, pools, counts, deadline_s=deadline_s)
        self._pools = pools
        self._deadline_s = deadline_s
        self._clock_s = clock_s
        self._resolved: Lru[tuple[str, str], tuple[float, Snapshot]] = Lru(RESOLVED_MAX)
        self._snapshots: Lru[tuple[str, str], Snapshot] = Lru(SNAPSHOTS_MAX)
        self._resolving: SharedTasks[tuple[str, str], Snapshot] = SharedTasks()
        self._encoding: SharedTasks[tuple[str, int], bytes] = SharedTasks()
        self.seen = LastSeen(store, self._kv)
        self._lists = Revisions(store, pools, deadline_s=deadline_s)

    # --- snapshots

    async def snapshot(self, repo: str, rev: str) -> Snapshot:
        """Returns the current snapshot of ``rev``. A commit that the node knows needs no store.
        Raises: NotFound."""
        if _is_commit_id(rev):
            known = self._known(repo, rev)
            if known is not None:
                return known
        key = (repo, rev)
        found = self._resolved.get(key)
        if found is not None and self._clock_s() - found[0] < RESOLVED_FOR_S:
            return found[1]
        return await self._resolving.run(key, lambda: self._resolve(repo, rev))

    async def _resolve(self, repo: str, rev: str) -> Snapshot:
        what = f"revision {rev} of {repo}"
        commit_id, is_last = await self._pools.fetch.bounded(
            what, self._deadline_s, lambda: self.seen.resolve(repo, rev)
        )
        snapshot = self._known(repo, commit_id.hex())
        if snapshot is None:
            snapshot = await self._pools.fetch.bounded(
                what, self._deadline_s, lambda: self._load_commit(repo, commit_id)
            )
            self._snapshots.put((repo, commit_id.hex()), snapshot)
        if is_last:
            self.seen.note(repo, rev, snapshot.commit, snapshot.time_s)
        self._resolved.put((repo, rev), (self._clock_s(), snapshot))
        return snapshot

    async def require_repo(self, repo: str) -> None:
        """Raises: NotFound if the store says that there is no such repository."""
        with suppress(Unavailable, Denied):
            await self._pools.fetch.bounded(
                f"repository {repo}", self._deadline_s, lambda: self._store.require_repo(repo)
            )

    def known_snapshot(self, repo: str, commit: str) -> Snapshot | None:
        """Returns a commit that this node has used, by its full id."""
        return self._known(repo, commit) if _is_commit_id(commit) else None

    def _known(self, repo: str, commit: str) -> Snapshot | None:
        found = self._snapshots.get((repo, commit))
        if found is None:
            commit_id = CommitId(bytes.fromhex(commit))
            root_key = name_rows.entry_key(name_rows.snapshot_key(commit_id), ROOT_INO)
            keys = [name_rows.snapshot_row_key(commit_id, repo), root_key]
            value, root = self._kv.get_many(keys)
            if value is not None and root is not None:
                found = name_rows.decode_snapshot(value)
                self._snapshots.put((repo, commit), found)
        return found

    def _load_commit(self, repo: str, commit_id: CommitId) -> Snapshot:
        commit = self._store.commit(repo, commit_id)
        root = commit.root
        value = name_rows.encode_entry_row(ROOT_INO, root)
        snapshot = Snapshot(
            repo,
            commit_id.hex(),
            name_rows.node_of(ROOT_INO, ROOT_INO, root),
            commit.time_s,
            commit.files,
            commit.directories,
            commit.size_bytes,
            commit.large.size_bytes,
        )
        self._kv.write(
            [
                (name_rows.entry_key(name_rows.snapshot_key(commit_id), ROOT_INO), value),
                (name_rows.snapshot_row_key(commit_id, repo), name_rows.encode_snapshot(snapshot)),
            ]
        )
        return snapshot

    # --- entries

    def row(self, snapshot: Snapshot, ino: int) -> EntryRow:
        """Returns the row of an entry with segments. Raises: NotFound if this node does not know
        it."""
        return self._rows.row(snapshot, ino)

    async def file(self, snapshot: Snapshot, path: bytes) -> Entry | SnapshotFile:
        """Returns the file at a path, or an entry that is not a file. Raises: NotFound,
        NotADirectory, InvalidInput."""
        found = self._row_at(snapshot, path)
        if found is None:
            node = await self.entry(snapshot, path)
            return await self.file_by_ino(snapshot, node.ino) if node.kind == Kind.FILE else node
        return _file_or_node(snapshot, *found)

    async def file_by_ino(self, snapshot: Snapshot, ino: int) -> Entry | SnapshotFile:
        """Returns the file with an inode number, or an entry that is not a file. Raises:
        NotFound."""
        if ino == ROOT_INO:
            return snapshot.root
        return _file_or_node(snapshot, ino, await self._loader.find(snapshot, ino))

    async def entry(self, snapshot: Snapshot, path: bytes) -> Entry:
        """Returns the entry at a path. Raises: NotFound, NotADirectory, InvalidInput."""
        found = self._row_at(snapshot, path)
        if found is not None:
            ino, row = found
            return name_rows.node_of(ino, row.parent, row)
        names = split_path(path)
        node = snapshot.root
        for at, name in enumerate(names):
            try:
                node = await self.lookup(snapshot, node.ino, name)
            except NotADirectory as error:
                spec = Spec(snapshot.repo, snapshot.commit, b"/".join(names[:at]))
                raise NotADirectory(f"{spec} is not a directory") from error
            except NotFound as error:
                spec = Spec(snapshot.repo, snapshot.commit, b"/".join(names[: at + 1]))
                raise NotFound(f"{spec} does not exist") from error
        return node

    def _row_at(self, snapshot: Snapshot, path: bytes) -> tuple[int, EntryRow] | None:
        """Returns the number and row of the entry at a path, if its directory is loaded."""
        names = split_path(path)
        if not names:
            return None
        parent, ino = ROOT_INO, ROOT_INO
        for name in names:
            parent, ino = ino, child_ino(ino, name)
        row = self._child_row(snapshot, ino, parent, names[-1])
        return None if row is None else (ino, row)

    async def by_ino(self, snapshot: Snapshot, ino: int) -> Entry:
        """Returns the entry with an inode number. Raises: NotFound if the snapshot has none."""
        if ino == ROOT_INO:
            return snapshot.root
        row = await self._loader.find(snapshot, ino)
        return name_rows.node_of(ino, row.parent, row)

    async def lookup(self, snapshot: Snapshot, parent: int, name: bytes) -> Entry:
        """Returns a directory's child, with one index lookup once the directory is loaded."""
        ino = child_ino(parent, name)
        found = self._child(snapshot, ino, parent, name)
        if found is None:
            await self._loader.ensure(snapshot, parent)
            # Even if it was loaded before: its rows may have been written after the first lookup
            found = self._child(snapshot, ino, parent, name)
        if found is None:
            raise NotFound(f"{name!r} is not in directory {parent} of {name_of(snapshot)}")
        return found

    def _child(self, snapshot: Snapshot, ino: int, parent: int, name: bytes) -> Entry | None:
        row = self._child_row(snapshot, ino, parent, name)
        return None if row is None else name_rows.node_of(ino, row.parent, row)

    def _child_row(self, snapshot: Snapshot, ino: int, parent: int, name: bytes) -> EntryRow | None:
        """Returns the row with the number, unless it is another child's, which loading resolves."""
        row = self._rows.find(snapshot, ino)
        return None if row is None or row.name != name or row.parent != parent else row

    async def children(
        self, snapshot: Snapshot, ino: int, *, after: bytes = b"", limit: int
    ) -> Page:
        """Returns at most ``limit`` children by name, after a name. Raises: NotADirectory,
        NotFound."""
        await self._loader.ensure(snapshot, ino)
        return await self._pools.disk.run(self._rows.page, snapshot, ino, after, limit)

    async def tree(self, snapshot: Snapshot, ino: int) -> bytes:
        entry = name_rows.entry_of(self._rows.row(snapshot, ino))
        if entry.size_bytes > BODY_BYTES_MAX:
            raise TooLarge(f"directory {ino} of {name_of(snapshot)} has {entry.size_bytes} bytes")
        key = (snapshot.commit, ino)  # concurrent callers get the same page
        return await self._encoding.run(key, lambda: self._loader.stored_form(snapshot, ino, entry))

    async def content_ids(self, snapshot: Snapshot, inos: Sequence[int]) -> list[bytes]:
        """Returns the content ids of known files, in order. Raises: NotFound."""
        rows = await self._pools.disk.run(self._rows.rows, snapshot, inos)
        return [name_rows.content_id(row) for row in rows]

    async def repos(self, prefix: bytes, start: bytes) -> NamePage:
        return await self._lists.repos(prefix, start)

    async def revisions(self, repo: str, start: bytes) -> NamePage:
        return await self._lists.revisions(repo, start)

    def path(self, snapshot: Snapshot, node: Entry) -> bytes:
        """Returns the path of an entry for messages, as far as the node knows it."""
        return self._rows.path(snapshot, node.ino, node.name, node.parent)

    async def directories(
        self, snapshot: Snapshot, inos: Sequence[int], *, from_store: bool = True
    ) -> list[Outcome]:
        return await self._loader.read_all(snapshot, inos, from_store=from_store)

    async def met(self) -> list[Snapshot]:
        """Implements Names. It does not wait for the index: some rows may be missing."""

        def scanned() -> list[Snapshot]:
            rows = islice(self._kv.scan(SNAPSHOTS), MET_MAX)
            return [name_rows.decode_snapshot(value) for _, value in rows]

        return await self._pools.disk.run(scanned)

    def known(self, repo: str) -> list[Snapshot]:
        """Returns the snapshots of a repository that this node has used. For any thread."""
        rows = self._kv.scan(SNAPSHOTS)
        snapshots = (name_rows.decode_snapshot(value) for _, value in rows)
        return [snapshot for snapshot in snapshots if snapshot.repo == repo]


def _file_or_node(snapshot: Snapshot, ino: int, row: EntryRow) -> Entry | SnapshotFile:
    node = name_rows.node_of(ino, row.parent, row)
    if node.kind != Kind.FILE:
        return node
    return SnapshotFile(snapshot, node, node.content or name_rows.content_id(row), row)


def _is_commit_id(rev: str) -> bool:
    return len(rev) == 2 * ID_BYTES and is_commit_prefix(rev)
