"""``rm``, ``undelete``, ``du``, ``retain``, ``quota``: what a store keeps, and its size."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Unpack

from lodefs.api.pushing import user_name
from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.names import Target, check_repo, parse_target
from lodefs.chunkstore.format.repo_settings import Retention, check_retention
from lodefs.chunkstore.journal import deletion
from lodefs.chunkstore.repo.commit_graph import read_graph
from lodefs.chunkstore.repo.refs import singular
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.progress import Progress
from lodefs.settings.session import Where, opened

if TYPE_CHECKING:
    from lodefs.chunkstore.maintenance.accounts import RevisionAccount, StoreAccount


class NamedRef(NamedTuple):
    """A branch or tag (``kind``: "branch", "tag") that was deleted or restored; ``commit``: 64 hex
    digits."""

    repo: str
    kind: str
    name: str
    commit: str | None = None


class LostRef(NamedTuple):
    """A branch or tag that cannot be restored."""

    repo: str
    kind: str
    name: str
    reason: str


class Restored(NamedTuple):
    """The refs that ``undelete`` restored, and those that it could not restore."""

    refs: list[NamedRef]
    lost: list[LostRef]


class DeletedItem(NamedTuple):
    """A deleted repository (``kind`` "repository"), branch or tag. ``by``: who deleted a
    repository; ``is_there``: its data exists, so that it can be restored."""

    repo: str
    kind: str
    name: str | None
    time_s: int  # Unix
    by: str | None
    is_there: bool


def rm(target: str | Target, **where: Unpack[Where]) -> list[NamedRef]:
    """Deletes a repository (``REPO``), or one branch or tag of it (``REPO@NAME``).

    ``lodefs gc`` deletes its data after the grace time; until then ``undelete`` gets it back.
    ``store`` and ``session``: as for ``push``. Raises: NotFound, Conflict.
    """
    found = parse_target(target) if isinstance(target, str) else target
    with opened(**where) as settings:
        try:
            return _delete(settings.store, found)
        except NotFound:
            gone = _forget(settings.store, found)
            if not gone:
                raise
            return gone


def _delete(store: Store, target: Target) -> list[NamedRef]:
    if target.rev is None:
        gone = deletion.delete_repo(store, target.repo, user_name())
        return [NamedRef(ref.repo, singular(ref.kind), ref.name) for ref in gone]
    store.require_repo(target.repo)
    ref, entry = deletion.ref_of(store, target.repo, target.rev)
    assert entry.commit is not None
    store.ensure_writable()
    store.refs(ref.repo).advance(ref.kind, ref.name, None, expected_sequence=entry.sequence)
    return [NamedRef(ref.repo, singular(ref.kind), ref.name, entry.commit.hex())]


def _forget(store: Store, target: Target) -> list[NamedRef]:
    """Forgets refs that were removed in the bucket by hand, and that a gc run still knows."""
    from lodefs.chunkstore.maintenance.writers import forget_removed

    gone = forget_removed(store, target.repo, target.rev)
    return [NamedRef(ref.repo, singular(ref.kind), ref.name) for ref in gone]


def undelete(target: str | Target, *, empty: bool = False, **where: Unpack[Where]) -> Restored:
    """Gets a deleted repository, branch or tag back. ``empty``: free only the repository's name, so
    that it can be pushed to. ``store`` and ``session``: as for ``push``. Raises: NotFound,
    AlreadyExists."""
    found = parse_target(target) if isinstance(target, str) else target
    with opened(**where) as settings:
        place = settings.store
        if empty:
            deletion.free_name(place, found.repo)
            return Restored([], [])
        if found.rev is None:
            back = deletion.undelete_repo(place, found.repo)
            refs = [
                NamedRef(ref.repo, singular(ref.kind), ref.name, commit.hex())
                for ref, commit in back.refs
            ]
            lost = [LostRef(r.repo, singular(r.kind), r.name, why) for r, why in back.lost]
            return Restored(refs, lost)
        ref = deletion.deleted_ref_of(place, found.repo, found.rev)
        place.ensure_writable()
        if place.deletion(found.repo) is None:
            place.check_new_ref(found.repo, ref.kind, ref.name)
        commit_id = deletion.undelete_ref(place, ref)
        return Restored([NamedRef(ref.repo, singular(ref.kind), ref.name, commit_id.hex())], [])


def deleted(**where: Unpack[Where]) -> list[DeletedItem]:
    """Returns everything that is deleted, as far as the store remembers it: repositories, and
    branches and tags of the others. Takes some requests for each. ``store`` and ``session``: as for
    ``push``."""
    found: list[DeletedItem] = []
    with opened(**where) as settings:
        place = settings.store
        for repo in place.repos(deleted=True):
            refs = list(deletion.deleted_refs(place, repo))
            gone = place.deletion(repo)
            if gone is None:
                found += [
                    DeletedItem(repo, singular(one.kind), one.name, one.time_s, None, one.is_there)
                    for one in refs
                ]
                continue
            if gone.renaming is not None:
                continue
            of_it = [one.is_there for one in refs if (one.kind, one.name) in gone.refs]
            is_there = any(of_it)
            found.append(DeletedItem(repo, "repository", None, gone.time_s, gone.by, is_there))
    return found


def du(
    target: str | Target | None = None, *, progress: Progress | None = None, **where: Unpack[Where]
) -> StoreAccount | RevisionAccount:
    """Returns the size of each repository of the store, with the one whose deletion frees most
    first; with ``REPO``, of that one alone; with ``REPO@REV``, of that revision. Sizes are in
    bytes.

    ``progress`` is updated during the call. ``store`` and ``session``: as for ``push``. It reads
    all commits and directories of the store, and no data. Raises: NotFound, Corrupt, InvalidInput.
    """
    from lodefs.chunkstore.maintenance.accounts import revision_account, store_account

    found = parse_target(target) if isinstance(target, str) else target
    with opened(**where) as settings:
        if found is None:
            return store_account(settings.store, progress)
        settings.store.require_repo(found.repo)
        if found.rev is not None:
            return revision_account(settings.store, found.repo, found.rev, progress)
        account = store_account(settings.store, progress)
        account.repos[:] = [one for one in account.repos if one.repo == found.repo]
        if not account.repos:
            raise NotFound(f"{found.repo} has no branches or tags")
        return account


_WORKERS = 16


class ExpiringCommit(NamedTuple):
    """A commit that a policy does not keep. ``id``: 64 hex digits; ``time_s``: Unix."""

    id: str
    time_s: int
    message: str


class RetentionPlan(NamedTuple):
    """A policy (None: all history is kept) and its effect: the number of commits that it keeps, and
    those that expire, oldest first. ``in_future``: kept commits whose time is in the future."""

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
    **where: Unpack[Where],
) -> RetentionPlan:
    """Sets how much of a repository's history is kept; without settings, returns the policy.

    A commit stays if a branch or tag names it, if it is one of the ``keep_last`` newest along the
    first parents of a branch, or if it is younger than ``keep_within_s`` seconds. ``keep_tagged``:
    keep nothing else. ``clear``: keep everything from now on; ``dry_run``: only return what would
    expire. ``lodefs gc`` deletes other commits after the grace time. ``store`` and ``session``: as
    for ``push``.

    Raises: NotFound, InvalidInput.
    """
    check_repo(repo)
    wanted = Retention(keep_last, keep_tagged, keep_within_s)
    with opened(**where) as settings:
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
    repo: str, size_bytes_max: int | None = None, *, clear: bool = False, **where: Unpack[Where]
) -> int | None:
    """Limits the bytes of the files of a version of a repository; ``clear``: removes the limit.
    Returns the limit (None: no quota). Pushes that do not grow the branch are always allowed.
    ``store`` and ``session``: as for ``push``. Raises: NotFound, InvalidInput."""
    check_repo(repo)
    if size_bytes_max is not None and size_bytes_max < 1:
        raise InvalidInput(f"a quota must be at least 1 byte, not {size_bytes_max}")
    with opened(**where) as settings:
        settings.store.require_repo(repo)
        log = settings.store.settings_log(repo)
        if size_bytes_max is None and not clear:
            return log.newest().quota_size_bytes
        settings.store.ensure_writable()
        found = log.change(lambda now: replace(now, quota_size_bytes=size_bytes_max))
        return found.quota_size_bytes
