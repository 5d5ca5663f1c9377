"""Which commits of a repository the store has that a copy goes to."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.repo.store import Store


class There:
    """What the source knows to come before branches and tags there, as far as it is there in fact:
    a retention policy may have deleted some of it."""

    def __init__(self, store: Store, repo: str) -> None:
        self._store = store
        self._repo = repo
        self.before_refs: set[CommitId] = set()  # as the source has it
        self._coming: set[CommitId] = set()
        self._asked: dict[CommitId, bool] = {}

    def add(self, commits: Iterable[CommitId]) -> None:
        """Adds commits that come before a branch or tag there, as the source has it."""
        self.before_refs.update(commits)

    def expect(self, commits: Iterable[CommitId]) -> None:
        """Adds commits that are to come."""
        self._coming.update(commits)

    def arrived(self, commits: Collection[CommitId]) -> None:
        """Adds commits that have come."""
        self._asked.update(dict.fromkeys(commits, True))
        self.before_refs.update(commits)

    def expect_nothing(self) -> None:
        """What was to come may not."""
        self._coming.clear()

    def leads_to(self, commit_id: CommitId) -> bool:
        """Whether a branch or tag there leads to a commit that is there, or will. Raises: Corrupt,
        UnknownFormat."""
        return commit_id in self._coming or (commit_id in self.before_refs and self.has(commit_id))

    def has(self, commit_id: CommitId) -> bool:
        """Whether a commit is there, or will, whatever leads to it. Raises: Corrupt,
        UnknownFormat."""
        if commit_id in self._coming:
            return True
        if commit_id not in self._asked:
            try:
                self._store.commit(self._repo, commit_id)
            except NotFound:
                self._asked[commit_id] = False
            else:
                self._asked[commit_id] = True
        return self._asked[commit_id]

    def has_ended(self, commit_id: CommitId) -> bool:
        """Whether history may end before what comes after a commit, as it has expired there."""
        return self._store.has_expired(self._repo, commit_id)
