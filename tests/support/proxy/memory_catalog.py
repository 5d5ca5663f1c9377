"""A catalog of one repository with one version, for tests of everything that speaks HTTP."""

from __future__ import annotations

from collections.abc import Callable

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.protocol.wire import Snapshot
from lodefs.proxy.node import (
    Catalog,
    ChangesView,
    CommitView,
    LastChange,
    LastChangesView,
    LogView,
    RefsView,
    RefView,
    RepositoryPage,
)


class MemoryCatalog(Catalog):
    """proxy.node.Catalog of a snapshot."""

    def __init__(self, snapshot: Snapshot, branches: set[str]) -> None:
        self._snapshot = snapshot
        self._branches = branches

    async def repositories(
        self, *, after: str, limit: int, keep: Callable[[str], bool]
    ) -> RepositoryPage:
        repo = self._snapshot.repo
        names = [repo] if repo > after and keep(repo) else []
        return RepositoryPage(names, more=False, is_complete=True)

    async def refs(self, repo: str) -> RefsView:
        self._check(repo)
        commit, moved_s = self._snapshot.commit, self._snapshot.time_s
        refs = [RefView("branch", name, commit, moved_s) for name in sorted(self._branches)]
        return RefsView(repo, refs, more=False)

    async def log(self, repo: str, rev: str, limit: int) -> LogView:
        self._check(repo)
        one = self._snapshot
        figures = (one.time_s, one.files, one.directories, one.size_bytes)
        return LogView(repo, [CommitView(one.commit, [], "A", "first", *figures)], None)

    async def changes(self, repo: str, rev: str, since: str = "") -> ChangesView:
        self._check(repo)
        one = self._snapshot
        counts = (one.files, 0, 0, one.size_bytes, 0)
        return ChangesView(repo, one.commit, None, [], *counts, is_complete=True)

    async def last_changes(self, repo: str, rev: str, path: bytes) -> LastChangesView:
        self._check(repo)
        one = self._snapshot
        return LastChangesView([LastChange(one.commit, one.time_s, "first")], {}, is_complete=False)

    def _check(self, repo: str) -> None:
        if repo != self._snapshot.repo:
            raise NotFound(f"there is no repository {repo!r}")
