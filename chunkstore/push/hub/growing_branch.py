"""A branch that grows by commit after commit of one session, in memory for one commit at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lodefs.chunkstore.errors import Conflict
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.push.changes.branch_commits import CommitBase, CommitJob
from lodefs.chunkstore.push.changes.commit_changes import base_of
from lodefs.chunkstore.push.changes.staging import Staging
from lodefs.chunkstore.push.committer import head_of
from lodefs.chunkstore.push.session import PushOptions, PushSession
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.progress import Progress


class GrowingBranch:
    """The branch of a session that has begun. For one thread."""

    def __init__(self, session: PushSession) -> None:
        self._session = session
        self.store = session.store
        self._base = base_of(session, None, head_of(session))
        self._staging: Staging | None = Staging(session, self._base)

    @property
    def head(self) -> CommitId | None:
        """The last commit; None if there is none yet."""
        return self._base.id

    @property
    def staging(self) -> Staging:
        """What the next commit is made of. It is another one after each commit."""
        if self._staging is None:
            self._session.write_again()
            self._staging = Staging(self._session, self._base)
        return self._staging

    def settle(self) -> None:
        """Returns when the store has all contents that were staged."""
        self.staging.contents.seal()
        self._session.uploader.finish()

    def commit(self) -> CommitId:
        """Commits what is staged. Raises: as Staging.commit."""
        result = self.staging.commit(CommitJob())
        commit_id = CommitId(bytes.fromhex(result.commit))
        at = self.store.commit(self._session.branch.repo, commit_id)
        self._base, self._staging = CommitBase(commit_id, at), None
        return commit_id


@contextmanager
def growing_branch(
    store: Store, repo: str, branch: str, options: PushOptions, progress: Progress | None = None
) -> Iterator[GrowingBranch]:
    """Opens a branch for a block; all commits have the message and the metadata of ``options``.
    Raises: as PushSession.once."""
    session = PushSession(store, RefName(repo, BRANCHES, branch), options, progress)
    with session.once():
        yield GrowingBranch(session)


def delete_branch(store: Store, repo: str, branch: str) -> None:
    """Deletes a branch, unless there is none, or somebody moves it just now."""
    refs = store.refs(repo)
    entry = refs.latest(BRANCHES, branch)
    if entry is not None and entry.commit is not None:
        with suppress(Conflict):
            refs.advance(BRANCHES, branch, None, expected_sequence=entry.sequence)
