"""Renames a repository: its refs move one by one, and the old name leads to the new one.

A ref exists under the new name before it is deleted under the old one, so a reader that tries the
old name and then the new one finds it. Before the first ref moves, the settings of the old name say
where the refs go (docs/decisions/0077). A repeated rename continues from any point.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from lodefs.chunkstore.errors import AlreadyExists, Conflict, Diverged, InvalidInput
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId, check_repo
from lodefs.chunkstore.format.repo_settings import Deletion, Renaming, RepoSettings
from lodefs.chunkstore.journal.deletion import living_refs
from lodefs.chunkstore.repo.refs import RefEntry, singular
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.transfer.fork import Forking
from lodefs.chunkstore.transfer.plan import History

_TRIES_MAX = 100  # while others keep pushing to the repository


@dataclass(frozen=True, slots=True)
class RenameOptions:
    """``by`` is the user who renames. The old name leads to the new one up to the Unix time
    ``until_s``."""

    by: str
    until_s: int
    clock: Callable[[], float] = time.time


def rename(
    store: Store, old: str, new: str, options: RenameOptions, progress: Progress | None = None
) -> list[RefName]:
    """Renames a repository. Returns the refs that this call moved, under the new name. The
    repository's settings move, too; reflogs begin anew.

    Raises: NotFound; AlreadyExists if the new name is not free; Diverged for a ref that others have
    pushed to under both names meanwhile, which stays under both; Conflict if pushes do not end;
    Collected, Corrupt if commits are lost; what the store raises. After an error the same call
    continues.
    """
    check_repo(new)
    if old == new:
        raise InvalidInput(f"{old} has that name")
    living = living_refs(store, old)
    _check_names(store, old, new, is_there=bool(living))
    store.ensure_writable()
    with Forking(store, old, new, options.clock, progress) as forking:
        for _, entry in living:
            assert entry.commit is not None
            forking.claim(entry.commit)  # before anything changes
        _set_names(store, old, new, living, options)
        return _move_all(store, forking, old, new)


def _check_names(store: Store, old: str, new: str, *, is_there: bool) -> None:
    found = store.settings_log(old).surely_newest().deletion
    if found is not None and found.renaming is not None:
        if found.renaming.to == new:
            return  # this rename continues
        store.require_repo(old)
        raise Conflict(
            f"{old} is being renamed to {found.renaming.to}: finish that first, by "
            f"`lodefs repo rename {old} {found.renaming.to}`"
        )
    if not is_there:
        store.require_repo(old)
        raise InvalidInput(f"{old} has no branches and tags, so there is nothing to rename")
    if living_refs(store, new):
        raise AlreadyExists(f"{new} exists: choose a name that is free")
    if store.new_name(new) != old and (gone := store.deletion(new)) is not None:
        what = "is an old name of another repository" if gone.renaming else "is deleted"
        raise AlreadyExists(f"{new} {what}: `lodefs undelete --empty {new}` frees the name")


def _set_names(
    store: Store,
    old: str,
    new: str,
    living: list[tuple[RefName, RefEntry]],
    options: RenameOptions,
) -> None:
    """Gives the new name the settings of the old one, then notes in those of the old one where it
    leads."""
    before = store.settings_log(old, options.clock)
    now = before.surely_newest()
    is_begun = now.deletion is not None and now.deletion.renaming is not None
    if not is_begun:
        former = tuple(dict.fromkeys((old, *now.former_names)))
        former = tuple(name for name in former if name != new)
        store.settings_log(new, options.clock).change(
            lambda there: replace(
                now,
                deletion=None,
                former_names=former,
                sequence=there.sequence,
                time_s=there.time_s,
            )
        )
    renaming = Renaming(new, options.until_s)
    names = tuple((ref.kind, ref.name) for ref, _ in living)

    def renamed(now: RepoSettings) -> RepoSettings:
        known = now.deletion.refs if is_begun and now.deletion is not None else ()
        refs = tuple(dict.fromkeys((*known, *names)))
        gone = Deletion(int(options.clock()), options.by, refs, renaming)
        return replace(now, deletion=gone, retention=None, quota_size_bytes=None)

    before.change(renamed)


def _move_all(store: Store, forking: Forking, old: str, new: str) -> list[RefName]:
    moved: dict[RefName, None] = {}
    for _ in range(_TRIES_MAX):
        living = living_refs(store, old)
        if not living:
            return list(moved)
        for ref, entry in living:
            to = ref._replace(repo=new)
            _move(store, forking, ref, to, entry)
            moved[to] = None
    raise Conflict(f"{old} keeps getting pushes: stop them, then repeat the command")


def _move(store: Store, forking: Forking, ref: RefName, to: RefName, entry: RefEntry) -> None:
    """Puts one ref under the new name, then deletes it under the old one, unless it has moved there
    meanwhile."""
    assert entry.commit is not None
    there = store.refs(to.repo).latest(to.kind, to.name)
    if there is None or there.commit is None or _is_behind(store, ref, there.commit, entry.commit):
        forking.move(to, entry.commit, there)
    elif there.commit != entry.commit:
        raise Diverged(
            f"{singular(ref.kind)} {ref.name} was moved under both names meanwhile: it is at "
            f"{entry.commit.hex()[:12]} in {ref.repo}, and at {there.commit.hex()[:12]} in "
            f"{to.repo}, and both stay. Rename the second one "
            f"(lodefs branch --move {to.repo}@{to.name} NAME), then repeat the command"
        )
    refs = store.refs(ref.repo)
    try:
        refs.advance(ref.kind, ref.name, None, expected_sequence=entry.sequence)
    except Conflict:  # a push was faster; the next try finds it
        return


def _is_behind(store: Store, ref: RefName, one: CommitId, other: CommitId) -> bool:
    """Whether a branch that was moved has moved on under its old name."""
    is_branch = ref.kind == "branches"
    return is_branch and one != other and one in History(store, ref.repo).order(other, ())
