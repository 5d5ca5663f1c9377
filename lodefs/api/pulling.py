"""``lodefs.pull``: copies a revision into a directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.system.progress import Progress
from lodefs.cli.parameters import option
from lodefs.settings.session import Where, opened, spec_of

if TYPE_CHECKING:
    from lodefs.chunkstore.pull.pull import PullResult

WORKERS = 8


def pull(
    spec: str | Spec,
    directory: str | os.PathLike[str],
    *,
    workers: Annotated[int, option("Parallel reads [8].", between=(1, 256))] = WORKERS,
    sync: bool = True,
    since: Annotated[
        str | None, option("DIR is a copy of REV: update it.", "--from", metavar="REV")
    ] = None,
    skip_purged: Annotated[bool, option("Leave out files whose bytes were purged.")] = False,
    progress: Progress | None = None,
    **where: Unpack[Where],
) -> PullResult:
    """Copies ``REPO[@REV][:PATH]`` into a directory, which must be missing, empty, an interrupted
    copy, or a finished copy. A finished copy of the same revision is compared, and not changed.

    A finished copy of another revision is updated: only the differences are fetched, and files that
    were changed in the copy are never overwritten. ``since``: the revision that the directory is a
    copy of, if lodefs does not know. A single file goes to the file ``directory``, or into it if it
    is a directory or ends with a slash.

    If an interrupted pull is continued, files that were changed in the meantime get another name:
    ``kept`` of the result names them.

    A file whose bytes were purged (``lodefs purge``) is an error. With ``skip_purged`` it is left
    out, and ``purged`` of the result names it.

    ``workers``: parallel reads; ``sync``: wait until all is on disk. ``store`` and ``session``: as
    for ``push``. Raises: NotFound, AlreadyExists, Corrupt, Purged, NoSpace, Unavailable.
    """
    from lodefs.chunkstore.pull.pull import pull as pull_into

    found, place = spec_of(spec), Path(directory)
    with opened(**where) as settings:
        at = None if since is None else settings.store.locate(Spec(found.repo, since))[1]
        ends_with_slash = os.fspath(directory).endswith("/")
        if found.path and not ends_with_slash and not place.is_dir():
            from lodefs.chunkstore.pull.single_file import is_file, pull_file

            if is_file(settings.store, found):
                return pull_file(settings.store, found, place, sync=sync)
        return pull_into(
            settings.store,
            found,
            place,
            workers=workers,
            progress=progress or Progress(),
            sync=sync,
            since=at,
            skip_purged=skip_purged,
        )
