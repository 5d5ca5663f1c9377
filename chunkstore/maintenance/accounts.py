"""Accounts: the space that repositories and revisions take, and what deleting them would free.

They count whole packs, since gc deletes those. They read lists, commits and trees, but no data.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.names import CommitId, PackId
from lodefs.chunkstore.format.tree import TreeEntry
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repo.commit_graph import CommitGraph, read_graph
from lodefs.chunkstore.repo.entry_set import EntrySet
from lodefs.chunkstore.repo.store import Store, require_there
from lodefs.chunkstore.repo.tree_walk import walk
from lodefs.chunkstore.system.progress import Progress

WORKERS = 16
RECENT_MAX = 10_000  # packs held in memory
_NOBODY = -1
_PREFIX_BYTES = 8


@dataclass(frozen=True, slots=True)
class RepoAccount:
    """One repository. Bytes of packs are as stored, and a pack counts whole."""

    repo: str
    commits: int
    apparent_bytes: int  # all files of all these commits, as if each were a copy
    stored_bytes: int  # the packs that they name
    freed_bytes: int  # those of them that no other repository names

    @property
    def shared_bytes(self) -> int:
        """The bytes of packs that other repositories name, too."""
        return self.stored_bytes - self.freed_bytes


@dataclass(frozen=True, slots=True)
class StoreAccount:
    """A store: ``repos`` ordered by what deleting them frees, the most first; and unused packs."""

    repos: list[RepoAccount]
    packs: int
    size_bytes: int
    unused_packs: int
    unused_bytes: int  # packs that no repository names; lodefs gc deletes them later
    unreadable: int  # damaged or lost directories, whose contents are not counted


@dataclass(frozen=True, slots=True)
class RevisionAccount:
    """One commit. ``unique_bytes`` are those of the packs that no other commit of the store
    names."""

    repo: str
    rev: str
    commit: CommitId
    apparent_bytes: int
    stored_bytes: int
    unique_bytes: int
    freed_bytes: int | None  # by deleting the branch or tag ``rev``; None for other revisions
    unreadable: int  # as in StoreAccount

    @property
    def shared_bytes(self) -> int:
        """The bytes of packs that other commits name, too."""
        return self.stored_bytes - self.unique_bytes


def store_account(
    store: Store, progress: Progress | None = None, *, workers: int = WORKERS
) -> StoreAccount:
    """Returns the accounts of all repositories of a store. Raises: Corrupt, NotFound for a commit
    that is damaged or gone; NoSpace without room for temporary files; what the store raises."""
    require_there(store.objects)
    with ThreadPoolExecutor(workers, "lodefs-du") as executor:
        tally = _Tally(store, executor, progress or Progress())
        found: list[tuple[str, int, int]] = []
        for group, repo in enumerate(store.repos()):
            kept = _kept(store, repo, read_graph(store, repo, executor))
            tally.add(group, repo, kept.values())
            apparent_bytes = sum(commit.size_bytes for commit in kept.values())
            found.append((repo, len(kept), apparent_bytes))
    counts = tally.counts
    repos = [
        RepoAccount(*one, counts.stored_bytes[group], counts.sole_bytes[group])
        for group, one in enumerate(found)
    ]
    repos.sort(key=lambda one: (-one.freed_bytes, -one.stored_bytes, one.repo))
    return StoreAccount(repos, len(counts), counts.size_bytes, *counts.unnamed(), tally.unreadable)


def revision_account(
    store: Store, repo: str, rev: str, progress: Progress | None = None, *, workers: int = WORKERS
) -> RevisionAccount:
    """Returns the account of one revision against all other commits of the store. Raises what
    ``store_account`` raises; NotFound for the revision."""
    commit_id = store.resolve(repo, rev)
    with ThreadPoolExecutor(workers, "lodefs-du") as executor:
        tally = _Tally(store, executor, progress or Progress())
        graph = read_graph(store, repo, executor)
        commit = graph.commits.get(commit_id) or store.commit(repo, commit_id)
        refs = [ref for ref, at in graph.heads.items() if ref.name == rev and at == commit_id]
        kept = _kept(store, repo, graph)
        others = graph.below(at for ref, at in graph.heads.items() if ref not in refs)
        others &= kept.keys()
        for other in store.repos():
            if other != repo:
                tally.add(
                    0, other, _kept(store, other, read_graph(store, other, executor)).values()
                )
        tally.add(0, repo, _commits(graph, others - {commit_id}))
        tally.add(1, repo, [commit])
        tally.add(2, repo, _commits(graph, kept.keys() - others - {commit_id}))
    counts = tally.counts
    freed_bytes = counts.first_bytes[2]
    if commit_id not in others:
        freed_bytes += counts.first_bytes[1]
    return RevisionAccount(
        repo=repo,
        rev=rev,
        commit=commit_id,
        apparent_bytes=commit.size_bytes,
        stored_bytes=counts.stored_bytes[1],
        unique_bytes=counts.sole_bytes[1],
        freed_bytes=freed_bytes if refs else None,
        unreadable=tally.unreadable,
    )


def _kept(store: Store, repo: str, graph: CommitGraph) -> dict[CommitId, Commit]:
    """Returns the commits that the repository's retention policy keeps."""
    policy = store.settings_log(repo).newest().retention
    kept = graph.kept(policy, int(time.time()))
    return {commit_id: graph.commits[commit_id] for commit_id in kept}


def _commits(graph: CommitGraph, ids: Iterable[CommitId]) -> Iterator[Commit]:
    return (graph.commits[commit_id] for commit_id in ids)


class _Tally:
    """Adds up the packs that groups of commits lead to."""

    def __init__(self, store: Store, executor: Executor, progress: Progress) -> None:
        self._store = store
        self._executor = executor
        self._progress = progress
        progress.phase = "listing packs"
        self.counts = PackCounts(store.objects, executor)
        self.unreadable = 0

    def add(self, group: int, repo: str, commits: Iterable[Commit]) -> None:
        """Adds commits of a repository to a group. Groups come in the order of their numbers."""
        self._progress.phase = f"reading directories of {repo}"
        named: set[PackId] = set()  # recently, by this group: most packs are named repeatedly
        roots = (commit.root for commit in commits)
        with EntrySet() as seen:
            for tree in walk(self._read, roots, self._executor, seen.add):
                self._progress.files_done += 1
                if tree.error is not None:
                    self.unreadable += 1
                    continue
                for pack in tree.content - named:
                    self.counts.name(pack, group)
                if len(named) > RECENT_MAX:
                    named.clear()
                named |= tree.content

    def _read(self, entry: TreeEntry) -> tuple[set[PackId], list[TreeEntry]]:
        return self._store.packs.outline(entry)


class PackCounts:
    """The packs of a store with their stored bytes, and bytes by group of commits. It takes 24
    bytes for each pack, however many groups there are.

    Groups have numbers from 0; each names all of its packs before the next one begins. A pack is
    identified by the first 8 bytes of its id.
    """

    def __init__(self, objects: ObjectStore, executor: Executor) -> None:
        """Lists the packs in sixteen concurrent parts."""
        self._ids = array("Q")
        self._sizes = array("Q")
        parts = [f"{keys.PACKS}{digit:x}" for digit in range(16)]
        for ids, sizes in executor.map(lambda prefix: _listed(objects, prefix), parts):
            self._ids.extend(ids)
            self._sizes.extend(sizes)
        self._first = array("i", [_NOBODY]) * len(self._ids)  # the group that named the pack first
        self._last = array("i", self._first)
        self.size_bytes = sum(self._sizes)
        self.stored_bytes: defaultdict[int, int] = defaultdict(int)  # all packs that a group names
        self.sole_bytes: defaultdict[int, int] = defaultdict(int)  # packs that no other group names
        # Packs that no earlier group names
        self.first_bytes: defaultdict[int, int] = defaultdict(int)

    def __len__(self) -> int:
        return len(self._ids)

    def name(self, pack: PackId, group: int) -> None:
        """Counts a pack that a group names. A pack that does not exist counts nothing."""
        at = self._find(pack)
        if at < 0 or self._last[at] == group:
            return
        size_bytes = self._sizes[at]
        self.stored_bytes[group] += size_bytes
        if self._first[at] == _NOBODY:
            self._first[at] = group
            self.first_bytes[group] += size_bytes
            self.sole_bytes[group] += size_bytes
        elif self._first[at] == self._last[at]:  # only that group had named it before
            self.sole_bytes[self._first[at]] -= size_bytes
        self._last[at] = group

    def unnamed(self) -> tuple[int, int]:
        """Returns the number and bytes of packs that no group names."""
        sizes = [
            size for size, first in zip(self._sizes, self._first, strict=True) if first == _NOBODY
        ]
        return len(sizes), sum(sizes)

    def _find(self, pack: PackId) -> int:
        number = int.from_bytes(pack[:_PREFIX_BYTES])
        at = bisect_left(self._ids, number)
        return at if at < len(self._ids) and self._ids[at] == number else -1


def _listed(objects: ObjectStore, prefix: str) -> tuple[array[int], array[int]]:
    """Lists the packs below a prefix in the order of their ids, which is that of their keys."""
    ids, sizes = array("Q"), array("Q")
    for info in objects.list(prefix):
        if (pack := keys.pack_of(info.key)) is not None:
            ids.append(int.from_bytes(pack[:_PREFIX_BYTES]))
            sizes.append(info.size_bytes)
    return ids, sizes
