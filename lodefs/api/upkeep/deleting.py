"""``lodefs.rm`` and ``lodefs.undelete``: repositories, branches and tags go, and come back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lodefs.api.pushing import user_name
from lodefs.api.sessions import opened
from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.format.names import Target, parse_target
from lodefs.chunkstore.journal import deletion
from lodefs.chunkstore.repo.refs import singular
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.repo.store import Store


class NamedRef(NamedTuple):
    """A branch or tag (``kind``: "branch", "tag") that went or came back; its commit's 64 hex
    digits."""

    repo: str
    kind: str
    name: str
    commit: str | None = None


class LostRef(NamedTuple):
    """A branch or tag that cannot be got back."""

    repo: str
    kind: str
    name: str
    reason: str


class Restored(NamedTuple):
    """What ``undelete`` got back, and what it could not."""

    refs: list[NamedRef]
    lost: list[LostRef]


class DeletedItem(NamedTuple):
    """A repository (``kind`` "repository"), branch or tag that is deleted. ``by``: who deleted a
    repository; ``is_there``: its data is, so that it can be got back."""

    repo: str
    kind: str
    name: str | None
    time_s: int  # Unix
    by: str | None
    is_there: bool


def rm(
    target: str | Target, *, store: str | None = None, session: Session | None = None
) -> list[NamedRef]:
    """Deletes a repository (``REPO``), or one branch or tag of it (``REPO@NAME``).

    Its data goes with ``lodefs gc``, the grace time later; until then ``undelete`` gets it back.
    ``store`` and ``session``: as of ``push``. Raises: NotFound, Conflict.
    """
    found = parse_target(target) if isinstance(target, str) else target
    with opened(session, store=store) as settings:
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
    """What of it was removed in the bucket itself, and a collection still knows of."""
    from lodefs.chunkstore.maintenance.removed_by_hand import forget_removed

    gone = forget_removed(store, target.repo, target.rev)
    return [NamedRef(ref.repo, singular(ref.kind), ref.name) for ref in gone]


def undelete(
    target: str | Target,
    *,
    empty: bool = False,
    store: str | None = None,
    session: Session | None = None,
) -> Restored:
    """Gets a deleted repository, branch or tag back; with ``empty`` only the repository's name, so
    that it can be pushed to. ``store`` and ``session``: as of ``push``. Raises: NotFound,
    AlreadyExists."""
    found = parse_target(target) if isinstance(target, str) else target
    with opened(session, store=store) as settings:
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


def deleted(*, store: str | None = None, session: Session | None = None) -> list[DeletedItem]:
    """Everything that is deleted, as far as the store remembers it: repositories, and branches and
    tags of the others. Some requests for each. ``store`` and ``session``: as of ``push``."""
    found: list[DeletedItem] = []
    with opened(session, store=store) as settings:
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
            of_it = [one.is_there for one in refs if (one.kind, one.name) in gone.refs]
            is_there = any(of_it)
            found.append(DeletedItem(repo, "repository", None, gone.time_s, gone.by, is_there))
    return found
