"""What a push changes in a branch: how many files it adds, changes and removes, and their bytes.

A file is known by its path: one that moved is removed and added, since readers do not find it
by its old path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lodefs.chunkstore.errors import Changed, Corrupt, NotFound, TooManyRemovals, UnknownFormat
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.push.trees.directories import Totals
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
