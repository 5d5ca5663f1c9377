"""``lodefs.pull``: a revision as a directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lodefs.api.sessions import opened, spec_of
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.system.progress import Progress
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.pull.pull import PullResult

WORKERS = 8


def pull(
    spec: str | Spec,
    directory: str | os.PathLike[str],
    *,
    workers: int = WORKERS,
    sync: bool = True,
    progress: Progress | None = None,
    store: str | None = None,
    session: Session | None = None,
) -> PullResult:
    """Copies ``REPO[@REV][:PATH]`` into a directory, which must be missing or empty, or a copy that
    was begun, or one that is complete: then it is compared, and not changed.

    ``workers``: parallel reads; ``sync``: wait until all is on disk. ``store`` and ``session``: as
    of ``push``. Raises: NotFound, AlreadyExists, Corrupt, NoSpace, Unavailable.
    """
    from lodefs.chunkstore.pull.pull import pull as pull_into

    with opened(session, store=store) as settings:
        return pull_into(
            settings.store,
            spec_of(spec),
            Path(directory),
            workers=workers,
            progress=progress or Progress(),
            sync=sync,
        )
