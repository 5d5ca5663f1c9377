"""``lodefs.fork`` and ``lodefs.rename``: give whole repositories another name."""

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
    """A new repository. ``commit``: the head of its branch main, 64 hex digits; ``commits``: their
    number."""

    repo: str
    commit: str
    commits: int


def fork(
    spec: str | Spec, new: str, *, progress: Progress | None = None, **where: Unpack[Where]
) -> Forked:
    """Creates the repository ``new``, whose branch main is at ``REPO[@REV]``, with its history and
    the same ids. No bytes of files move. Policies and quotas of REPO are not copied.

    ``progress`` is updated during the call. ``store`` and ``session``: as for ``push``. Raises:
    AlreadyExists if the name is taken, NotFound, InvalidInput, Conflict.
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
    """A repository with its new name. ``refs``: the refs that this call moved; ``until_s``: the
    Unix time until which the old name leads to the new one."""

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
    anew. For ``old_name_s`` seconds the old name leads to the new one for reads, mounts and pushes.
    No bytes of files move.

    After an error or a crash, the same call continues. A push at the same time loses nothing.
    ``progress`` is updated during the call. ``store`` and ``session``: as for ``push``. Raises:
    NotFound; AlreadyExists if the name is taken; Diverged for pushes to both names; Conflict,
    InvalidInput.
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
