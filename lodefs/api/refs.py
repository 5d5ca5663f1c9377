"""``lodefs.branch`` and ``lodefs.tag``: create, move, delete and undelete names of commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Unpack

from lodefs.chunkstore.errors import AlreadyExists, NotFound
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import Spec, check_ref_name
from lodefs.chunkstore.journal.existing_commit import point_ref
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS, singular
from lodefs.settings.session import Where, opened, revision_of

if TYPE_CHECKING:
    from lodefs.chunkstore.repo.store import Store


class Ref(NamedTuple):
    """A branch or tag. ``commit``: 64 hex digits; ``time_s``: when it was set to it (Unix)."""

    name: str
    commit: str
    time_s: int


class RefChange(NamedTuple):
    """A change of a branch or tag: its commit now and before (None: it did not exist)."""

    name: str
    commit: str | None
    previous: str | None


class Refs:
    """The branches, or the tags: ``lodefs.branch`` and ``lodefs.tag``.

    ``lodefs.tag("vision/flickr30k", "v1.0")`` creates one. ``store`` and ``session``: as for
    ``push``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(
        self, spec: str | Spec, name: str, *, force: bool = False, **where: Unpack[Where]
    ) -> RefChange:
        """Creates a branch or tag ``name`` at ``REPO[@REV]``; with ``force``, moves an existing
        one.

        Raises: AlreadyExists if it is at another commit, NotFound, Conflict, InvalidInput.
        """
        target = revision_of(spec)
        check_ref_name(name)
        with opened(**where) as settings:
            return _create(settings.store, self.kind, target, name, force=force)

    def list(self, repo: str, **where: Unpack[Where]) -> list[Ref]:
        """Returns all of a repository, sorted by name. Raises: NotFound."""
        with opened(**where) as settings:
            found = settings.store.refs(repo).list(self.kind)
            if not found:
                settings.store.require_repo(repo)
            return [
                Ref(name, entry.commit.hex(), entry.time_s)
                for name, entry in found.items()
                if entry.commit is not None
            ]

    def delete(self, repo: str, name: str, **where: Unpack[Where]) -> RefChange:
        """Deletes one. Its commits stay, and ``undelete`` gets it back. Raises: NotFound."""
        check_ref_name(name)
        with opened(**where) as settings:
            settings.store.require_repo(repo)
            refs = settings.store.refs(repo)
            entry = refs.read(self.kind, name)
            assert entry.commit is not None
            refs.advance(self.kind, name, None, expected_sequence=entry.sequence)
            return RefChange(name, None, entry.commit.hex())

    def move(self, repo: str, name: str, to: str, **where: Unpack[Where]) -> RefChange:
        """Renames one: creates the new name, then deletes the old one. If it moves in between, both
        stay. Raises: NotFound, AlreadyExists, Conflict, InvalidInput."""
        check_ref_name(name)
        check_ref_name(to)
        with opened(**where) as settings:
            found = settings.store
            found.require_repo(repo)
            refs = found.refs(repo)
            entry = refs.read(self.kind, name)
            assert entry.commit is not None
            target = Spec(repo, entry.commit.hex())
            if name != to:
                latest = refs.latest(self.kind, to)
                if latest is not None and latest.commit is not None:
                    raise AlreadyExists(f"{repo} already has a {singular(self.kind)} {to}")
                _create(found, self.kind, target, to, force=False)
                refs.advance(self.kind, name, None, expected_sequence=entry.sequence)
            return RefChange(to, entry.commit.hex(), None)

    def reset(self, spec: str | Spec, name: str, **where: Unpack[Where]) -> RefChange:
        """Moves an existing one to ``REPO[@REV]``. Raises: NotFound, Conflict."""
        target = revision_of(spec)
        check_ref_name(name)
        with opened(**where) as settings:
            settings.store.refs(target.repo).read(self.kind, name)
            return _create(settings.store, self.kind, target, name, force=True)

    def undelete(self, repo: str, name: str, **where: Unpack[Where]) -> RefChange:
        """Gets a deleted one back. Raises: NotFound, AlreadyExists."""
        check_ref_name(name)
        with opened(**where) as settings:
            found = settings.store
            found.require_repo(repo)
            refs = found.refs(repo)
            deleted, commit_id = refs.before_deletion(self.kind, name)
            try:
                found.commit(repo, commit_id)
            except NotFound as error:
                error.add_note("its grace time is over, and `lodefs gc` has deleted it")
                raise
            found.check_new_ref(repo, self.kind, name)
            found.ensure_writable()
            ref = RefName(repo, self.kind, name)
            point_ref(found, ref, commit_id, expected_sequence=deleted.sequence)
            return RefChange(name, commit_id.hex(), None)


def _create(store: Store, kind: str, target: Spec, name: str, *, force: bool) -> RefChange:
    commit_id = store.resolve(target.repo, target.rev)
    store.commit(target.repo, commit_id)  # a ref never points to a missing commit
    refs = store.refs(target.repo)
    latest = refs.latest(kind, name)
    now = latest.commit if latest else None
    if now not in (None, commit_id) and not force:
        raise AlreadyExists(
            f"{name} already exists, at {now.hex()[:12]}; --force moves it (in Python force=True)"
        )
    if now is None:
        store.check_new_ref(target.repo, kind, name)
    if now != commit_id:
        store.ensure_writable()
        sequence = None if latest is None else latest.sequence
        ref = RefName(target.repo, kind, name)
        point_ref(store, ref, commit_id, expected_sequence=sequence)
    return RefChange(name, commit_id.hex(), None if now is None else now.hex())


branch = Refs(BRANCHES)
tag = Refs(TAGS)
