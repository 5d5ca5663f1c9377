"""Reads the history of a store: commits, directories, and the differences between two of them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple, Protocol

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

NAMES_MAX = 100  # limit for the branches, and for the tags, that a log reads


class ChangeKind(Enum):
    """The kinds of difference between two entries."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"  # content, executable bit or symlink target
    TYPE_CHANGED = "type changed"  # for example, a file became a directory


@dataclass(frozen=True, slots=True)
class Change:
    """A path that differs, with the entries before and now (None: no entry)."""

    what: ChangeKind
    path: bytes
    before: TreeEntry | None
    after: TreeEntry | None


class RefMoveKind(Enum):
    """The kinds of move of a branch or tag."""

    CREATED = "created"
    PUSHED = "pushed"  # to a commit on top of the previous one
    MOVED = "moved"  # to any other commit
    DELETED = "deleted"
    RESTORED = "restored"  # to its commit before it was deleted


@dataclass(frozen=True, slots=True)
class RefMove:
    """One move of a branch or tag. ``author`` is that of a pushed commit, otherwise unknown."""

    time_s: int  # Unix time
    move: RefMoveKind
    before: CommitId | None  # None: it did not exist
    after: CommitId | None
    author: str | None


def reflog(store: Store, repo: str, kind: str, name: str) -> Iterator[RefMove]:
    """Yields all moves of a branch or tag (``kind`` as in refs.py), newest first, even if it is
    deleted; none if it never existed. It reads each one on demand. Raises: Corrupt."""
    entries = store.refs(repo).history(kind, name)
    entry, older = next(entries, None), next(entries, None)
    while entry is not None:
        oldest = next(entries, None)
        at, before = entry.commit, None if older is None else older.commit
        deleted_at = None if older is None or oldest is None else oldest.commit
        move, author = _move_of(before, at, deleted_at), None
        if move is RefMoveKind.MOVED and at is not None:
            with contextlib.suppress(*UNREADABLE):  # the commit may be gone
                commit = store.commit(repo, at)
                if before in commit.parents:
                    move, author = RefMoveKind.PUSHED, commit.author
        yield RefMove(entry.time_s, move, before, at, author)
        entry, older = older, oldest


def _move_of(
    before: CommitId | None, at: CommitId | None, deleted_at: CommitId | None
) -> RefMoveKind:
    """Returns the kind of a move. ``deleted_at`` is the ref's commit before ``before``."""
    if at is None:
        return RefMoveKind.DELETED
    if before is not None:
        return RefMoveKind.MOVED
    return RefMoveKind.RESTORED if at == deleted_at else RefMoveKind.CREATED


def log(
    store: Store, repo: str, rev: str, *, first_parent: bool = False
) -> Iterator[tuple[CommitId, Commit]]:
    """Yields ``rev`` and its ancestors, newest first by their times, each after all its children as
    far as their writers' clocks were right. ``first_parent`` follows first parents only. It reads
    commits on demand, up to where history has expired.

    Raises: NotFound, Corrupt.
    """
    spec, start = store.locate(Spec(repo, rev))
    repo = spec.repo
    commits = {start: store.commit(repo, start)}  # read, and not yielded yet
    met = {start}
    children: Counter[CommitId] = Counter()  # number of children not yielded yet
    ready = [(-commits[start].time_s, 0, start)]  # commits without such children
    unread = list(ready)  # commits whose parents are not read yet
    while ready:
        newest = heappop(ready)
        while unread and unread[0][0] <= newest[0]:  # they may be its children
            for parent in _parents(commits[heappop(unread)[2]], first_parent=first_parent):
                children[parent] += 1
                if parent not in met:
                    met.add(parent)
                    with contextlib.suppress(Expired):
                        commits[parent] = store.commit(repo, parent)
                        heappush(unread, (-commits[parent].time_s, len(met), parent))
        at = newest[2]
        if children[at] or at not in commits:
            continue  # it waits for its children, or was in the heap twice
        commit = commits.pop(at)
        yield at, commit
        for number, parent in enumerate(_parents(commit, first_parent=first_parent)):
            children[parent] -= 1
            if not children[parent] and parent in commits:
                heappush(ready, (-commits[parent].time_s, len(met) + number, parent))


class CommitNames(NamedTuple):
    """The names of the branches and tags at a commit."""

    branches: list[str]
    tags: list[str]


def names_of_commits(store: Store, spec: Spec) -> tuple[dict[CommitId, CommitNames], bool]:
    """Returns the branches and tags at each commit of a repository that has any, and whether these
    are all. It reads at most NAMES_MAX of each kind, with two requests each. Raises: NotFound,
    Corrupt."""
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
    """Returns the entry at REPO@REV:PATH; the root of the commit if there is no path.

    Raises: NotFound; NotADirectory, which names the part of the path that is a file or a symlink;
    Corrupt.
    """
    spec, commit_id = store.locate(spec)
    return find_in(store.packs, store.commit(spec.repo, commit_id).root, spec)


class ReadsTrees(Protocol):
    """A source of the entries of directories, such as a PackReader."""

    def read_tree(self, entry: TreeEntry) -> list[TreeEntry]:
        """Returns the entries of a directory, by name. Raises: Corrupt."""


def find_in(packs: ReadsTrees, root: TreeEntry, spec: Spec) -> TreeEntry:
    """Returns the entry at ``spec.path`` below ``root``, the root of the spec's commit."""
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
    """Whether REPO@REV:PATH is a directory. Does not decode other files or check digests. Raises:
    NotFound if there is no such revision."""
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
    """Yields the entries that ``ls`` shows, with their paths relative to the directory at ``spec``.

    For a file or symlink it yields only that, with its name. Raises what ``find`` raises.
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
    """Yields the differences between two directories (or files), by path.

    It does not read directories with equal digests. It yields all contents of an added or removed
    directory. A changed directory is not yielded itself.
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
    """Yields the differing entries of two differing directories, at any depth."""
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
    """Returns the names whose entries differ between two directories, with these entries."""
    old = {child.name: child for child in packs.read_tree(before)} if before else {}
    new = {child.name: child for child in packs.read_tree(after)} if after else {}
    pairs = ((name, old.get(name), new.get(name)) for name in sorted(old.keys() | new.keys()))
    return [(join(path, name), a, b) for name, a, b in pairs if not _equal(a, b)]


def _equal(a: TreeEntry | None, b: TreeEntry | None) -> bool:
    """Whether two entries are the same to a reader, wherever their bytes lie."""
    if a is None or b is None:
        return a is b
    return (a.kind, a.executable, a.digest) == (b.kind, b.executable, b.digest)


def _change(path: bytes, before: TreeEntry | None, after: TreeEntry | None) -> Change | None:
    """Returns the change of an entry itself; None if it is equal, or a directory in both."""
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
    """A path, and the commit that last changed it."""

    path: bytes
    entry: TreeEntry
    commit_id: CommitId
    commit: Commit


def blame(
    store: Store, spec: Spec, *, goes_on: Callable[[int], bool] = lambda _size_bytes: True
) -> Iterator[Blamed]:
    """Yields which commits last changed a file or symlink, or each entry of a directory, newest
    first, as they are found. If several parents have the same entry, the first one counts.

    It walks the history once for all names, and reads only the trees of a commit that are on the
    path. It asks ``goes_on`` before it reads each tree, with the tree's size, and before it reads
    each commit, with 0; if the answer is no, the walk ends, and what it has not found by then is
    left out.

    Raises: NotFound, NotADirectory, Corrupt.
    """
    spec, start = store.locate(spec)
    path = b"/".join(split_path(spec.path))
    trees = _AskingTrees(store.packs, goes_on)
    with contextlib.suppress(_WalkEnded):
        entry = find_in(trees, store.commit(spec.repo, start).root, spec)
        if entry.kind is Kind.DIRECTORY:
            yield from _BlameWalk(store, trees, spec.repo, path).run(start, None)
        else:
            above, _, name = path.rpartition(b"/")
            yield from _BlameWalk(store, trees, spec.repo, above).run(start, {name})


class _WalkEnded(Exception):
    """The caller of ``blame`` wants no more."""


class _AskingTrees:
    """Reads trees as PackReader does, each after it was asked whether to go on."""

    def __init__(self, packs: PackReader, goes_on: Callable[[int], bool]) -> None:
        self._packs = packs
        self._goes_on = goes_on

    def ask(self, size_bytes: int) -> None:
        """Raises: _WalkEnded."""
        if not self._goes_on(size_bytes):
            raise _WalkEnded

    def read_tree(self, entry: TreeEntry) -> list[TreeEntry]:
        """As of PackReader. Raises: _WalkEnded."""
        self.ask(entry.size_bytes)
        return self._packs.read_tree(entry)


class _BlameWalk:
    def __init__(self, store: Store, trees: _AskingTrees, repo: str, directory: bytes) -> None:
        self._store = store
        self._trees = trees
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
        """Returns the parents that a retention policy has not deleted. Changes before them are
        attributed to the oldest commit that is kept."""
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
        """Returns the names whose entries were the same before."""
        if now is not None and before is not None and now.digest == before.digest:
            return names
        new, old = self._children(now), self._children(before)
        return {name for name in names if name in old and _equal(new[name], old[name])}

    def _entry(self, at: CommitId) -> TreeEntry | None:
        """Returns the directory in a commit; None if it does not exist there."""
        root = self._commit(at).root
        try:
            entry = find_in(self._trees, root, Spec(self._repo, at.hex(), self._directory))
        except (NotFound, NotADirectory):
            return None
        return entry if entry.kind is Kind.DIRECTORY else None

    def _children(self, entry: TreeEntry | None) -> dict[bytes, TreeEntry]:
        return {one.name: one for one in self._trees.read_tree(entry)} if entry else {}

    def _commit(self, at: CommitId) -> Commit:
        if at not in self._commits:
            self._trees.ask(0)
            self._commits[at] = self._store.commit(self._repo, at)
        return self._commits[at]
