"""Looking at what a store holds: commits, directories, and what differs between two of them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple

from lodefs.chunkstore.errors import (
    UNREADABLE,
    Corrupt,
    Expired,
    NotADirectory,
    NotFound,
)
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.names import CommitId, Spec, split_path
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.repo.pack_reader import PackReader, damaged
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.repo.tree_walk import join

NAMES_MAX = 100  # branches that a log looks up, and tags


class ChangeKind(Enum):
    """How an entry differs."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"  # content, executable bit or symlink target
    TYPE_CHANGED = "type changed"  # a file became a directory, say


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs: what was there and what is there now (None: nothing)."""

    what: ChangeKind
    path: bytes
    before: TreeEntry | None
    after: TreeEntry | None


class RefMoveKind(Enum):
    """What happened to a branch or tag."""

    CREATED = "created"
    PUSHED = "pushed"  # to a commit that was made on top of the one before
    MOVED = "moved"  # to any other
    DELETED = "deleted"
    RESTORED = "restored"  # to where it was when it was deleted


@dataclass(frozen=True, slots=True)
class RefMove:
    """One move of a branch or tag. ``author``: of the commit that was pushed; else not known."""

    time_s: int  # Unix
    move: RefMoveKind
    before: CommitId | None  # None: it was not there
    after: CommitId | None
    author: str | None


def reflog(store: Store, repo: str, kind: str, name: str) -> Iterator[RefMove]:
    """All moves of a branch or tag (``kind`` as of refs.py), newest first, read as they are asked
    for; none for one that never was. Deleted ones too. Raises: Corrupt."""
    entries = store.refs(repo).history(kind, name)
    entry, older = next(entries, None), next(entries, None)
    while entry is not None:
        oldest = next(entries, None)
        at, before = entry.commit, None if older is None else older.commit
        deleted_at = None if older is None or oldest is None else oldest.commit
        move, author = _move_of(before, at, deleted_at), None
        if move is RefMoveKind.MOVED and at is not None:
            with contextlib.suppress(*UNREADABLE):  # it may be gone since
                commit = store.commit(repo, at)
                if before in commit.parents:
                    move, author = RefMoveKind.PUSHED, commit.author
        yield RefMove(entry.time_s, move, before, at, author)
        entry, older = older, oldest


def _move_of(
    before: CommitId | None, at: CommitId | None, deleted_at: CommitId | None
) -> RefMoveKind:
    """Classifies a move by its refs. ``deleted_at``: where the ref was before ``before``."""
    if at is None:
        return RefMoveKind.DELETED
    if before is not None:
        return RefMoveKind.MOVED
    return RefMoveKind.RESTORED if at == deleted_at else RefMoveKind.CREATED


def log(
    store: Store, repo: str, rev: str, *, first_parent: bool = False
) -> Iterator[tuple[CommitId, Commit]]:
    """``rev`` and the commits before it, newest first by their times, each after all whose parent
    it is, as far as the clocks of their writers were right; with ``first_parent`` only those along
    first parents. They are read as they are asked for, as far as they have not expired.

    Raises: NotFound, Corrupt.
    """
    spec, start = store.locate(Spec(repo, rev))
    repo = spec.repo
    commits = {start: store.commit(repo, start)}  # read, and not given yet
    met = {start}
    children: Counter[CommitId] = Counter()  # that were not given yet
    ready = [(-commits[start].time_s, 0, start)]  # of these all were
    unread = list(ready)  # whose parents were not read
    while ready:
        newest = heappop(ready)
        while unread and unread[0][0] <= newest[0]:  # they may turn out to come after it
            for parent in _parents(commits[heappop(unread)[2]], first_parent=first_parent):
                children[parent] += 1
                if parent not in met:
                    met.add(parent)
                    with contextlib.suppress(Expired):
                        commits[parent] = store.commit(repo, parent)
                        heappush(unread, (-commits[parent].time_s, len(met), parent))
        at = newest[2]
        if children[at] or at not in commits:
            continue  # it is ready again when they were given; or it was twice
        commit = commits.pop(at)
        yield at, commit
        for number, parent in enumerate(_parents(commit, first_parent=first_parent)):
            children[parent] -= 1
            if not children[parent] and parent in commits:
                heappush(ready, (-commits[parent].time_s, len(met) + number, parent))


class CommitNames(NamedTuple):
    """Branches and tags that are at a commit, by name."""

    branches: list[str]
    tags: list[str]


def names_of_commits(store: Store, spec: Spec) -> tuple[dict[CommitId, CommitNames], bool]:
    """Of each commit of a repository at which a branch or tag is, these; and whether that is all of
    them: of each kind NAMES_MAX are read, at two requests each. Raises: NotFound, Corrupt."""
    spec, _ = store.locate(spec)
    found: dict[CommitId, CommitNames] = {}
    is_all = True
    for kind in (BRANCHES, TAGS):
        living = store.refs(spec.repo).living(kind)
        for name, entry in islice(living, NAMES_MAX):
            assert entry.commit is not None
            of_it = found.setdefault(entry.commit, CommitNames([], []))
            (of_it.branches if kind == BRANCHES else of_it.tags).append(name)
        is_all = is_all and next(living, None) is None
    return found, is_all


def _parents(commit: Commit, *, first_parent: bool) -> tuple[CommitId, ...]:
    return commit.parents[:1] if first_parent else commit.parents


def find(store: Store, spec: Spec) -> TreeEntry:
    """The entry at REPO@REV:PATH; the root of the commit if there is no path.

    Raises: NotFound; NotADirectory names the part of the path that is a file or a symlink;
    Corrupt.
    """
    spec, commit_id = store.locate(spec)
    return find_in(store.packs, store.commit(spec.repo, commit_id).root, spec)


def find_in(packs: PackReader, root: TreeEntry, spec: Spec) -> TreeEntry:
    """The entry at ``spec.path`` below ``root``, the root of the spec's commit."""
    entry = root
    at = b""
    for name in split_path(spec.path):
        if entry.kind is not Kind.DIRECTORY:
            kind = entry.kind.name.lower()
            raise NotADirectory(f"{Spec(spec.repo, spec.rev, at)} is a {kind}, not a directory")
        at = join(at, name)
        try:
            children = packs.read_tree(entry)
        except Corrupt as error:
            raise damaged(f"the directory of {Spec(spec.repo, spec.rev, at)}", error) from error
        found = next((child for child in children if child.name == name), None)
        if found is None:
            raise NotFound(f"{Spec(spec.repo, spec.rev, at)} does not exist")
        entry = found
    return entry


def has_directory(store: Store, spec: Spec) -> bool:
    """Whether REPO@REV:PATH is a directory. Files beside the path are not decoded; digests are not
    checked. Raises: NotFound if there is no such revision."""
    spec, commit_id = store.locate(spec)
    entry = store.commit(spec.repo, commit_id).root
    for name in split_path(spec.path):
        directories = store.packs.outline(entry).directories
        found = next((child for child in directories if child.name == name), None)
        if found is None:
            return False
        entry = found
    return entry.kind is Kind.DIRECTORY


def listing(
    store: Store, spec: Spec, *, recursive: bool = False
) -> Iterator[tuple[bytes, TreeEntry]]:
    """What ``ls`` shows: paths relative to the directory at ``spec``, by name, and entries.

    A file or symlink is listed alone, by its name. Raises: as ``find``.
    """
    entry = find(store, spec)
    try:
        if entry.kind is not Kind.DIRECTORY:
            yield entry.name, entry
        elif recursive:
            yield from store.packs.walk(entry)
        else:
            yield from ((child.name, child) for child in store.packs.read_tree(entry))
    except Corrupt as error:
        raise damaged(spec, error) from error


def diff(store: Store, before: TreeEntry, after: TreeEntry) -> Iterator[Change]:
    """What differs between two directories (or files), by path.

    Directories with equal digests are not read. A directory that was added or
    removed comes with all that is in it; one that changed is not listed itself.
    """
    packs = store.packs
    if before.kind is Kind.DIRECTORY and after.kind is Kind.DIRECTORY:
        if before.digest != after.digest:
            yield from _changes(packs, b"", before, after)
    elif change := _change(before.name, before, after):
        yield change


def _changes(
    packs: PackReader, path: bytes, before: TreeEntry, after: TreeEntry
) -> Iterator[Change]:
    """The differing entries of two directories that differ; as deep as they may be."""
    stack = [iter(_pairs(packs, path, before, after))]
    while stack:
        found = next(stack[-1], None)
        if found is None:
            stack.pop()
            continue
        at, old, new = found
        if change := _change(at, old, new):
            yield change
        old_tree = old if old is not None and old.kind is Kind.DIRECTORY else None
        new_tree = new if new is not None and new.kind is Kind.DIRECTORY else None
        if old_tree or new_tree:
            stack.append(iter(_pairs(packs, at, old_tree, new_tree)))


Pair = tuple[bytes, TreeEntry | None, TreeEntry | None]


def _pairs(
    packs: PackReader, path: bytes, before: TreeEntry | None, after: TreeEntry | None
) -> list[Pair]:
    """The names of two directories with their entries, where these differ, by name."""
    old = {child.name: child for child in packs.read_tree(before)} if before else {}
    new = {child.name: child for child in packs.read_tree(after)} if after else {}
    pairs = ((name, old.get(name), new.get(name)) for name in sorted(old.keys() | new.keys()))
    return [(join(path, name), a, b) for name, a, b in pairs if not _equal(a, b)]


def _equal(a: TreeEntry | None, b: TreeEntry | None) -> bool:
    """Whether two entries are the same to a reader; where their bytes lie does not count."""
    if a is None or b is None:
        return a is b
    return (a.kind, a.executable, a.digest) == (b.kind, b.executable, b.digest)


def _change(path: bytes, before: TreeEntry | None, after: TreeEntry | None) -> Change | None:
    """The change of an entry itself; None if it is equal, or a directory in both."""
    if before is None:
        return Change(ChangeKind.ADDED, path, before, after)
    if after is None:
        return Change(ChangeKind.REMOVED, path, before, after)
    if before.kind is not after.kind:
        return Change(ChangeKind.TYPE_CHANGED, path, before, after)
    if before.kind is Kind.DIRECTORY or _equal(before, after):
        return None
    return Change(ChangeKind.CHANGED, path, before, after)


class Blamed(NamedTuple):
    """A path, and the commit that made it what it is."""

    path: bytes
    entry: TreeEntry
    commit_id: CommitId
    commit: Commit


def blame(store: Store, spec: Spec) -> Iterator[Blamed]:
    """Which commits brought what is at a path: of a file or symlink it alone, of a directory each
    entry; the newest first, as they are found. Of several parents the first with the same counts.

    History is walked once for all names, and of a commit only the trees on the path are read.

    Raises: NotFound, NotADirectory, Corrupt.
    """
    spec, start = store.locate(spec)
    entry = find_in(store.packs, store.commit(spec.repo, start).root, spec)
    path = b"/".join(split_path(spec.path))
    if entry.kind is Kind.DIRECTORY:
        yield from _BlameWalk(store, spec.repo, path).run(start, None)
    else:
        above, _, name = path.rpartition(b"/")
        yield from _BlameWalk(store, spec.repo, above).run(start, {name})


class _BlameWalk:
    def __init__(self, store: Store, repo: str, directory: bytes) -> None:
        self._store = store
        self._repo = repo
        self._directory = directory
        self._commits: dict[CommitId, Commit] = {}

    def run(self, start: CommitId, names: set[bytes] | None) -> Iterator[Blamed]:
        found = self._children(self._entry(start))
        waiting = {start: {name for name in found if names is None or name in names}}
        while waiting:
            at = max(waiting, key=lambda one: (self._commit(one).time_s, one))
            left = waiting.pop(at)
            now = self._entry(at)
            for parent in self._parents(at):
                same = self._same(now, self._entry(parent), left)
                if same:
                    waiting.setdefault(parent, set()).update(same)
                    left = left - same
            if left:
                children = self._children(now)
                for name in sorted(left):
                    path = join(self._directory, name)
                    yield Blamed(path, children[name], at, self._commit(at))

    def _parents(self, at: CommitId) -> list[CommitId]:
        """Those that a retention policy has not deleted: what was there before is the work of the
        oldest commit that is kept."""
        found = []
        for parent in self._commit(at).parents:
            try:
                self._commit(parent)
            except Expired:
                continue
            found.append(parent)
        return found

    def _same(
        self, now: TreeEntry | None, before: TreeEntry | None, names: set[bytes]
    ) -> set[bytes]:
        """Those of the names that were the same before."""
        if now is not None and before is not None and now.digest == before.digest:
            return names
        new, old = self._children(now), self._children(before)
        return {name for name in names if name in old and _equal(new[name], old[name])}

    def _entry(self, at: CommitId) -> TreeEntry | None:
        """The directory in a commit; None if it has none there."""
        root = self._commit(at).root
        try:
            entry = find_in(self._store.packs, root, Spec(self._repo, at.hex(), self._directory))
        except (NotFound, NotADirectory):
            return None
        return entry if entry.kind is Kind.DIRECTORY else None

    def _children(self, entry: TreeEntry | None) -> dict[bytes, TreeEntry]:
        return {one.name: one for one in self._store.packs.read_tree(entry)} if entry else {}

    def _commit(self, at: CommitId) -> Commit:
        if at not in self._commits:
            self._commits[at] = self._store.commit(self._repo, at)
        return self._commits[at]
