"""``lodefs.fork`` and ``lodefs.rename``: whole repositories under another name."""

from __future__ import annotations

import time
from typing import NamedTuple, Unpack

from lodefs.api.pushing import user_name
from lodefs.api.upkeep import NamedRef
from lodefs.chunkstore.format.names import Spec, check_repo
from lodefs.chunkstore.repo.refs import singular
from lodefs.chunkstore.system.progress import Progress
from lodefs.settings.session import Where, opened, revision_of

OLD_NAME_S = 90 * 24 * 3600


class Forked(NamedTuple):
    """A new repository. ``commit``: where its branch main is, 64 hex digits; ``commits``: how many
    it has."""

    repo: str
    commit: str
    commits: int


def fork(
    spec: str | Spec, new: str, *, progress: Progress | None = None, **where: Unpack[Where]
) -> Forked:
    """Makes the repository ``new``, whose branch main is at ``REPO[@REV]``, with its history and
    the same ids. No bytes of files move. Policies and quotas of REPO do not come along.

    ``progress`` is counted up meanwhile. ``store`` and ``session``: as of ``push``. Raises:
    AlreadyExists if the name is not free, NotFound, InvalidInput, Conflict.
    """
    from lodefs.chunkstore.transfer.fork import fork as make

    source = revision_of(spec)
    check_repo(new)
    with opened(**where) as settings:
        store = settings.store
        source, commit_id = store.locate(source)
        commits = make(store, source.repo, commit_id, new, progress=progress)
        return Forked(new, commit_id.hex(), commits)


class RenamedRepo(NamedTuple):
    """A repository with its new name. ``refs``: those that came there with this call; ``until_s``:
    the Unix time up to which the old name leads to the new one."""

    repo: str
    refs: list[NamedRef]
    until_s: int


def rename(
    old: str,
    new: str,
    *,
    old_name_s: int = OLD_NAME_S,
    progress: Progress | None = None,
    **where: Unpack[Where],
) -> RenamedRepo:
    """Renames a repository, with its branches, tags, retention policy and quota. Its reflogs begin
    anew. For ``old_name_s`` seconds the old name leads to the new one: for who reads, mounts and
    pushes. No bytes of files move.

    After an error, or if it was killed, the same call goes on; a push beside it loses nothing.
    ``progress`` is counted up meanwhile. ``store`` and ``session``: as of ``push``. Raises:
    NotFound; AlreadyExists if the name is not free; Diverged for what was pushed to both names;
    Conflict, InvalidInput.
    """
    from lodefs.chunkstore.transfer.rename import RenameOptions
    from lodefs.chunkstore.transfer.rename import rename as move_refs

    check_repo(old)
    until_s = int(time.time()) + old_name_s
    with opened(**where) as settings:
        options = RenameOptions(user_name(), until_s)
        moved = move_refs(settings.store, old, new, options, progress)
        refs = [NamedRef(ref.repo, singular(ref.kind), ref.name) for ref in moved]
        return RenamedRepo(new, refs, until_s)
