"""Looking at what a store holds: commits, directories, and what differs between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from chunkstore.commit import Commit
from chunkstore.errors import NotADirectory, NotFound
from chunkstore.names import CommitId, Spec, split_path
from chunkstore.packreader import PackReader
from chunkstore.store import Store
from chunkstore.tree import Entry, Kind
from chunkstore.treescan import join


class What(Enum):
    """How an entry differs."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"  # content, executable bit or symlink target
    TYPE_CHANGED = "type changed"  # a file became a directory, say


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs: what was there and what is there now (None: nothing)."""

    what: What
    path: bytes
    before: Entry | None
    after: Entry | None


def log(store: Store, repo: str, rev: str) -> Iterator[tuple[CommitId, Commit]]:
    """The commits from ``rev`` back along first parents, newest first, read as they are asked for.

    NotFound, Corrupt.
    """
    commit_id: CommitId | None = store.resolve(repo, rev)
    while commit_id is not None:
        commit = store.commit(repo, commit_id)
        yield commit_id, commit
        commit_id = commit.parents[0] if commit.parents else None


def find(store: Store, spec: Spec) -> Entry:
    """The entry at REPO@REV:PATH; the root of the commit where there is no path.

    NotFound; NotADirectory names the part of the path that is a file or a symlink.
    """
    commit_id = store.resolve(spec.repo, spec.rev)
    return find_in(store.packs, store.commit(spec.repo, commit_id).root, spec)


def find_in(packs: PackReader, root: Entry, spec: Spec) -> Entry:
    """The entry at ``spec.path`` below ``root``, the root of the spec's commit."""
    entry = root
    at = b""
    for name in split_path(spec.path):
        if entry.kind is not Kind.DIRECTORY:
            kind = entry.kind.name.lower()
            raise NotADirectory(f"{Spec(spec.repo, spec.rev, at)} is a {kind}, not a directory")
        at = join(at, name)
        found = next((child for child in packs.read_tree(entry) if child.name == name), None)
        if found is None:
            raise NotFound(f"{Spec(spec.repo, spec.rev, at)} does not exist")
        entry = found
    return entry


def listing(store: Store, spec: Spec, *, recursive: bool = False) -> Iterator[tuple[bytes, Entry]]:
    """What ``ls`` shows: paths relative to the directory at ``spec``, by name, and entries.

    A file or symlink is listed alone, by its name.
    """
    entry = find(store, spec)
    if entry.kind is not Kind.DIRECTORY:
        yield entry.name, entry
    elif recursive:
        yield from store.packs.walk(entry)
    else:
        yield from ((child.name, child) for child in store.packs.read_tree(entry))


def diff(store: Store, before: Entry, after: Entry) -> Iterator[Change]:
    """What differs between two directories (or files), by path.

    Equal directories are told by their digests and not read. A directory that was added or
    removed comes with all that is in it; one that changed is not listed itself.
    """
    packs = store.packs
    if before.kind is Kind.DIRECTORY and after.kind is Kind.DIRECTORY:
        if before.digest != after.digest:
            yield from _changes(packs, b"", before, after)
    elif change := _change(before.name, before, after):
        yield change


def _changes(packs: PackReader, path: bytes, before: Entry, after: Entry) -> Iterator[Change]:
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


Pair = tuple[bytes, Entry | None, Entry | None]


def _pairs(packs: PackReader, path: bytes, before: Entry | None, after: Entry | None) -> list[Pair]:
    """The names of two directories with their entries, where these differ, by name."""
    old = {child.name: child for child in packs.read_tree(before)} if before else {}
    new = {child.name: child for child in packs.read_tree(after)} if after else {}
    pairs = ((name, old.get(name), new.get(name)) for name in sorted(old.keys() | new.keys()))
    return [(join(path, name), a, b) for name, a, b in pairs if not _equal(a, b)]


def _equal(a: Entry | None, b: Entry | None) -> bool:
    """Whether two entries are the same to a reader; where their bytes lie does not count."""
    if a is None or b is None:
        return a is b
    return (a.kind, a.executable, a.digest) == (b.kind, b.executable, b.digest)


def _change(path: bytes, before: Entry | None, after: Entry | None) -> Change | None:
    """The change of an entry itself; None where it is equal, or a directory in both."""
    if before is None:
        return Change(What.ADDED, path, before, after)
    if after is None:
        return Change(What.REMOVED, path, before, after)
    if before.kind is not after.kind:
        return Change(What.TYPE_CHANGED, path, before, after)
    if before.kind is Kind.DIRECTORY or _equal(before, after):
        return None
    return Change(What.CHANGED, path, before, after)
