"""The limits of a push: the quota, and the removal of most of a branch.

Files are known by their paths: a file that moved counts as removed and added, since readers do not
find it at its old path.
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

EARLY_SIZE_BYTES = 64 * 1024 * 1024  # nothing is checked before that much is sent


class OverQuota(NoSpace):
    """A version would exceed the quota of its repository."""


class Quota:
    """The quota for a commit on top of ``before_bytes``. A version that does not grow is always
    allowed. For one thread."""

    def __init__(self, store: Store, repo: str, before_bytes: int) -> None:
        self._store = store
        self._repo = repo
        self._before_bytes = before_bytes
        self._limit: int | None = None
        self._is_known = False

    def check_early(self, size_bytes: int) -> None:
        """Checks while files are counted, before much is sent. Raises: OverQuota."""
        if size_bytes > max(self._before_bytes, EARLY_SIZE_BYTES):
            self._learn_once()
            self._check(size_bytes)

    def check_put(self, size_bytes: int, kept_bytes: Callable[[], int]) -> None:
        """Checks ``size_bytes`` that are added to a branch, which keeps ``kept_bytes``. Those are
        only computed if they matter. Raises: OverQuota."""
        if size_bytes > EARLY_SIZE_BYTES:
            self._learn_once()
            if self._is_over(self._before_bytes + size_bytes):
                self._check(kept_bytes() + size_bytes)

    def check(self, size_bytes: int) -> None:
        """Checks the current quota right before the commit. Raises: OverQuota."""
        if size_bytes > self._before_bytes:
            self._learn()
            self._check(size_bytes)

    def exceeded_by(self, size_bytes: int) -> int | None:
        """Returns the current quota if a version of ``size_bytes`` exceeds it, otherwise None."""
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
                f"the branch has {self._before_bytes:,}, and this push needs at least "
                f"{size_bytes:,}; nothing is committed. Push less, or raise the quota: "
                f"lodefs quota {self._repo} --size-bytes-max"
            )


def check_arriving(
    store: Store, repo: str, before: CommitId | None, commit_id: CommitId, size_bytes: int
) -> None:
    """Checks the quota for a commit that another store sends to a ref at ``before``. A commit that
    is there already, or in the history, is always allowed. Raises: OverQuota, NotFound."""
    before_bytes = 0 if before is None else store.commit(repo, before).size_bytes
    limit = Quota(store, repo, before_bytes).exceeded_by(size_bytes)
    if limit is not None and not store.has_commit(repo, commit_id):
        raise OverQuota(
            f"the quota of {repo} in {store.url} is {limit:,} bytes for the files of a version: "
            f"version {commit_id.hex()[:12]} has {size_bytes:,}, and the present one has "
            f"{before_bytes:,}; no branch or tag was moved. Copy a smaller version, or raise the "
            f"quota: lodefs quota {repo} --store {quote(store.url)} --size-bytes-max {size_bytes}"
        )


@dataclass(frozen=True, slots=True)
class Changes:
    """The number of files and symlinks that were added, changed and removed, and the bytes of the
    files. Changed files count with their new size."""

    added_files: int = 0
    added_bytes: int = 0
    changed_files: int = 0
    changed_bytes: int = 0
    removed_files: int = 0
    removed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Removals:
    """The number of files that a push would remove from a branch at the commit ``head``, or from
    the directory ``path`` of it if only that is pushed."""

    head: CommitId
    removed_files: int
    files: int
    path: bytes = b""

    @property
    def are_most(self) -> bool:
        """Whether the push would remove more than half of the files."""
        return 2 * self.removed_files > self.files


AllowRemovals = Callable[[Removals], bool]


def allow_all(removals: Removals) -> bool:  # noqa: ARG001
    """Implements AllowRemovals: allows everything."""
    return True


@dataclass(frozen=True, slots=True)
class PushTarget:
    """The branch (REPO@BRANCH) of a push, and whether most of it may be removed."""

    name: str
    allow: AllowRemovals

    def check(self, removals: Removals) -> None:
        """Raises: TooManyRemovals."""
        if removals.are_most and not self.allow(removals):
            path = removals.path.decode("utf-8", "backslashreplace")
            where = f"{self.name}:{path}" if path else self.name
            raise TooManyRemovals(
                f"this push would remove {removals.removed_files:,} of the {removals.files:,} "
                f"files of {where} (a moved file counts as removed). Is this the right directory? "
                "If so, push with --allow-removals; nothing was committed"
            )


def check_changes(
    target: PushTarget, head: CommitId, commit: Commit, changes: Changes | None, totals: Totals
) -> None:
    """Checks what a push removes. If the changes are not known, the totals tell how much it removes
    at least. Raises: TooManyRemovals for more than half of the files of ``commit``, the head,
    unless that is allowed."""
    removed = commit.files - totals.files - totals.symlinks
    if changes is not None:
        removed = changes.removed_files
    target.check(Removals(head, max(0, removed), commit.files))


def check_names(
    packs: PackReader, target: PushTarget, head: CommitId, commit: Commit, names: Iterable[bytes]
) -> None:
    """Checks the same when only the top ``names`` of the pushed directory are known: if the head
    has none of them, all its files would go. Ignores what cannot be read."""
    try:
        there = {entry.name for entry in packs.read_tree(commit.root)}
    except (Corrupt, NotFound, UnknownFormat, Changed):
        return
    if there and there.isdisjoint(names):
        target.check(Removals(head, commit.files, commit.files))
