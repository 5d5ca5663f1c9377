"""The commits of a repository that branches and tags lead to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.repo_settings import Retention
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.chunkstore.repo.retention import retained
from lodefs.chunkstore.repo.store import Store


@dataclass(frozen=True, slots=True)
class CommitGraph:
    """``commits`` are all existing commits that a branch or tag leads to, a few kB each; ``heads``
    are the commits of the branches and tags."""

    commits: Mapping[CommitId, Commit]
    heads: Mapping[RefName, CommitId]

    def kept(self, policy: Retention | None, now_s: int) -> set[CommitId]:
        """Returns the commits that a retention policy keeps; all without a policy."""
        if policy is None:
            return set(self.commits)
        return retained(self.commits, self.heads.items(), policy, now_s)

    def below(self, heads: Iterable[CommitId]) -> set[CommitId]:
        """Returns those commits and all their ancestors."""
        found: set[CommitId] = set()
        waiting = list(heads)
        while waiting:
            at = waiting.pop()
            if at in self.commits and at not in found:
                found.add(at)
                waiting += self.commits[at].parents
        return found


def read_graph(store: Store, repo: str, executor: Executor) -> CommitGraph:
    """Returns the graph of a repository, as lists show it. Reads commits concurrently.

    Raises: NotFound for a branch or tag whose commit is gone; Corrupt, UnknownFormat.
    """
    refs = store.refs(repo)
    heads: dict[RefName, CommitId] = {}
    for kind in (BRANCHES, TAGS):
        for name, entry in refs.living(kind):
            if entry.commit is not None:
                heads[RefName(repo, kind, name)] = entry.commit
    prefix = keys.commits(repo)
    names = [info.key[len(prefix) :] for info in store.objects.list(prefix)] if heads else []
    ids = [CommitId(bytes.fromhex(name)) for name in names if len(name) == 64]
    read = executor.map(lambda commit_id: _commit(store, repo, commit_id), ids)
    there = {commit_id: commit for commit_id, commit in zip(ids, read, strict=True) if commit}
    for commit_id in heads.values():
        if commit_id not in there:
            there[commit_id] = store.commit(repo, commit_id)  # a list may have missed it
    whole = CommitGraph(there, heads)
    reached = whole.below(heads.values())
    return CommitGraph({at: there[at] for at in reached}, heads)


def _commit(store: Store, repo: str, commit_id: CommitId) -> Commit | None:
    try:
        return store.commit(repo, commit_id)
    except NotFound:  # a gc run has just deleted it
        return None
