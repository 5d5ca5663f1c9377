"""Expired commits that a collection has deleted, and that are there again all the same.

A writer that has been given up may wake, put a commit back that meanwhile was deleted, and only
then be refused (docs/decisions/0049). No ref can come to name that commit: its fate stands.
"""

from __future__ import annotations

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.journal.journal import StoreJournal, newest_condemning
from lodefs.chunkstore.repo.store import Store


class DeletedCommits:
    """Those of one repository. Methods raise what the store does, and Corrupt, UnknownFormat for
    documents of the journal."""

    def __init__(self, store: Store, repo: str) -> None:
        """Lists the words of commits that have expired. A list that lacks one makes a commit count
        as there."""
        self._store = store
        self._repo = repo
        prefix = keys.expired(repo)
        self._words = {info.key.removeprefix(prefix) for info in store.objects.list(prefix)}
        self._deleted: set[CommitId] | None = None

    def __contains__(self, commit_id: object) -> bool:
        """Whether a commit has its word, and a fate that deleted it. The journal is read for the
        first that has a word: where a copy or a bundle has brought that, there is no such fate."""
        if not isinstance(commit_id, bytes) or commit_id.hex() not in self._words:
            return False
        if self._deleted is None:
            self._deleted = self._by_fate()
        return commit_id in self._deleted

    def _by_fate(self) -> set[CommitId]:
        journal = StoreJournal(self._store.objects)
        found: set[CommitId] = set()
        for entry in journal.condemning(newest_condemning(journal.newest())):
            some = () if entry.condemned is None else entry.condemned.commits
            if any(repo == self._repo and at.hex() in self._words for repo, at in some):
                fate = journal.fate(entry.number)
                if fate is not None and fate.deleted is not None:
                    found |= {at for repo, at in fate.deleted.commits if repo == self._repo}
        return found
