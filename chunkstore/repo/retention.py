"""Decides which commits of a repository a retention policy keeps: a pure function of its
history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.repo_settings import Retention
from lodefs.chunkstore.repo.refs import BRANCHES


class Dated(Protocol):
    """The fields of a commit that matter. A Commit has them."""

    @property
    def parents(self) -> tuple[CommitId, ...]: ...

    @property
    def time_s(self) -> int: ...


def retained(
    commits: Mapping[CommitId, Dated],
    heads: Iterable[tuple[RefName, CommitId]],
    policy: Retention,
    now_s: int,
) -> set[CommitId]:
    """Returns the commits that a policy keeps. ``commits`` are all existing ones that ``heads``
    lead to. A commit that a branch or tag names is always kept."""
    kept: set[CommitId] = set()
    for ref, head in heads:
        kept.add(head)
        if ref.kind == BRANCHES and policy.keep_last is not None:
            kept.update(_first_parents(commits, head, policy.keep_last))
    if policy.keep_within_s is not None:
        since_s = now_s - policy.keep_within_s
        kept.update(at for at, time_s in _times(commits, now_s).items() if time_s > since_s)
    return kept & commits.keys()


def _first_parents(
    commits: Mapping[CommitId, Dated], head: CommitId, count: int
) -> Iterator[CommitId]:
    at: CommitId | None = head
    for _ in range(count):
        if at is None or at not in commits:
            return
        yield at
        at = next(iter(commits[at].parents), None)


def _times(commits: Mapping[CommitId, Dated], now_s: int) -> dict[CommitId, int]:
    """Returns when each commit was made. The pusher's clock may be wrong, so no commit counts as
    older than its ancestors, except ancestors with a time in the future."""
    found: dict[CommitId, int] = {}
    stack = list(commits)
    while stack:
        at = stack[-1]
        parents = [parent for parent in commits[at].parents if parent in commits]
        waiting = [parent for parent in parents if parent not in found]
        if waiting and at not in found:
            stack += waiting
            continue
        stack.pop()
        if at not in found:
            before = (found[parent] for parent in parents if found[parent] <= now_s)
            found[at] = max(commits[at].time_s, max(before, default=commits[at].time_s))
    return found
