"""Deletes a repository, and restores it.

Its refs are the truth: it is deleted when none of them leads anywhere. Each is deleted like any
branch, by an entry of its log. That needs no journal, since it adds nothing that a gc run must see.
Before that, the repository's settings record what is deleted, so that a repetition after a crash
continues from any point.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from lodefs.chunkstore.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    InvalidInput,
    NotFound,
    UnknownFormat,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.repo_settings import Deletion, RepoSettings
from lodefs.chunkstore.journal.existing_commit import point_ref
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS, RefEntry, singular
from lodefs.chunkstore.repo.store import Store

Clock = Callable[[], float]
_TRIES_MAX = 100  # while others keep pushing to the repository


@dataclass(frozen=True, slots=True)
class DeletedRef:
    """A deleted branch or tag. ``is_there``: its commit still exists, so it can be restored."""

    repo: str
    kind: str
    name: str
    commit: CommitId
    time_s: int  # Unix time of the deletion
    is_there: bool


@dataclass(slots=True)
class Undeleted:
    """The branches and tags that were restored, and those that were not, with the reasons."""

    refs: list[tuple[RefName, CommitId]] = field(default_factory=list)
    lost: list[tuple[RefName, str]] = field(default_factory=list)


def living_refs(store: Store, repo: str) -> list[tuple[RefName, RefEntry]]:
    """Returns the branches and tags of a repository that are not deleted."""
    refs = store.refs(repo)
    return [
        (RefName(repo, kind, name), entry)
        for kind in (BRANCHES, TAGS)
        for name, entry in refs.living(kind)
    ]


def delete_repo(store: Store, repo: str, by: str, clock: Clock = time.time) -> list[RefName]:
    """Deletes all branches and tags of a repository, and returns them. Raises: NotFound if there is
    no such repository, or it is deleted already; Conflict if pushes to it do not end."""
    store.require_repo(repo)
    store.ensure_writable()
    refs = store.refs(repo)
    gone: list[RefName] = []
    deletion = Deletion(int(clock()), by, ())
    for tries in range(_TRIES_MAX):
        living = living_refs(store, repo)
        if tries and not living:
            return gone
        names = [(ref.kind, ref.name) for ref, _ in living]
        log = store.settings_log(repo, clock)
        log.change(lambda now: _deleted(now, deletion, names))  # noqa: B023
        for ref, entry in living:
            try:
                refs.advance(ref.kind, ref.name, None, expected_sequence=entry.sequence)
            except Conflict:  # a push was faster; the next try finds it
                continue
            if ref not in gone:
                gone.append(ref)
    raise Conflict(f"{repo} keeps getting pushes: stop them, then repeat the command")


def _deleted(
    now: RepoSettings, deletion: Deletion, names: Iterable[tuple[str, str]]
) -> RepoSettings:
    """Returns the settings of a repository that is being deleted. The list keeps what an earlier
    try has deleted."""
    known = now.deletion.refs if now.deletion is not None else ()
    refs = tuple(dict.fromkeys((*known, *names)))
    renaming = now.deletion.renaming if now.deletion is not None else None
    return replace(now, deletion=replace(deletion, refs=refs, renaming=renaming))


def undelete_repo(store: Store, repo: str, clock: Clock = time.time) -> Undeleted:
    """Restores the branches and tags that a repository had when it was deleted, each at its commit.

    Those whose data gc has deleted, or is damaged, are reported, and the others restored. Raises:
    NotFound if it was not deleted.
    """
    settings = store.settings_log(repo, clock)
    deletion = settings.surely_newest().deletion
    if deletion is None:
        store.require_repo(repo)
        raise NotFound(f"{repo} is not deleted; for one branch: `lodefs undelete {repo}@NAME`")
    _check_renamed(deletion, repo)
    store.ensure_writable()
    found = Undeleted()
    for kind, name in deletion.refs:
        ref = RefName(repo, kind, name)
        try:
            found.refs.append((ref, _bring_back(store, ref, clock)))
        except AlreadyExists:  # an earlier try has got it back
            continue
        except (NotFound, InvalidInput, Corrupt, UnknownFormat) as error:
            found.lost.append((ref, str(error)))
    if found.refs or not found.lost:
        settings.change(lambda now: replace(now, deletion=None))
    return found


def undelete_ref(store: Store, ref: RefName, clock: Clock = time.time) -> CommitId:
    """Restores a deleted branch or tag at its commit. Its repository then no longer counts as
    deleted; its other branches and tags can be restored one by one.

    Raises: NotFound, AlreadyExists; InvalidInput if the name is taken."""
    log = store.settings_log(ref.repo, clock)
    _check_renamed(log.surely_newest().deletion, ref.repo)
    commit_id = _bring_back(store, ref, clock)
    log.change(lambda now: replace(now, deletion=None))
    return commit_id


def _check_renamed(deletion: Deletion | None, repo: str) -> None:
    """Raises: AlreadyExists if the content of a repository exists under another name."""
    if deletion is not None and deletion.renaming is not None:
        to = deletion.renaming.to
        raise AlreadyExists(
            f"{repo} is not deleted, but was renamed to {to}: `lodefs repo rename {to} {repo}` "
            f"gives it this name again, and `lodefs undelete --empty {repo}` frees the name"
        )


def _bring_back(store: Store, ref: RefName, clock: Clock) -> CommitId:
    deleted, commit_id = store.refs(ref.repo).before_deletion(ref.kind, ref.name)
    try:
        store.commit(ref.repo, commit_id)
    except NotFound as error:
        raise NotFound(
            f"{ref.repo}@{commit_id.hex()[:12]} cannot be restored: its grace time is over, and "
            f"`lodefs gc` has deleted it{_way_out(store, ref.repo)}"
        ) from error
    if store.deletion(ref.repo) is None:
        store.check_new_ref(*ref)
    point_ref(store, ref, commit_id, expected_sequence=deleted.sequence, clock=clock)
    return commit_id


def _way_out(store: Store, repo: str) -> str:
    is_empty = next(iter(store.objects.list(keys.commits(repo), limit=1)), None) is None
    if store.deletion(repo) is None or not is_empty:
        return ""
    return f"; `lodefs undelete --empty {repo}` frees the name"


def free_name(store: Store, repo: str, clock: Clock = time.time) -> None:
    """Forgets that a repository was deleted: its name is empty, and pushes to it are allowed.
    Raises: NotFound if it was not deleted."""
    if store.deletion(repo) is None:
        raise NotFound(f"{repo} is not a deleted repository")
    store.ensure_writable()
    store.settings_log(repo, clock).change(lambda now: replace(now, deletion=None))


def deleted_refs(store: Store, repo: str) -> Iterator[DeletedRef]:
    """Yields the deleted branches and tags of a repository, with a few requests for each."""
    refs = store.refs(repo)
    for kind in (BRANCHES, TAGS):
        for name, entry in refs.newest(kind):
            if entry.commit is None:
                try:
                    _, commit_id = refs.before_deletion(kind, name)
                except NotFound:  # its history is gone
                    continue
                is_there = store.has_commit(repo, commit_id)
                yield DeletedRef(repo, kind, name, commit_id, entry.time_s, is_there)


def ref_of(store: Store, repo: str, name: str) -> tuple[RefName, RefEntry]:
    """Returns the branch with that name, otherwise the tag. Raises: NotFound, with the way out for
    a commit."""
    refs = store.refs(repo)
    for kind in (BRANCHES, TAGS):
        entry = refs.latest(kind, name)
        if entry is not None and entry.commit is not None:
            return RefName(repo, kind, name), entry
    store.resolve(repo, name)  # raises if nothing has this name
    raise NotFound(
        f"{repo}@{name} is a commit, and neither a branch nor a tag: gc deletes commits when no "
        f"branch or tag leads to them (lodefs branch {repo}, lodefs tag {repo}), or by a retention "
        "policy"
    )


def deleted_ref_of(store: Store, repo: str, name: str) -> RefName:
    """Returns the deleted branch with that name, otherwise the deleted tag. Raises: NotFound;
    AlreadyExists if it is not deleted."""
    refs = store.refs(repo)
    for kind in (BRANCHES, TAGS):
        entry = refs.latest(kind, name)
        if entry is not None and entry.commit is not None:
            raise AlreadyExists(f"{singular(kind)} {name} of {repo} is not deleted")
        if entry is not None:
            return RefName(repo, kind, name)
    store.require_repo(repo)
    raise NotFound(f"{repo} never had a branch or tag {name}; `lodefs undelete` lists deleted ones")
