"""Revert: a new commit takes back what an earlier commit of the branch has changed."""

from __future__ import annotations

from lodefs.chunkstore.errors import Diverged, InvalidInput
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.push.changes.branch_commits import (
    ChangesResult,
    CommitBase,
    CommitJob,
    PreparedCommit,
    read_living_head,
    run_commits,
)
from lodefs.chunkstore.push.changes.overlay import ChangedDirectory, Item, RecentTrees
from lodefs.chunkstore.push.session import PushOptions, PushSession
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.progress import Progress

_WAY_OUT = (
    ", since a later commit changed what this one did. `lodefs diff` shows both; `lodefs cp` "
    "copies the paths that you want from an older revision"
)


def revert_commit(
    store: Store,
    repo: str,
    branch: str,
    reverted: CommitId,
    options: PushOptions,
    progress: Progress | None = None,
    *,
    parent: int | None = None,
) -> ChangesResult:
    """Commits the state before ``reverted`` to each path that it changed. This is a merge of its
    parent, with the commit itself as the base. Reverting the first commit of a branch removes all
    that it added. ``parent`` chooses the parent of a merge, from 1 on.

    Raises: Diverged, which names paths that changed differently since; InvalidInput for a merge
    without ``parent``; NotFound; Expired; Conflict if the branch keeps moving; what the store
    raises.
    """
    read_living_head(store, repo, branch)
    commit = store.commit(repo, reverted)
    before = _root_before(store, repo, reverted, commit, parent)
    session = PushSession(store, RefName(repo, BRANCHES, branch), options, progress)

    prepared = PreparedCommit(CommitBase(reverted, commit), before, RecentTrees(store.packs))
    job = CommitJob(refusal=Diverged, way_out=_WAY_OUT)
    return session.run(lambda: run_commits(session, job, prepared))


def _root_before(store: Store, repo: str, at: CommitId, commit: Commit, parent: int | None) -> Item:
    """Returns the root directory before a commit; an empty one before the first commit."""
    parents = commit.parents
    if parent is None and len(parents) > 1:
        named = ", ".join(f"{n} is {one.hex()[:12]}" for n, one in enumerate(parents, 1))
        raise InvalidInput(
            f"{at.hex()[:12]} of {repo} is a merge: say with --parent which of its parents the "
            f"branch goes back to ({named})"
        )
    number = parent or 1
    if parent is not None and not 1 <= number <= len(parents):
        raise InvalidInput(f"{at.hex()[:12]} of {repo} has no parent {parent}")
    return store.commit(repo, parents[number - 1]).root if parents else ChangedDirectory(None, {})
