"""``lodefs.retain``, ``lodefs.quota``: what of a history is kept, how much a version may have."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from lodefs.api.sessions import opened
from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import check_repo
from lodefs.chunkstore.format.repo_settings import Retention, check_retention
from lodefs.chunkstore.repo.commit_graph import read_graph
from lodefs.chunkstore.repo.store import Store
from lodefs.settings.session import Session

_WORKERS = 16


class ExpiringCommit(NamedTuple):
    """A commit that a policy does not keep. ``id``: 64 hex digits; ``time_s``: Unix."""

    id: str
    time_s: int
    message: str


class RetentionPlan(NamedTuple):
    """A policy (None: all history is kept), and what it does: so many commits are kept, those in
    ``expiring`` go, oldest first. ``in_future``: kept ones whose time is yet to come."""

    repo: str
    policy: Retention | None
    kept: int
    expiring: list[ExpiringCommit]
    in_future: int


def retain(
    repo: str,
    *,
    keep_last: int | None = None,
    keep_tagged: bool = False,
    keep_within_s: int | None = None,
    clear: bool = False,
    dry_run: bool = False,
    store: str | None = None,
    session: Session | None = None,
) -> RetentionPlan:
    """Sets what of a repository's history is kept, or with nothing to set says what is.

    A commit stays if a branch or tag names it, or it is one of the ``keep_last`` newest along first
    parents of a branch, or younger than ``keep_within_s`` seconds. ``keep_tagged``: nothing else.
    ``clear``: all is kept from now on; ``dry_run``: only say what would go. Other commits go with
    ``lodefs gc``, the grace time later. ``store`` and ``session``: as of ``push``.

    Raises: NotFound, InvalidInput.
    """
    check_repo(repo)
    wanted = Retention(keep_last, keep_tagged, keep_within_s)
    with opened(session, store=store) as settings:
        place = settings.store
        place.require_repo(repo)
        log = place.settings_log(repo)
        policy = log.newest().retention
        if clear:
            policy = None
        elif wanted != Retention():
            policy = check_retention(wanted)
        found = _plan(place, repo, policy)
        if not dry_run and (clear or wanted != Retention()):
            place.ensure_writable()
            log.change(
                lambda now: replace(
                    now,
                    retention=policy,
                    may_lack_history=now.may_lack_history or policy is not None,
                )
            )
        return found


def _plan(store: Store, repo: str, policy: Retention | None) -> RetentionPlan:
    now_s = int(time.time())
    with ThreadPoolExecutor(_WORKERS, "lodefs-retain") as executor:
        graph = read_graph(store, repo, executor)
    kept = graph.kept(policy, now_s)
    expiring = [
        ExpiringCommit(at.hex(), commit.time_s, commit.message)
        for at, commit in graph.commits.items()
        if at not in kept
    ]
    in_future = sum(graph.commits[at].time_s > now_s for at in kept)
    expiring.sort(key=lambda one: (one.time_s, one.id))
    return RetentionPlan(repo, policy, len(kept), expiring, in_future)


def quota(
    repo: str,
    size_bytes_max: int | None = None,
    *,
    clear: bool = False,
    store: str | None = None,
    session: Session | None = None,
) -> int | None:
    """Sets how many bytes the files of a version of a repository may have, or with ``clear`` any
    number; gives what is set (None: no quota). Pushes that do not grow are allowed all the same.
    ``store`` and ``session``: as of ``push``. Raises: NotFound, InvalidInput."""
    check_repo(repo)
    if size_bytes_max is not None and size_bytes_max < 1:
        raise InvalidInput(f"a quota of {size_bytes_max} bytes is none: 1 or more")
    with opened(session, store=store) as settings:
        settings.store.require_repo(repo)
        log = settings.store.settings_log(repo)
        if size_bytes_max is None and not clear:
            return log.newest().quota_size_bytes
        settings.store.ensure_writable()
        found = log.change(lambda now: replace(now, quota_size_bytes=size_bytes_max))
        return found.quota_size_bytes
