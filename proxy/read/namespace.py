"""Snapshots and their entries: from the node's index, loaded from the store a directory at a time.

All rows of a directory's children are written before the mark that it is loaded. What the node
knows needs no store, also after a restart. Inode numbers are derived from paths (inodes.py).
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Sequence
from itertools import islice
from typing import Any, TypeVar

from lodefs.chunkstore.errors import Corrupt, DeadlineExceeded, LodefsError, NotADirectory, NotFound
from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.chunkstore.format.names import ID_BYTES, CommitId, Spec, is_commit_prefix, split_path
from lodefs.chunkstore.format.tree import Entry as TreeEntry
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.nodeapi.wire import Node, Page, Snapshot
from lodefs.chunkstore.nodecache import name_rows
from lodefs.chunkstore.nodecache.kv import KeyValues, Row
from lodefs.chunkstore.nodecache.layout import SNAPSHOTS
from lodefs.chunkstore.nodecache.name_rows import EntryRow
from lodefs.chunkstore.repo.pack_reader import check_tree
from lodefs.chunkstore.repo.store import Store
from lodefs.proxy.cache.overflow_rows import Unwritten
from lodefs.proxy.node import SnapshotFile
from lodefs.proxy.read.tree_budget import TreeRoom
from lodefs.proxy.read.tree_source import Outcome, Trees
from lodefs.proxy.read.walk_prefetch import Walks
from lodefs.proxy.runtime.counters import Counter, Meter
from lodefs.proxy.runtime.thread_pools import Pools

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

RESOLVED_FOR_S = 1.0  # how old the answer for a branch may be
RESOLVED_MAX = 1024
SNAPSHOTS_MAX = 1024  # in memory
ROWS_MAX = 4096  # in one write
WALK_ROWS_MAX = 16  # of children that are looked at for a walk: 4,096 entries


class Namespace:
    """Snapshots, entries, directories of one store. Used from the event loop alone."""

    def __init__(
        self,
        store: Store,
        trees: Trees,
        kv: KeyValues,
        pools: Pools,
        meter: Meter,
        *,
        deadline_s: float,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._trees = trees
        self._kv = Unwritten(kv)
        self._pools = pools
        self._meter = meter
        self._deadline_s = deadline_s
        self._clock_s = clock_s
        self._resolved: OrderedDict[tuple[str, str], tuple[float, Snapshot]] = OrderedDict()
        self._snapshots: OrderedDict[tuple[str, str], Snapshot] = OrderedDict()
        self._resolving: dict[tuple[str, str], asyncio.Task[Snapshot]] = {}
        self._walks = Walks()
        self._loading: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._room = TreeRoom(deadline_s=deadline_s)

    # --- snapshots

    async def snapshot(self, repo: str, rev: str) -> Snapshot:
        """What ``rev`` is now. A commit that the node knows needs no store. NotFound."""
        if _is_commit_id(rev):
            known = self._known(repo, rev)
            if known is not None:
                return known
        key = (repo, rev)
        found = self._resolved.get(key)
        if found is not None and self._clock_s() - found[0] < RESOLVED_FOR_S:
            return found[1]
        return await _shared(self._resolving, key, lambda: self._resolve(repo, rev))

    async def _resolve(self, repo: str, rev: str) -> Snapshot:
        what = f"revision {rev} of {repo}"
        commit_id = await self._pools.fetch.bounded(
            what, self._deadline_s, lambda: self._store.resolve(repo, rev)
        )
        snapshot = self._known(repo, commit_id.hex())
        if snapshot is None:
            snapshot = await self._pools.fetch.bounded(
                what, self._deadline_s, lambda: self._load_commit(repo, commit_id)
            )
            self._remember(snapshot)
        self._resolved[repo, rev] = (self._clock_s(), snapshot)
        self._resolved.move_to_end((repo, rev))
        if len(self._resolved) > RESOLVED_MAX:
            self._resolved.popitem(last=False)
        return snapshot

    def _known(self, repo: str, commit: str) -> Snapshot | None:
        found = self._snapshots.get((repo, commit))
        if found is None:
            commit_id = CommitId(bytes.fromhex(commit))
            root_key = name_rows.entry_key(name_rows.snapshot_key(commit_id), ROOT_INO)
            keys = [name_rows.snapshot_row_key(commit_id, repo), root_key]
            value, root = self._kv.get_many(keys)
            if value is not None and root is not None:
                found = name_rows.decode_snapshot(value)
                self._remember(found)
        return found

    def _remember(self, snapshot: Snapshot) -> None:
        self._snapshots[snapshot.repo, snapshot.commit] = snapshot
        if len(self._snapshots) > SNAPSHOTS_MAX:
            self._snapshots.popitem(last=False)

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
            commit.large.size_bytes if commit.large else None,
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
        """The row of an entry, segments included. Raises: NotFound (never looked up here)."""
        value = self._kv.get(name_rows.entry_key(_key(snapshot), ino))
        if value is None:
            raise NotFound(
                f"inode {ino} of {snapshot.repo}@{snapshot.commit} was never looked up here"
            )
        return name_rows.decode_entry_row(value)

    async def file(self, snapshot: Snapshot, path: bytes) -> Node | SnapshotFile:
        """The file at a path, or an entry that is none. Raises: NotFound, NotADirectory,
        InvalidInput."""
        found = self._row_at(snapshot, path)
        if found is None:
            node = await self.entry(snapshot, path)
            return node if node.kind != Kind.FILE else await self.file_by_ino(snapshot, node.ino)
        return _file_or_node(snapshot, *found)

    async def file_by_ino(self, snapshot: Snapshot, ino: int) -> Node | SnapshotFile:
        """The file with an inode number, or an entry that is none. Raises: NotFound."""
        if ino == ROOT_INO:
            return snapshot.root
        return _file_or_node(snapshot, ino, self.row(snapshot, ino))

    async def entry(self, snapshot: Snapshot, path: bytes) -> Node:
        """The entry at a path. Raises: NotFound, NotADirectory, InvalidInput."""
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
        """The number and row of the entry at a path, if its directory is loaded."""
        names = split_path(path)
        if not names:
            return None
        parent, ino = ROOT_INO, ROOT_INO
        for name in names:
            parent, ino = ino, child_ino(ino, name)
        row = self._child_row(snapshot, ino, parent, names[-1])
        return None if row is None else (ino, row)

    async def by_ino(self, snapshot: Snapshot, ino: int) -> Node:
        """The entry with an inode number. Raises: NotFound (never looked up here)."""
        if ino == ROOT_INO:
            return snapshot.root
        row = self.row(snapshot, ino)
        return name_rows.node_of(ino, row.parent, row)

    async def lookup(self, snapshot: Snapshot, parent: int, name: bytes) -> Node:
        """A directory's child: one look at the index once the directory is loaded."""
        ino = child_ino(parent, name)
        found = self._child(snapshot, ino, parent, name)
        if found is None and await self._ensure_loaded(snapshot, parent):
            found = self._child(snapshot, ino, parent, name)
        if found is None:
            raise NotFound(f"{name!r} is not in directory {parent} of {_name(snapshot)}")
        return found

    def _child(self, snapshot: Snapshot, ino: int, parent: int, name: bytes) -> Node | None:
        row = self._child_row(snapshot, ino, parent, name)
        return None if row is None else name_rows.node_of(ino, row.parent, row)

    def _child_row(self, snapshot: Snapshot, ino: int, parent: int, name: bytes) -> EntryRow | None:
        """The row with the number, unless it is another child's, which loading finds out."""
        value = self._kv.get(name_rows.entry_key(_key(snapshot), ino))
        row = None if value is None else name_rows.decode_entry_row(value)
        return None if row is None or row.name != name or row.parent != parent else row

    async def children(
        self, snapshot: Snapshot, ino: int, *, after: bytes = b"", limit: int
    ) -> Page:
        """Children by name, after a name, at most ``limit``. NotADirectory, NotFound."""
        await self._ensure_loaded(snapshot, ino)
        page = await self._pools.disk.run(self._page, snapshot, ino, after, limit)
        if not page.more and ino != ROOT_INO:
            await self._walked(snapshot, ino)
        return page

    def _page(self, snapshot: Snapshot, ino: int, after: bytes, limit: int) -> Page:
        prefix = name_rows.children_prefix(_key(snapshot), ino)
        rows = self._kv.scan(prefix, after=prefix + after)
        return name_rows.page_of((value for _, value in rows), after, limit)

    async def _walked(self, snapshot: Snapshot, ino: int) -> None:
        """A directory was listed to its end. If somebody walks, the next one is loaded while they
        look at this one."""
        parent = self.row(snapshot, ino).parent
        key = (snapshot.commit, parent)
        if not self._walks.knows(key):
            among = await self._pools.disk.run(self._directories, snapshot, parent)
            self._walks.begin(key, among)
        following = self._walks.listed(key, ino)
        if following is not None:
            self._load_ahead(snapshot, following)

    def _directories(self, snapshot: Snapshot, ino: int) -> list[int]:
        """The directories among the first children of a directory."""
        rows = islice(self._kv.scan(name_rows.children_prefix(_key(snapshot), ino)), WALK_ROWS_MAX)
        pages = (name_rows.decode_page(value) for _, value in rows)
        return [node.ino for page in pages for node in page if node.kind == Kind.DIRECTORY]

    def _load_ahead(self, snapshot: Snapshot, ino: int) -> None:
        if self._kv.get(name_rows.loaded_key(_key(snapshot), ino)) is None:
            row = self.row(snapshot, ino)
            _begun(self._loading, (snapshot.commit, ino), lambda: self._load(snapshot, ino, row))

    def path(self, snapshot: Snapshot, node: Node) -> bytes:
        """The path of an entry, for messages; as much of it as the node knows."""
        names = [node.name] if node.ino != ROOT_INO else []
        parent = node.parent
        while parent != ROOT_INO and names:
            try:
                row = self.row(snapshot, parent)
            except LodefsError:
                return b".../" + b"/".join(reversed(names))
            names.append(row.name)
            parent = row.parent
        return b"/".join(reversed(names))

    # --- whole directories

    async def directories(
        self, snapshot: Snapshot, inos: Sequence[int], *, from_store: bool = True
    ) -> list[Outcome]:
        """All entries of many directories, segments included, in their order; of those that cannot
        be read, why. What was not loaded is (or, where not ``from_store``, counts as empty).
        Unavailable, DeadlineExceeded, Denied."""
        found = await self._pools.disk.run(self._known_entries, snapshot, inos)
        missing = [n for n, entries in enumerate(found) if entries is None]
        if missing and from_store:
            self._meter.add(Counter.TREES_LOADED, len(missing))
            entries = [name_rows.entry_of(self.row(snapshot, inos[n])) for n in missing]
            what = f"{len(missing)} directories of {_name(snapshot)}"
            async with self._room.of(sum(entry.size_bytes for entry in entries), what):
                try:
                    async with asyncio.timeout(self._deadline_s):
                        read = await self._trees.read_all(entries)
                except TimeoutError as error:
                    late = f"{what} did not come within {self._deadline_s:g} s"
                    raise DeadlineExceeded(late) from error
                loaded = [(inos[n], outcome) for n, outcome in zip(missing, read, strict=True)]
                kept = await self._pools.disk.run(self._keep_all, snapshot, loaded)
            for n, outcome in zip(missing, kept, strict=True):
                found[n] = outcome
        return [[] if outcome is None else outcome for outcome in found]

    def _known_entries(self, snapshot: Snapshot, inos: Sequence[int]) -> list[Outcome | None]:
        found: list[Outcome | None] = []
        for ino in inos:
            try:
                found.append(self._loaded_entries(snapshot, ino))
            except Corrupt as error:
                found.append(error)
        return found

    def _keep_all(self, snapshot: Snapshot, loaded: Sequence[tuple[int, Outcome]]) -> list[Outcome]:
        kept: list[Outcome] = []
        for ino, outcome in loaded:
            try:
                if not isinstance(outcome, LodefsError):
                    self._keep_children(snapshot, ino, outcome)
                kept.append(outcome)
            except Corrupt as error:
                kept.append(error)
        return kept

    def _loaded_entries(self, snapshot: Snapshot, ino: int) -> list[TreeEntry] | None:
        """None where it was not loaded yet. Corrupt."""
        key = _key(snapshot)
        if self._kv.get(name_rows.loaded_key(key, ino)) is None:
            return None
        pages = self._kv.scan(name_rows.children_prefix(key, ino))
        inos = [node.ino for _, page in pages for node in name_rows.decode_page(page)]
        values = self._kv.get_many(name_rows.entry_keys(key, inos))
        if None in values:
            raise Corrupt(f"directory {ino} of {_name(snapshot)} lacks rows in the cache's index")
        decode, entry_of = name_rows.decode_entry_row, name_rows.entry_of
        return [entry_of(decode(value)) for value in values if value is not None]

    def known(self, repo: str) -> list[Snapshot]:
        """The snapshots of a repository that this node has met. For any thread."""
        rows = self._kv.scan(SNAPSHOTS)
        snapshots = (name_rows.decode_snapshot(value) for _, value in rows)
        return [snapshot for snapshot in snapshots if snapshot.repo == repo]

    # --- loading

    async def _ensure_loaded(self, snapshot: Snapshot, ino: int) -> bool:
        """Loads a directory's children; False where that was done before."""
        if self._kv.get(name_rows.loaded_key(_key(snapshot), ino)) is not None:
            return False
        row = self.row(snapshot, ino)
        if row.kind != Kind.DIRECTORY:
            raise NotADirectory(f"inode {ino} of {_name(snapshot)} is not a directory")
        key = (snapshot.commit, ino)
        await _shared(self._loading, key, lambda: self._load(snapshot, ino, row))
        return True

    async def _load(self, snapshot: Snapshot, ino: int, row: EntryRow) -> None:
        self._meter.add(Counter.TREES_LOADED)
        what = f"directory {row.name!r} of {_name(snapshot)}"
        entry = name_rows.entry_of(row)
        check_tree(entry)
        async with self._room.of(entry.size_bytes, what):
            try:
                async with asyncio.timeout(self._deadline_s):
                    entries = await self._trees.read(entry)
            except TimeoutError as error:
                late = f"{what} did not come within {self._deadline_s:g} s"
                raise DeadlineExceeded(late) from error
            except NotFound as error:
                raise Corrupt(f"{_name(snapshot)}: {error}") from error
            await self._pools.disk.run(self._keep_children, snapshot, ino, entries)

    def _keep_children(self, snapshot: Snapshot, ino: int, entries: list[TreeEntry]) -> None:
        """Writes the rows of a directory's children, then that they are all there."""
        inos = [child_ino(ino, entry.name) for entry in entries]
        key = _key(snapshot)
        keys = name_rows.entry_keys(key, inos)
        self._check_collisions(snapshot, ino, entries, inos, keys)
        prefix = name_rows.children_prefix(key, ino)
        rows: list[Row] = []
        encode, node_of = name_rows.encode_entry_row, name_rows.node_of
        for first in range(0, len(entries), name_rows.PAGE_NODES):
            end = first + name_rows.PAGE_NODES
            part = entries[first:end]
            rows += zip(keys[first:end], [encode(ino, entry) for entry in part], strict=True)
            nodes = [
                node_of(child, ino, entry)
                for child, entry in zip(inos[first:end], part, strict=True)
            ]
            rows.append((prefix + nodes[-1].name, name_rows.encode_page(nodes)))
            if len(rows) >= ROWS_MAX:
                self._kv.write(rows)
                rows = []
        self._kv.write([*rows, (name_rows.loaded_key(key, ino), b"")])

    def _check_collisions(
        self,
        snapshot: Snapshot,
        parent: int,
        entries: list[TreeEntry],
        inos: list[int],
        keys: list[bytes],
    ) -> None:
        """Two entries of one snapshot with one number: Corrupt, with both paths."""
        seen: dict[int, bytes] = {ROOT_INO: b""}
        for ino, entry in zip(inos, entries, strict=True):
            if ino in seen:
                self._collision(snapshot, ino, (parent, seen[ino]), (parent, entry.name))
            seen[ino] = entry.name
        for first in range(0, len(inos), ROWS_MAX):
            values = self._kv.get_many(keys[first : first + ROWS_MAX])
            for ino, value in zip(inos[first : first + ROWS_MAX], values, strict=True):
                if value is None:
                    continue
                row = name_rows.decode_entry_row(value)
                if (row.parent, row.name) != (parent, seen[ino]):
                    self._collision(snapshot, ino, (row.parent, row.name), (parent, seen[ino]))

    def _collision(
        self, snapshot: Snapshot, ino: int, one: tuple[int, bytes], two: tuple[int, bytes]
    ) -> None:
        paths = [
            self.path(snapshot, Node(0, parent, name, 0, False, 0, b"", b""))  # noqa: FBT003
            for parent, name in (one, two)
        ]
        raise Corrupt(
            f"{paths[0]!r} and {paths[1]!r} of {_name(snapshot)} have the same inode number "
            f"{ino}: rename one of them and push again"
        )


def _file_or_node(snapshot: Snapshot, ino: int, row: EntryRow) -> Node | SnapshotFile:
    node = name_rows.node_of(ino, row.parent, row)
    if node.kind != Kind.FILE:
        return node
    return SnapshotFile(snapshot, node, node.content or name_rows.content_id(row), row)


def _key(snapshot: Snapshot) -> bytes:
    return name_rows.snapshot_key(bytes.fromhex(snapshot.commit))


def _name(snapshot: Snapshot) -> str:
    return f"{snapshot.repo}@{snapshot.commit[:12]}"


def _is_commit_id(rev: str) -> bool:
    return len(rev) == 2 * ID_BYTES and is_commit_prefix(rev)


async def _shared(
    tasks: dict[K, asyncio.Task[T]], key: K, begin: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    """The outcome of one task for all who want the same; none of them can cancel it."""
    return await asyncio.shield(_begun(tasks, key, begin))


def _begun(
    tasks: dict[K, asyncio.Task[T]], key: K, begin: Callable[[], Coroutine[Any, Any, T]]
) -> asyncio.Task[T]:
    """The task that runs for ``key``, begun now where there is none."""
    task = tasks.get(key)
    if task is None:
        task = tasks[key] = asyncio.create_task(begin())

        def ended(task: asyncio.Task[T]) -> None:
            tasks.pop(key, None)
            if not task.cancelled():
                task.exception()  # seen, also where nobody waits any more

        task.add_done_callback(ended)
    return task
