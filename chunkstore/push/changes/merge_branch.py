"""Merge: brings into a branch what a commit has changed since their common ancestor."""

from __future__ import annotations

import heapq

from lodefs.chunkstore.errors import Diverged, Expired
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.journal.existing_commit import point_ref
from lodefs.chunkstore.push.changes.branch_commits import (
    EMPTY,
    ChangesResult,
    CommitBase,
    CommitJob,
    PreparedCommit,
    read_living_head,
    run_commits,
)
from lodefs.chunkstore.push.changes.overlay import RecentTrees, count
from lodefs.chunkstore.push.changes.three_way import Choices
from lodefs.chunkstore.push.committer import Head
from lodefs.chunkstore.push.limits import Changes
from lodefs.chunkstore.push.session import PushOptions, PushSession
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.progress import Progress

_WAY_OUT = (
    ". Say for each of them, or for a directory above it, which side to keep: --ours PATH for the "
    "branch's, --theirs PATH for that of the merged revision"
)


def merge_branch(
    store: Store,
    repo: str,
    branch: str,
    other: CommitId,
    options: PushOptions,
    progress: Progress | None = None,
    choices: Choices | None = None,
) -> ChangesResult:
    """Merges the commit ``other`` into a branch. The branch just moves there if it is an ancestor;
    otherwise a commit with both as parents is made. Nothing happens if ``other`` is in the branch
    already. ``choices`` decide paths that both sides changed differently, for the path or a
    directory above it: True takes the side of ``other``, False that of the branch.

    Raises: Diverged, which names the conflicting paths that ``choices`` leave open; NotFound;
    TooManyRemovals; Conflict if the branch keeps moving; what the store raises.
    """
    head, head_id, commit = read_living_head(store, repo, branch)
    base = common_ancestor(store, repo, head_id, other)
    if other in (base, head_id):
        return _result(head_id, commit, Changes(), unchanged=True)
    if base == head_id and not options.dry_run:
        return _moved(store, RefName(repo, BRANCHES, branch), head, other)
    session = PushSession(store, RefName(repo, BRANCHES, branch), options, progress)
    job = CommitJob(merged=(other,), choices=choices or {}, refusal=Diverged, way_out=_WAY_OUT)

    def attempt() -> ChangesResult:
        at = EMPTY if base is None else CommitBase(base, store.commit(repo, base))
        ours = store.commit(repo, other).root
        return run_commits(session, job, PreparedCommit(at, ours, RecentTrees(store.packs)))

    return session.run(attempt)


def _moved(store: Store, ref: RefName, head: Head, other: CommitId) -> ChangesResult:
    """Moves a branch forward to a commit that follows its head."""
    assert head.ref is not None
    now = store.commit(ref.repo, other)
    changes = count(store.packs, head.root, now.root).changes
    store.ensure_writable()
    point_ref(store, ref, other, expected_sequence=head.ref.sequence)
    return _result(other, now, changes, unchanged=False)


def _result(at: CommitId, now: Commit, changes: Changes, *, unchanged: bool) -> ChangesResult:
    return ChangesResult(
        commit=at.hex(),
        unchanged=unchanged,
        created_branch=False,
        changes=changes,
        files=now.files,
        directories=now.directories,
        size_bytes=now.size_bytes,
    )


def common_ancestor(store: Store, repo: str, one: CommitId, two: CommitId) -> CommitId | None:
    """Returns a newest commit (by the times of commits) that both descend from, or None. Wrong
    clocks may make it an older one, which costs only more conflicts. Raises: NotFound; Expired if a
    retention policy has deleted that part of the history."""
    reached: dict[CommitId, int] = {}  # 1: from one, 2: from two
    waiting: list[tuple[int, CommitId]] = []
    expired: Expired | None = None

    def reach(at: CommitId, side: int) -> None:
        if reached.get(at, 0) | side != reached.get(at, 0):
            reached[at] = reached.get(at, 0) | side
            heapq.heappush(waiting, (-store.commit(repo, at).time_s, at))

    reach(one, 1)
    reach(two, 2)
    while waiting:
        _, at = heapq.heappop(waiting)
        if reached[at] == 3:
            return at
        for parent in store.commit(repo, at).parents:
            try:
                reach(parent, reached[at])
            except Expired as error:
                expired = error
    if expired is not None:
        raise Expired(
            f"the common ancestor of {one.hex()[:12]} and {two.hex()[:12]} has expired, so lodefs "
            f"cannot tell what each of them changed: copy the paths that you want with lodefs push "
            f"({expired})"
        ) from expired
    return None
