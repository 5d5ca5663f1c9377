"""What a store holds, as the status page shows it: repositories, branches, versions, changes.

Implementation: read/store_catalog.py. Paths are percent-encoded as in URLs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

RefKind = Literal["branch", "tag"]
ChangeName = Literal["added", "removed", "changed", "type changed"]


class RepositoryPage(msgspec.Struct, frozen=True):
    """Names of repositories, in order. ``more``: others follow. ``is_complete``: the store has been
    listed to its end; if not, there may be others even where ``more`` is false."""

    names: list[str]
    more: bool
    is_complete: bool


class RefView(msgspec.Struct, frozen=True):
    """A branch or tag, and where it is."""

    kind: RefKind
    name: str
    commit: str
    moved_s: int  # Unix


class RefsView(msgspec.Struct, frozen=True):
    """Branches, then tags, of a repository. ``more``: there are others."""

    repo: str
    refs: list[RefView]
    more: bool


class CommitView(msgspec.Struct, frozen=True):
    """One version."""

    commit: str
    parents: list[str]
    author: str
    message: str
    time_s: int  # Unix
    files: int
    directories: int
    size_bytes: int


class LogView(msgspec.Struct, frozen=True):
    """Versions, newest first. ``next``: the commit that comes after them, or null."""

    repo: str
    commits: list[CommitView]
    next: str | None


class ChangeView(msgspec.Struct, frozen=True):
    """One path that differs. Sizes are null where there is no file."""

    what: ChangeName
    path: str
    before_bytes: int | None
    after_bytes: int | None


class ChangesView(msgspec.Struct, frozen=True):
    """What a version changed against its first parent (null: it has none). ``is_complete``: all
    was counted; ``changes`` has the first of them."""

    repo: str
    commit: str
    parent: str | None
    changes: list[ChangeView]
    added: int
    removed: int
    changed: int
    added_bytes: int
    removed_bytes: int
    is_complete: bool


class Catalog(Protocol):
    """Looks into a store. Methods raise errors.py's classes; all awaits have deadlines."""

    async def repositories(
        self, *, after: str, limit: int, keep: Callable[[str], bool]
    ) -> RepositoryPage:
        """Repositories that ``keep`` takes, after a name, at most ``limit``."""
        ...

    async def refs(self, repo: str) -> RefsView:
        """Branches and tags. Raises: NotFound."""
        ...

    async def log(self, repo: str, rev: str, limit: int) -> LogView:
        """The versions from ``rev`` back. Raises: NotFound."""
        ...

    async def changes(self, repo: str, rev: str) -> ChangesView:
        """What a version changed. Raises: NotFound."""
        ...
