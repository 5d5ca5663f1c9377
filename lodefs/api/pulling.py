"""``lodefs.pull``: a revision as a directory."""

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
    """Copies ``REPO[@REV][:PATH]`` into a directory, which must be missing or empty, or a copy that
    was begun, or one that is complete: then it is compared, and not changed.

    A finished copy of another revision is brought to this one: only what differs is fetched, and
    what was changed in the copy since is never overwritten. ``since``: the revision that it is a
    copy of, if the directory does not know. A single file goes to a file, if ``directory`` is
    neither a directory nor ends with a slash.

    Where an interrupted pull goes on, files that were changed in the meantime get another name:
    ``kept`` of the result names them.

    A file of which bytes were purged (``lodefs purge``) is an error; with ``skip_purged`` it is
    left out, and ``purged`` of the result names it.

    ``workers``: parallel reads; ``sync``: wait until all is on disk. ``store`` and ``session``: as
    of ``push``. Raises: NotFound, AlreadyExists, Corrupt, Purged, NoSpace, Unavailable.
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
