"""Which commits of a repository a retention policy keeps: a pure function of its history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.repo_settings import Retention
from lodefs.chunkstore.repo.refs import BRANCHES


class Dated(Protocol):
    """What counts of a commit. A Commit is one."""

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
    """The commits that a policy keeps, of ``commits``: all that are there and that ``heads`` lead
    to. What a branch or tag names itself is always kept."""
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
    """When each commit was made. Who pushed says it, by a clock that may be wrong: none is older
    than those before it, but for those whose time is yet to come."""
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
