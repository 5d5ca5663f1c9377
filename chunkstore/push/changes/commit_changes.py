"""The primitive that writes: a base commit plus changes gives one commit on a branch.

If the branch is not at the base, or moves meanwhile, the changes are merged into it by trees
(three_way.py) as long as the paths are disjoint.
"""

from __future__ import annotations

from collections.abc import Sequence

from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId, check_ref_name, check_repo
from lodefs.chunkstore.push.changes.branch_commits import (
    EMPTY,
    ChangesResult,
    CommitBase,
    CommitJob,
)
from lodefs.chunkstore.push.changes.change import Change, PutDirectory
from lodefs.chunkstore.push.changes.staging import Staging
from lodefs.chunkstore.push.changes.stored_changes import EarlyQuota, StoredChanges, StreamStarts
from lodefs.chunkstore.push.committer import Head, head_of
from lodefs.chunkstore.push.limits import Quota
from lodefs.chunkstore.push.session import PushOptions, PushSession
from lodefs.chunkstore.push.source_directory import source_root
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.progress import Progress


def commit_changes(
    store: Store,
    repo: str,
    branch: str,
    changes: Sequence[Change],
    options: PushOptions,
    *,
    base: CommitId | None = None,
    progress: Progress | None = None,
) -> ChangesResult:
    """Commits changes to a branch, unless they change nothing. It creates a branch that does not
    exist, at ``base`` or empty. It reads nothing that did not change.

    ``base`` is the commit that the changes are meant for; None is the branch's head. Disjoint
    changes of others stay.

    Raises: Conflict, which names the paths that others changed too; NotFound, NotADirectory,
    InvalidInput for changes that cannot be applied; TooManyRemovals; Denied, SourceChanged,
    Unavailable for files; what the store raises. After an error nothing is committed.
    """
    check_repo(repo)
    check_ref_name(branch)
    for change in changes:
        if isinstance(change, PutDirectory):
            source_root(change.source, options.places_apart(store))

    session = PushSession(store, RefName(repo, BRANCHES, branch), options, progress)
    starts = StreamStarts()

    def attempt() -> ChangesResult:
        head = head_of(session)
        at = base_of(session, base, head)
        quota = Quota(store, session.branch.repo, head.size_bytes)
        now = CommitBase(head.id, head.commit) if head.id and head.commit else at
        early = EarlyQuota(quota, store.packs, now.root, now.totals.size_bytes, changes)
        staging = Staging(session, at, early.count)
        stored = StoredChanges(session, changes, starts, early, staging)
        stored.store()
        stored.apply()
        result = staging.commit(CommitJob(base), stored.places)
        stored.add_to(result)
        return result

    return session.run(attempt)


def base_of(session: PushSession, base: CommitId | None, head: Head) -> CommitBase:
    """Returns the commit that changes are meant for: ``base``, or else the head."""
    if base is not None:
        return CommitBase(base, session.store.commit(session.branch.repo, base))
    return EMPTY if head.id is None or head.commit is None else CommitBase(head.id, head.commit)
