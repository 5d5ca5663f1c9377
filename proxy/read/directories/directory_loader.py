"""Loads directories from the store into the node's index, once for all who want them.

A requested directory is loaded at once. If the request was a step of a walk, the directories that
the walk will reach next are loaded after it, many at once (``Walk``). Trees of a commit lie
together in their packs, so that one read of the store fetches hundreds of them, and mounts find
their rows in the index without asking the proxy.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from itertools import islice

from lodefs.chunkstore.errors import (
    Corrupt,
    DeadlineExceeded,
    LodefsError,
    NotADirectory,
    NotFound,
    Unavailable,
)
from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.chunkstore.format.tree import Kind, encode_tree
from lodefs.chunkstore.format.tree import TreeEntry as TreeEntry
from lodefs.chunkstore.nodecache import name_rows
from lodefs.chunkstore.nodecache.name_rows import EntryRow
from lodefs.chunkstore.protocol.wire import Snapshot
from lodefs.chunkstore.repo.pack_reader import check_tree, damaged
from lodefs.chunkstore.system.lru import Lru
from lodefs.proxy.metrics.counters import Counter, Counts
from lodefs.proxy.read.directories.directory_rows import DirectoryRows, name_of
from lodefs.proxy.read.directories.tree_budget import TreeRoom
from lodefs.proxy.read.directories.tree_source import Outcome, Trees
from lodefs.proxy.read.directories.walk import FRONTIER_MAX, Walk
from lodefs.proxy.runtime.shared_tasks import SharedTasks
from lodefs.proxy.runtime.thread_pools import Pools

WALKS_MAX = 64  # snapshots that are walked at once
ROUND_DIRECTORIES_MAX = 256  # loaded ahead at once
ROUND_SIZE_BYTES_MAX = 512 * 1024  # of their trees; a larger one is loaded on demand
ROUND_WAIT_S = 1.0  # how long a request waits for a round before its directory is loaded alone
FORMS_TRIED = 3  # for a directory that is dropped after it is loaded

log = logging.getLogger("lodefs.cache")


class _Ahead:
    """The directories to load ahead of the walk through one snapshot."""

    def __init__(self) -> None:
        self.walk = Walk()
        self.left = 0  # directories that are still to load
        self.task: asyncio.Task[None] | None = None


class _Search:
    """The directories that a search for unknown numbers reads next, each with the size of its tree,
    and how many it may still read: in all, no more than the commit claims."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._waiting = deque([(ROOT_INO, snapshot.root.size_bytes)])
        self._directories_left = snapshot.directories

    def next_group(self) -> list[int]:
        """Returns the directories that are read together; none at the end."""
        group = list(islice(self._waiting, min(self._directories_left, ROUND_DIRECTORIES_MAX)))
        return [ino for ino, _ in group[: _fitting([size_bytes for _, size_bytes in group])]]

    def note_read(self, count: int, below: Iterable[tuple[int, int]]) -> None:
        """Notes that the first ``count`` directories were read, and which are below them."""
        for _ in range(count):
            self._waiting.popleft()
        self._directories_left -= count
        self._waiting.extend(below)


class DirectoryLoader:
    """Loads directories of one store. For use on the event loop only."""

    def __init__(
        self, rows: DirectoryRows, trees: Trees, pools: Pools, counts: Counts, *, deadline_s: float
    ) -> None:
        self._rows = rows
        self._trees = trees
        self._pools = pools
        self._counts = counts
        self._deadline_s = deadline_s
        self._room = TreeRoom(deadline_s=deadline_s)
        self._loads: SharedTasks[tuple[str, int], None] = SharedTasks()
        # Rounds that may load a directory
        self._rounds: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._ahead: OrderedDict[str, _Ahead] = OrderedDict()  # by commit
        self._searches: Lru[str, _Search] = Lru(WALKS_MAX)  # by commit
        self._steps: SharedTasks[str, None] = SharedTasks()

    async def find(self, snapshot: Snapshot, ino: int) -> EntryRow:
        """Returns the row of an entry. If the node does not know its number, it loads directories
        of the snapshot until it does: a mount keeps its numbers when the cache is lost. Each
        directory is read once, whatever is asked for. Raises: NotFound if the snapshot has no such
        number; what ``read_all`` raises; DeadlineExceeded."""
        row = self._rows.find(snapshot, ino)
        if row is not None:
            return row
        search = self._searches.get(snapshot.commit)
        if search is None:
            search = _Search(snapshot)
            self._searches.put(snapshot.commit, search)
        try:
            async with asyncio.timeout(self._deadline_s):
                while row is None and search.next_group():
                    await self._steps.run(
                        snapshot.commit, lambda: self._search_on(snapshot, search)
                    )
                    row = self._rows.find(snapshot, ino)
        except TimeoutError as error:
            late = f"inode {ino} of {name_of(snapshot)} was not found in {self._deadline_s:g} s"
            raise DeadlineExceeded(late) from error
        return self._rows.row(snapshot, ino) if row is None else row

    async def _search_on(self, snapshot: Snapshot, search: _Search) -> None:
        inos = search.next_group()
        outcomes = await self.read_all(snapshot, inos)
        below = await self._pools.disk.run(_directories_below, inos, outcomes)
        search.note_read(len(inos), below)

    async def ensure(self, snapshot: Snapshot, ino: int) -> None:
        """Loads a directory's children, unless that was done before. Raises: NotADirectory;
        NotFound if the snapshot has no such number; Corrupt, Unavailable, Denied,
        DeadlineExceeded."""
        if self._rows.is_loaded(snapshot, ino):
            return
        row = await self.find(snapshot, ino)
        if row.kind != Kind.DIRECTORY:
            raise NotADirectory(f"inode {ino} of {name_of(snapshot)} is not a directory")
        key = (snapshot.commit, ino)
        load_round = self._rounds.get(key)
        # The round may skip the directory, fail at another one, or be slow
        if load_round is not None:
            await asyncio.wait([load_round], timeout=ROUND_WAIT_S)
            if self._rows.is_loaded(snapshot, ino):
                return
        await self._loads.run(key, lambda: self._load(snapshot, ino, row))

    async def read_all(
        self, snapshot: Snapshot, inos: Sequence[int], *, from_store: bool = True
    ) -> list[Outcome]:
        """Returns all entries of many directories with their segments, in order; the error for
        those that cannot be read. Missing directories are loaded (unless ``from_store``, which
        counts them as empty). Raises: Unavailable, DeadlineExceeded, Denied."""
        found = await self._pools.disk.run(self._known_entries, snapshot, inos)
        missing = [n for n, entries in enumerate(found) if entries is None]
        if missing and from_store:
            entries = [name_rows.entry_of(self._rows.row(snapshot, inos[n])) for n in missing]
            what = f"{len(missing)} directories of {name_of(snapshot)}"
            async with self._room.of(sum(entry.size_bytes for entry in entries), what):
                read = await self._read(entries, what)
                loaded = [(inos[n], outcome) for n, outcome in zip(missing, read, strict=True)]
                kept = await self._pools.disk.run(self._keep_each, snapshot, loaded)
            for n, outcome in zip(missing, kept, strict=True):
                found[n] = outcome
        return [[] if outcome is None else outcome for outcome in found]

    async def stored_form(self, snapshot: Snapshot, ino: int, entry: TreeEntry) -> bytes:
        """Returns the stored form of a directory's tree (``entry``). Its entries and bytes count
        like those of a directory that is loaded. Raises: what ``ensure`` raises; the reason if the
        directory cannot be read."""
        what = f"directory {entry.name!r} of {name_of(snapshot)}"
        for _ in range(FORMS_TRIED):
            if not await self._pools.disk.run(self._rows.is_loaded, snapshot, ino):
                (outcome,) = await self.read_all(snapshot, [ino])
                if isinstance(outcome, LodefsError):
                    raise outcome
                del outcome  # free its room
            async with self._room.of(entry.size_bytes, what):
                tree = await self._pools.disk.run(self._encoded, snapshot, ino, entry)
            if tree is not None:
                return tree
        raise Unavailable(f"{what} keeps being dropped from the cache: try again later")

    def _encoded(self, snapshot: Snapshot, ino: int, entry: TreeEntry) -> bytes | None:
        entries = self._rows.entries(snapshot, ino)
        packs = {segment.pack for segment in entry.segments}
        own_pack = packs.pop() if len(packs) == 1 else None
        return None if entries is None else encode_tree(entries, own_pack=own_pack)

    def _known_entries(self, snapshot: Snapshot, inos: Sequence[int]) -> list[Outcome | None]:
        found: list[Outcome | None] = []
        for ino in inos:
            try:
                found.append(self._rows.entries(snapshot, ino))
            except Corrupt as error:
                found.append(error)
        return found

    def _keep_each(
        self, snapshot: Snapshot, loaded: Sequence[tuple[int, Outcome]]
    ) -> list[Outcome]:
        kept: list[Outcome] = []
        for ino, outcome in loaded:
            try:
                if not isinstance(outcome, LodefsError):
                    self._rows.write(snapshot, [(ino, outcome)])
                kept.append(outcome)
            except Corrupt as error:
                kept.append(error)
        return kept

    # --- one directory

    async def _load(self, snapshot: Snapshot, ino: int, row: EntryRow) -> None:
        entry = name_rows.entry_of(row)
        what = f"directory {entry.name!r} of {name_of(snapshot)}"
        check_tree(entry)
        ahead = self._ahead_of(snapshot)
        is_known = ino in ahead.walk or ino == ROOT_INO
        count = ahead.walk.miss(ino, row.parent)
        if not is_known:  # an earlier proxy process has listed it
            siblings = await self._pools.disk.run(self._rows.directories_from, snapshot, ino)
            ahead.walk.put_first(siblings)
        async with self._room.of(entry.size_bytes, what):
            (outcome,) = await self._read([entry], what)
            if isinstance(outcome, NotFound):
                raise Corrupt(f"{name_of(snapshot)}: {outcome}") from outcome
            if isinstance(outcome, Corrupt):
                raise damaged(what, outcome) from outcome
            if isinstance(outcome, LodefsError):
                raise outcome
            ((_, directories),) = await self._pools.disk.run(
                self._write, snapshot, [(ino, outcome)]
            )
        ahead.walk.loaded(ino, directories)
        self._load_ahead(snapshot, ahead, count - 1)

    async def _read(self, entries: Sequence[TreeEntry], what: str) -> list[Outcome]:
        self._counts.add(Counter.TREES_LOADED, len(entries))
        try:
            async with asyncio.timeout(self._deadline_s):
                return await self._trees.read_all(entries)
        except TimeoutError as error:
            late = f"{what} did not arrive within {self._deadline_s:g} s"
            raise DeadlineExceeded(late) from error

    def _write(
        self, snapshot: Snapshot, found: Sequence[tuple[int, list[TreeEntry]]]
    ) -> list[tuple[int, list[int]]]:
        """Writes the rows of directories. Returns the subdirectories of each. Blocking."""
        self._rows.write(snapshot, found)
        return [(ino, _directories(ino, entries)) for ino, entries in found]

    # --- ahead of a walk

    def _ahead_of(self, snapshot: Snapshot) -> _Ahead:
        ahead = self._ahead.setdefault(snapshot.commit, _Ahead())
        self._ahead.move_to_end(snapshot.commit)
        if len(self._ahead) > WALKS_MAX:
            self._ahead.popitem(last=False)
        return ahead

    def _load_ahead(self, snapshot: Snapshot, ahead: _Ahead, count: int) -> None:
        """Loads ``count`` directories of the frontier. If it is loading already, it continues with
        those that the last miss has put first."""
        if ahead.task is None and count:
            ahead.left = count
            ahead.task = asyncio.create_task(self._run_ahead(snapshot, ahead))

    async def _run_ahead(self, snapshot: Snapshot, ahead: _Ahead) -> None:
        try:
            while ahead.left > 0:
                inos = ahead.walk.take(min(ahead.left, ROUND_DIRECTORIES_MAX))
                inos = [ino for ino in inos if (snapshot.commit, ino) not in self._loads]
                if not inos:
                    break
                ahead.left -= len(inos)
                await self._run_round(snapshot, ahead.walk, inos)
        except LodefsError as error:
            log.info("loading directories ahead failed: %s", error)
        finally:
            ahead.task = None

    async def _run_round(self, snapshot: Snapshot, walk: Walk, inos: list[int]) -> None:
        keys = [(snapshot.commit, ino) for ino in inos]
        task = asyncio.create_task(self._load_round(snapshot, walk, inos))
        self._rounds |= dict.fromkeys(keys, task)
        try:
            await task
        finally:
            for key in keys:
                self._rounds.pop(key, None)

    async def _load_round(self, snapshot: Snapshot, walk: Walk, inos: list[int]) -> None:
        missing, there = await self._pools.disk.run(self._rows.unloaded, snapshot, inos)
        fit = _fitting([entry.size_bytes for _, entry in missing])
        walk.put_first(ino for ino, _ in missing[fit:])
        missing = [one for one in missing[:fit] if one[1].size_bytes <= ROUND_SIZE_BYTES_MAX]
        entries = [entry for _, entry in missing]
        what = f"{len(missing)} directories of {name_of(snapshot)}"
        async with self._room.of(sum(entry.size_bytes for entry in entries), what):
            read = await self._read(entries, what)
            good = [
                (ino, outcome)
                for (ino, _), outcome in zip(missing, read, strict=True)
                if not isinstance(outcome, LodefsError)
            ]
            below = [*there, *await self._pools.disk.run(self._write, snapshot, good)]
        for ino, directories in reversed(below):
            walk.loaded(ino, directories)


def _fitting(sizes_bytes: Sequence[int]) -> int:
    """Returns how many of the first trees one round loads: at least one."""
    total_bytes = 0
    for n, size_bytes in enumerate(sizes_bytes):
        total_bytes += size_bytes
        if n and total_bytes > ROUND_SIZE_BYTES_MAX:
            return n
    return len(sizes_bytes)


def _directories_below(inos: Sequence[int], outcomes: Sequence[Outcome]) -> list[tuple[int, int]]:
    """Returns the subdirectories of directories, each with the size of its tree. Those that cannot
    be read are left out."""
    return [
        (child_ino(ino, entry.name), entry.size_bytes)
        for ino, outcome in zip(inos, outcomes, strict=True)
        if not isinstance(outcome, LodefsError)
        for entry in outcome
        if entry.kind is Kind.DIRECTORY
    ]


def _directories(ino: int, entries: Sequence[TreeEntry]) -> list[int]:
    """Returns the numbers of the subdirectories among a directory's children, as many as are
    useful."""
    names = (entry.name for entry in entries if entry.kind is Kind.DIRECTORY)
    return [child_ino(ino, name) for name in islice(names, FRONTIER_MAX)]
