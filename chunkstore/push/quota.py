"""The quota of a repository: how many bytes the files of a version of it may have."""

from __future__ import annotations

from collections.abc import Callable
from shlex import quote

from lodefs.chunkstore.errors import NoSpace
from lodefs.chunkstore.format.names import CommitId
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
