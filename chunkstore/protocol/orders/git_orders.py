"""Messages between a proxy and the process that imports a commit of Git: one line of JSON each."""

from __future__ import annotations

import msgspec

from lodefs.chunkstore.protocol.wire import Failure


class GitOrder(msgspec.Struct, frozen=True):
    """An import of a branch, tag or commit of Git into a repository. ``lfs_repos`` are those whose
    objects of Git LFS it may use; ``directory`` is where fetched commits are kept."""

    url: str
    rev: str
    repo: str
    lfs_repos: tuple[str, ...]
    directory: str
    size_bytes_max: int
    credentials_file: str | None = None


class GitOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The id of the commit that the store has now, or why it has none."""

    git_commit: str = ""
    failure: Failure | None = None
