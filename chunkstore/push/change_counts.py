"""What a push changes in a branch: how many files it adds, changes and removes, and their bytes.

A file is known by its path: one that moved is removed and added, since readers do not find it
by its old path. Directories of equal digest are not looked at. What was removed is not read, but
follows from the totals of both commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lodefs.chunkstore.errors import Changed, Corrupt, NotFound, TooManyRemovals, UnknownFormat
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.tree import SAME_PACK, Entry, Kind, decode_tree
from lodefs.chunkstore.push.index.stat_cache import StatCache
from lodefs.chunkstore.push.trees.directories import HashedDirectory, Totals, contents_of, key_of
from lodefs.chunkstore.repo.pack_reader import PackReader


@dataclass(frozen=True, slots=True)
class Changes:
    """Files and symlinks by what became of them, and the bytes of the files: those of changed ones
    as they are now."""

    added_files: int = 0
    added_bytes: int = 0
    changed_files: int = 0
    changed_bytes: int = 0
    removed_files: int = 0
    removed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Removals:
    """A push would remove so many of the files that a branch has at the commit ``head``, or that a
    directory of it has, which is pushed by itself: at ``path``."""

    head: CommitId
    removed_files: int
    files: int
    path: bytes = b""

    @property
    def are_most(self) -> bool:
        """Whether that is more than half of them."""
        return 2 * self.removed_files > self.files


AllowRemovals = Callable[[Removals], bool]


def allow_all(removals: Removals) -> bool:  # noqa: ARG001
    """An AllowRemovals that allows everything."""
    return True


@dataclass(frozen=True, slots=True)
class PushTarget:
    """The branch (REPO@BRANCH) that is pushed to, and whether most of it may be removed."""

    name: str
    allow: AllowRemovals

    def check(self, removals: Removals) -> None:
        """Raises: TooManyRemovals."""
        if removals.are_most and not self.allow(removals):
            path = removals.path.decode("utf-8", "backslashreplace")
            where = f"{self.name}:{path}" if path else self.name
            raise TooManyRemovals(
                f"this push would remove {removals.removed_files:,} of the {removals.files:,} "
                f"files of {where} (files that moved count as removed). Is it the right "
                "directory? If so, push with --allow-removals; nothing is committed"
            )


@dataclass(slots=True)
class _Count:
    added_files: int = 0
    added_bytes: int = 0
    changed_files: int = 0
    changed_bytes: int = 0
    replaced_bytes: int = 0  # what the changed ones had before


def changes_between(
    packs: PackReader, head: Commit | None, root: HashedDirectory, totals: Totals, memory: StatCache
) -> Changes | None:
    """What ``root``, the directory that is pushed, changes in a branch at ``head``; None if the
    trees of the head cannot be read. Raises: IndexBroken, Unavailable, Denied."""
    files = totals.files + totals.symlinks
    if head is None:
        return Changes(added_files=files, added_bytes=totals.size_bytes)
    try:
        count = _count(packs, head.root, root, memory)
    except (Corrupt, NotFound, UnknownFormat, Changed):
        return None
    kept_bytes = totals.size_bytes - count.added_bytes - count.changed_bytes + count.replaced_bytes
    return Changes(
        count.added_files,
        count.added_bytes,
        count.changed_files,
        count.changed_bytes,
        max(0, head.files - (files - count.added_files)),
        max(0, head.size_bytes - kept_bytes),
    )


def check_changes(
    target: PushTarget, head: CommitId, commit: Commit, changes: Changes | None, totals: Totals
) -> None:
    """Raises: TooManyRemovals if a push would remove more than half of the files of ``commit``, the
    head, and that is not allowed. Of changes that are not known, what it removes at least
    counts."""
    removed = commit.files - totals.files - totals.symlinks
    if changes is not None:
        removed = changes.removed_files
    target.check(Removals(head, max(0, removed), commit.files))


def check_names(
    packs: PackReader, target: PushTarget, head: CommitId, commit: Commit, names: Iterable[bytes]
) -> None:
    """The same, when no more is known than the ``names`` at the top of the directory that is
    pushed: if none of those in the head is among them, all its files would go. What cannot be read
    is ignored."""
    try:
        there = {entry.name for entry in packs.read_tree(commit.root)}
    except (Corrupt, NotFound, UnknownFormat, Changed):
        return
    if there and there.isdisjoint(names):
        target.check(Removals(head, commit.files, commit.files))


def _count(packs: PackReader, head: Entry, root: HashedDirectory, memory: StatCache) -> _Count:
    count = _Count()
    stack: list[tuple[HashedDirectory, bytes, Entry | None]] = [(root, b"", head)]
    while stack:
        child, key, before = stack.pop()
        if before is not None and before.digest == child.digest:
            continue
        files, children = contents_of(child, key, memory)
        there = {entry.name: entry for entry in packs.read_tree(before)} if before else {}
        for entry in decode_tree(files, SAME_PACK):
            _count_one(count, there.get(entry.name), entry)
        for other in children:
            old = there.get(other.name)
            is_tree = old is not None and old.kind is Kind.DIRECTORY
            stack.append((other, key_of(key, other.name), old if is_tree else None))
    return count


def _count_one(count: _Count, before: Entry | None, entry: Entry) -> None:
    if before is None or before.kind is Kind.DIRECTORY:
        count.added_files += 1
        count.added_bytes += _bytes_of(entry)
    elif (before.kind, before.executable, before.digest) != (
        entry.kind, entry.executable, entry.digest,
    ):  # fmt: skip
        count.changed_files += 1
        count.changed_bytes += _bytes_of(entry)
        count.replaced_bytes += _bytes_of(before)


def _bytes_of(entry: Entry) -> int:
    return entry.size_bytes if entry.kind is Kind.FILE else 0
