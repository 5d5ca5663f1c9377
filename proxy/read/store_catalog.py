"""proxy.node.Catalog of a store: bounded queries about its content, for users."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import TypeVar
from urllib.parse import quote_from_bytes

from lodefs.chunkstore.errors import Expired
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.names import CommitId, Spec, parse_id
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.repo import history
from lodefs.chunkstore.repo.history import Change, ChangeKind
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.lru import Lru
from lodefs.proxy.node import (
    ChangesView,
    ChangeView,
    CommitView,
    LastChange,
    LastChangesView,
    LogView,
    RefKind,
    RefsView,
    RefView,
    RepositoryPage,
)
from lodefs.proxy.read.last_seen import LastSeen
from lodefs.proxy.runtime.thread_pools import Pools

T = TypeVar("T")

REFS_MAX = 200  # of each kind
CHANGES_MAX = 300  # changes that are shown
COUNTED_MAX = 50_000  # changes that are counted
COUNTING_S_MAX = 2.0
COMPARISONS_MAX = 2  # at once
COMMITS_MAX = 2048  # in memory
CHANGES_KEPT = 128
DATED_KEPT = 32
DATED_TREE_BYTES_MAX = 256 * 1024  # of a directory whose entries are dated: about 4,000 of them
DATED_TREES_BYTES_MAX = 16 * 1024 * 1024  # of all versions of it
DATED_COMMITS_MAX = 500
DATED_S_MAX = 1.5
DATED_MESSAGE_CHARS_MAX = 200
METADATA_SHOWN = 50  # of a version
METADATA_CHARS_MAX = 300
DEADLINE_S = 15.0
MESSAGE_CHARS_MAX = 4000


class StoreCatalog:
    """Reads one store, in its threads. For use on the event loop."""

    def __init__(
        self, store: Store, pools: Pools, seen: LastSeen, *, deadline_s: float = DEADLINE_S
    ) -> None:
        self._store = store
        self._seen = seen
        self._pools = pools
        self._deadline_s = deadline_s
        self._names = RepositoryNames(self._name_group)
        self._commits: Lru[tuple[str, CommitId], Commit] = Lru(COMMITS_MAX)
        self._changes: Lru[tuple[str, CommitId, CommitId | None], ChangesView] = Lru(CHANGES_KEPT)
        self._last_changes: Lru[tuple[str, CommitId, bytes], LastChangesView] = Lru(DATED_KEPT)
        self._comparing = asyncio.Semaphore(COMPARISONS_MAX)

    async def close(self) -> None:
        await self._names.close()

    async def repositories(
        self, *, after: str, limit: int, keep: Callable[[str], bool]
    ) -> RepositoryPage:
        return await self._names.page(after, limit, keep)

    async def refs(self, repo: str) -> RefsView:
        return await self._bounded(f"the branches of {repo}", lambda: self._read_refs(repo))

    async def log(self, repo: str, rev: str, limit: int) -> LogView:
        following: CommitId | None = await self._resolve(repo, rev)
        found: list[CommitView] = []
        while following is not None and len(found) < limit:
            try:
                commit = await self._commit(repo, following)
            except Expired:
                if not found:
                    raise
                following = None
                break
            found.append(_commit_view(following, commit))
            following = commit.parents[0] if commit.parents else None
        return LogView(repo, found, following.hex() if following is not None else None)

    async def changes(self, repo: str, rev: str, since: str = "") -> ChangesView:
        commit_id = await self._resolve(repo, rev)
        commit = await self._commit(repo, commit_id)
        if since:
            parent_id: CommitId | None = await self._resolve(repo, since)
        else:
            parent_id = commit.parents[0] if commit.parents else None
        key = (repo, commit_id, parent_id)
        known = self._changes.get(key)
        if known is not None:
            return known
        parent = await self._before(repo, parent_id, is_wanted=bool(since))
        if parent is None or parent_id is None:
            found = _everything(repo, commit_id, commit)
        else:
            tally = _ChangeTally(repo, commit_id, parent_id)
            found = await self._compared(
                f"the changes of {commit_id.hex()[:12]} in {repo}",
                lambda: tally.count(self._store, parent.root, commit.root),
            )
        self._changes.put(key, found)
        return found

    async def last_changes(self, repo: str, rev: str, path: bytes) -> LastChangesView:
        commit_id = await self._resolve(repo, rev)
        key = (repo, commit_id, path)
        found = self._last_changes.get(key)
        if found is None:
            found = await self._compared(
                f"the last changes of a directory of {repo}",
                lambda: _last_changes(self._store, repo, commit_id, path),
            )
            self._last_changes.put(key, found)
        return found

    async def _compared(self, what: str, compare: Callable[[], T]) -> T:
        """Returns the result of ``compare``. Few comparisons run at once."""
        async with asyncio.timeout(self._deadline_s), self._comparing:
            return await self._bounded(what, compare)

    async def _before(
        self, repo: str, commit_id: CommitId | None, *, is_wanted: bool
    ) -> Commit | None:
        """Returns the parent of a commit; None if there is none, or if it has expired and no
        user named it."""
        try:
            return None if commit_id is None else await self._commit(repo, commit_id)
        except Expired:
            if is_wanted:
                raise
            return None

    async def _name_group(self, after: str, limit: int) -> list[str]:
        return await self._bounded(
            "the list of repositories", lambda: list(islice(self._store.repos(after=after), limit))
        )

    async def _resolve(self, repo: str, rev: str) -> CommitId:
        if len(rev) == 64:
            return CommitId(parse_id(rev, "commit id"))
        return await self._bounded(
            f"revision {rev} of {repo}", lambda: self._seen.resolve(repo, rev)[0]
        )

    async def _commit(self, repo: str, commit_id: CommitId) -> Commit:
        known = self._commits.get((repo, commit_id))
        if known is None:
            what = f"commit {commit_id.hex()[:12]} of {repo}"
            known = await self._bounded(what, lambda: self._store.commit(repo, commit_id))
            self._commits.put((repo, commit_id), known)
        return known

    async def _bounded(self, what: str, call: Callable[[], T]) -> T:
        return await self._pools.fetch.bounded(what, self._deadline_s, call)

    def _read_refs(self, repo: str) -> RefsView:
        """Blocking."""
        refs = self._store.refs(repo)
        found: list[RefView] = []
        more = False
        kinds: tuple[tuple[str, RefKind], ...] = ((BRANCHES, "branch"), (TAGS, "tag"))
        for kind, shown in kinds:
            living = list(islice(refs.living(kind), REFS_MAX + 1))
            more = more or len(living) > REFS_MAX
            found += [
                RefView(shown, name, self._seen.newer(repo, name, entry.commit).hex(), entry.time_s)
                for name, entry in living[:REFS_MAX]
                if entry.commit is not None
            ]
        if not found:
            self._store.require_repo(repo)
        return RefsView(repo, found, more)


class _ChangeTally:
    """Counts changes, and keeps the first ones."""

    def __init__(self, repo: str, commit_id: CommitId, parent: CommitId) -> None:
        self._repo = repo
        self._commit_id = commit_id
        self._parent = parent
        self._first: list[ChangeView] = []
        self._counts = dict.fromkeys(ChangeKind, 0)
        self._added_bytes = self._removed_bytes = 0

    def count(self, store: Store, before: TreeEntry, after: TreeEntry) -> ChangesView:
        """Counts for at most COUNTING_S_MAX, plus the directory that is being read then.
        Blocking."""
        ends_s = time.monotonic() + COUNTING_S_MAX
        is_complete = True
        for n, change in enumerate(history.diff(store, before, after)):
            if n >= COUNTED_MAX or time.monotonic() > ends_s:
                is_complete = False
                break
            self._add(change)
        counts = self._counts
        return ChangesView(
            repo=self._repo,
            commit=self._commit_id.hex(),
            parent=self._parent.hex(),
            changes=self._first,
            added=counts[ChangeKind.ADDED],
            removed=counts[ChangeKind.REMOVED],
            changed=counts[ChangeKind.CHANGED] + counts[ChangeKind.TYPE_CHANGED],
            added_bytes=self._added_bytes,
            removed_bytes=self._removed_bytes,
            is_complete=is_complete,
        )

    def _add(self, change: Change) -> None:
        before_bytes, after_bytes = _file_bytes(change.before), _file_bytes(change.after)
        self._counts[change.what] += 1
        self._added_bytes += after_bytes or 0
        self._removed_bytes += before_bytes or 0
        if len(self._first) < CHANGES_MAX:
            path = quote_from_bytes(change.path)
            self._first.append(ChangeView(change.what.value, path, before_bytes, after_bytes))


class _HistoryBounds:
    """The limits on what a walk through history may still read."""

    def __init__(self) -> None:
        self._ends_s = time.monotonic() + DATED_S_MAX
        self._commits = 0
        self._trees_bytes = 0
        self.were_reached = False

    def goes_on(self, size_bytes: int) -> bool:
        """Implements ``goes_on`` of history.blame."""
        self._commits += not size_bytes
        self._trees_bytes += size_bytes
        self.were_reached = self.were_reached or (
            size_bytes > DATED_TREE_BYTES_MAX
            or self._trees_bytes > DATED_TREES_BYTES_MAX
            or self._commits > DATED_COMMITS_MAX
            or time.monotonic() > self._ends_s
        )
        return not self.were_reached


def _last_changes(store: Store, repo: str, commit_id: CommitId, path: bytes) -> LastChangesView:
    """Returns the commits that changed the entries of the directory at a path last; of a file, that
    file. Blocking. Raises what history.blame raises."""
    bounds = _HistoryBounds()
    numbers: dict[CommitId, int] = {}
    commits: list[LastChange] = []
    found: dict[str, int] = {}
    spec = Spec(repo, commit_id.hex(), path)
    for one in history.blame(store, spec, goes_on=bounds.goes_on):
        number = numbers.setdefault(one.commit_id, len(commits))
        if number == len(commits):
            message = one.commit.message[:DATED_MESSAGE_CHARS_MAX]
            commits.append(LastChange(one.commit_id.hex(), one.commit.time_s, message))
        found[quote_from_bytes(one.path.rpartition(b"/")[2])] = number
    return LastChangesView(commits, found, is_complete=not bounds.were_reached)


def _file_bytes(entry: TreeEntry | None) -> int | None:
    return entry.size_bytes if entry is not None and entry.kind is Kind.FILE else None


def _commit_view(commit_id: CommitId, commit: Commit) -> CommitView:
    return CommitView(
        commit=commit_id.hex(),
        parents=[parent.hex() for parent in commit.parents],
        author=commit.author[:MESSAGE_CHARS_MAX],
        message=commit.message[:MESSAGE_CHARS_MAX],
        time_s=commit.time_s,
        files=commit.files,
        directories=commit.directories,
        size_bytes=commit.size_bytes,
        metadata={
            key: value[:METADATA_CHARS_MAX] for key, value in commit.metadata[:METADATA_SHOWN]
        },
    )


def _everything(repo: str, commit_id: CommitId, commit: Commit) -> ChangesView:
    """Returns the changes of a first version: everything was added."""
    return ChangesView(
        repo=repo,
        commit=commit_id.hex(),
        parent=None,
        changes=[],
        added=commit.files,
        removed=0,
        changed=0,
        added_bytes=commit.size_bytes,
        removed_bytes=0,
        is_complete=True,
    )


FRESH_S = 10.0  # then they are read again, and the old ones shown meanwhile
FIRST_NAMES = 200  # in the first group, which a user waits for
GROUP_NAMES = 2000  # in the other groups
NAMES_MAX = 100_000
PATIENCE_S = 5.0  # for a page that is not read yet

ReadGroup = Callable[[str, int], Awaitable[list[str]]]


class RepositoryNames:
    """The names of the repositories in one store. For use on the event loop."""

    def __init__(self, read: ReadGroup, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        """``read`` returns at most this many names after one."""
        self._read = read
        self._clock_s = clock_s
        self._names: list[str] = []
        self._is_complete = False
        self._read_s = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._came = asyncio.Event()

    async def page(self, after: str, limit: int, keep: Callable[[str], bool]) -> RepositoryPage:
        """Returns at most ``limit`` names after one, as soon as that many are known. Raises: the
        errors of reading, if no name is known yet."""
        self._begin()
        ends_s = self._clock_s() + PATIENCE_S
        while True:
            self._came.clear()
            reading = self._reading
            found = self._find(after, limit + 1, keep)
            if len(found) > limit or self._is_complete or reading is None:
                break
            left_s = ends_s - self._clock_s()
            if left_s <= 0:
                break
            await self._wait(reading, left_s)
        if reading is not None and reading.done() and not self._names:
            reading.result()
        more = len(found) > limit
        return RepositoryPage(found[:limit], more, self._is_complete)

    async def _wait(self, reading: asyncio.Task[None], timeout_s: float) -> None:
        came = asyncio.create_task(self._came.wait())
        try:
            await asyncio.wait(
                (came, reading), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            came.cancel()

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _find(self, after: str, limit: int, keep: Callable[[str], bool]) -> list[str]:
        names = self._names
        found: list[str] = []
        for n in range(bisect_right(names, after) if after else 0, len(names)):
            if keep(names[n]):
                found.append(names[n])
                if len(found) == limit:
                    break
        return found

    def _begin(self) -> None:
        if self._reading is not None and not self._reading.done():
            return
        if self._is_complete and self._clock_s() - self._read_s < FRESH_S:
            return
        self._reading = asyncio.create_task(self._read_all())
        self._reading.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _read_all(self) -> None:
        names: list[str] = []
        if not self._is_complete:  # it was interrupted: the names known so far are shown meanwhile
            self._names = names
        while len(names) < NAMES_MAX:
            wanted = GROUP_NAMES if names else FIRST_NAMES
            group = await self._read(names[-1] if names else "", wanted)
            names += group
            self._came.set()
            if len(group) < wanted:
                break
        self._names, self._is_complete, self._read_s = sorted(names), True, self._clock_s()
