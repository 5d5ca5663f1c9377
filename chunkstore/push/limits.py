"""What stops a push: a quota, and that most of a branch would be removed; and what it changes.

A file is known by its path: one that moved is removed and added, since readers do not find it
by its old path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from shlex import quote

from lodefs.chunkstore.errors import (
    Changed,
    Corrupt,
    NoSpace,
    NotFound,
    TooManyRemovals,
    UnknownFormat,
)
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.push.trees.directories import Totals
from lodefs.chunkstore.repo.pack_reader import PackReader
from lodefs.chunkstore.repo.store import Store

EARLY_SIZE_BYTES = 64 * 1024 * 1024  # less is sent before anybody asks


class OverQuota(NoSpace):
    """A version would have more bytes than the quota of its repository."""


class Quota:
    """The quota that a commit on top of ``before_bytes`` has to keep. A version that does not grow
    is allowed, also if that is over the quota already. One thread."""

    def __init__(self, store: Store, repo: str, before_bytes: int) -> None:
        self._store = store
        self._repo = repo
        self._before_bytes = before_bytes
        self._limit: int | None = None
        self._is_known = False

    def check_early(self, size_bytes: int) -> None:
        """While files are counted, before much of them is sent. Raises: OverQuota."""
        if size_bytes > max(self._before_bytes, EARLY_SIZE_BYTES):
            self._learn_once()
            self._check(size_bytes)

    def check_put(self, size_bytes: int, kept_bytes: Callable[[], int]) -> None:
        """The same for so many bytes that come to a branch, which keeps ``kept_bytes``; that is
        only asked if it matters. Raises: OverQuota."""
        if size_bytes > EARLY_SIZE_BYTES:
            self._learn_once()
            if self._is_over(self._before_bytes + size_bytes):
                self._check(kept_bytes() + size_bytes)

    def check(self, size_bytes: int) -> None:
        """Right before the commit: as the quota is now. Raises: OverQuota."""
        if size_bytes > self._before_bytes:
            self._learn()
            self._check(size_bytes)

    def exceeded_by(self, size_bytes: int) -> int | None:
        """The quota, as it is now, if a version of so many bytes is over it."""
        if size_bytes > self._before_bytes:
            self._learn()
        return self._limit if self._is_over(size_bytes) else None

    def _learn_once(self) -> None:
        if not self._is_known:
            self._learn()

    def _learn(self) -> None:
        self._limit = self._store.settings_log(self._repo).newest().quota_size_bytes
        self._is_known = True

    def _is_over(self, size_bytes: int) -> bool:
        return self._limit is not None and size_bytes > max(self._limit, self._before_bytes)

    def _check(self, size_bytes: int) -> None:
        if self._is_over(size_bytes):
            raise OverQuota(
                f"the quota of {self._repo} is {self._limit:,} bytes for the files of a version: "
                f"the branch has {self._before_bytes:,}, and {size_bytes:,} or more are needed; "
                f"nothing is committed. Push less, or: lodefs quota {self._repo} --size-bytes-max"
            )


def check_arriving(
    store: Store, repo: str, before: CommitId | None, commit_id: CommitId, size_bytes: int
) -> None:
    """The quota for a commit that comes with its id, from another store, to a ref that stands at
    ``before``; one that is there already is fine, and so is history. Raises: OverQuota,
    NotFound."""
    before_bytes = 0 if before is None else store.commit(repo, before).size_bytes
    limit = Quota(store, repo, before_bytes).exceeded_by(size_bytes)
    if limit is not None and not store.has_commit(repo, commit_id):
        raise OverQuota(
            f"the quota of {repo} in {store.url} is {limit:,} bytes for the files of a version: "
            f"version {commit_id.hex()[:12]} has {size_bytes:,}, and what is there "
            f"{before_bytes:,}; no branch or tag is moved. Bring a smaller version, or: "
            f"lodefs quota {repo} --store {quote(store.url)} --size-bytes-max {size_bytes}"
        )


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
