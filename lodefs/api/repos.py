"""``lodefs.fork``: whole repositories get another name beside their own."""

from __future__ import annotations

from typing import NamedTuple, Unpack

from lodefs.chunkstore.format.names import Spec, check_repo
from lodefs.chunkstore.system.progress import Progress
from lodefs.settings.session import Where, opened, revision_of


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
        commit_id = store.resolve(source.repo, source.rev)
        commits = make(store, source.repo, commit_id, new, progress=progress)
        return Forked(new, commit_id.hex(), commits)
