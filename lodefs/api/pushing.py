"""``lodefs.push``: a commit from a directory."""

from __future__ import annotations

import getpass
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lodefs.api.sessions import opened, spec_of
from lodefs.chunkstore.errors import InvalidInput, NotADirectory
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.system.progress import Progress
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.push.changes import AllowRemovals
    from lodefs.chunkstore.push.push import PushResult


def push(
    directory: str | os.PathLike[str],
    repo: str | Spec,
    *,
    message: str = "",
    author: str | None = None,
    skip_unreadable: bool = False,
    allow_removals: bool | AllowRemovals = False,
    check: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
    store: str | None = None,
    session: Session | None = None,
) -> PushResult:
    """Commits a directory to a branch, ``REPO[@BRANCH]``; it becomes all of the branch.

    ``allow_removals``: also if that removes more than half of the branch's files; or a function
    that is asked. ``check``: look for all that the commit names, and store again what the store
    has lost. ``workers``: processes that read. ``progress`` is counted up meanwhile. ``store``: its
    URL, else that of the settings; ``session``: the settings themselves.

    All or nothing is committed; after an error, repeat it: what was sent stays.
    Raises: TooManyRemovals, Conflict, SourceChanged, InvalidInput, NotADirectory, Unavailable.
    """
    from lodefs.chunkstore.push.push import PushOptions
    from lodefs.chunkstore.push.push import push as push_directory

    spec = spec_of(repo)
    if spec.path:
        raise InvalidInput(
            f"{spec}: push takes REPO[@BRANCH], without a path: DIR becomes the whole branch"
        )
    place = Path(directory)
    if place.is_file():
        raise NotADirectory(f"{place} is a file: push takes the directory that it is in")
    with opened(session, store=store) as settings:
        options = PushOptions(
            message=message,
            author=author if author is not None else user_name(),
            time_s=int(time.time()),
            skip_unreadable=skip_unreadable,
            workers=workers,
            index_dir=settings.home_cache() / "push",
            check_packs=check,
            allow_removals=_consent(allow_removals),
        )
        return push_directory(
            settings.store, place, spec.repo, spec.rev, options, progress or Progress()
        )


def _consent(allowed: bool | AllowRemovals) -> AllowRemovals:
    return (lambda _removals: bool(allowed)) if isinstance(allowed, bool) else allowed


def user_name() -> str:
    """The user's name; "unknown" for a user id without one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "unknown"
