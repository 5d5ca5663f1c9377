"""Reports of damaged files in a node's cache, for the proxy to check.

Only the proxy may drop a file of its cache. A process that finds one damaged reports it here. The
proxy checks the file itself (proxy/cache/recovery.py): a false report costs a read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from lodefs.chunkstore.errors import Denied
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.system.safe_open import PLACE, closing, make_within, open_within


def report_damage(cache_dir: Path, numbers: Iterable[int]) -> None:
    """Asks the proxy of a cache, running or not, to check files. It follows no symlink, which the
    cache's owner could have made. Raises: Denied, OSError."""
    folder = cache_dir / layout.SUSPECTS_DIR
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK
    try:
        with (
            closing(os.open(cache_dir, PLACE)) as cache_fd,
            closing(make_within(cache_fd, layout.SUSPECTS_DIR, 0o777)) as folder_fd,
        ):
            for number in numbers:
                os.close(open_within(folder_fd, f"{number:08x}", flags, 0o666))
    except PermissionError as error:
        raise Denied(f"{folder}: {error.strerror}: only the proxy's user may repair") from error


def reported_files(cache_dir: Path) -> list[int]:
    """Returns the numbers of reported files that the proxy has not checked yet."""
    try:
        names = sorted(os.listdir(cache_dir / layout.SUSPECTS_DIR))
    except FileNotFoundError:
        return []
    found = [layout.number_of(Path(name)) for name in names]
    return [number for number in found if number is not None]


def resolve_report(cache_dir: Path, number: int) -> None:
    """Removes a file's report after the proxy has checked the file."""
    (cache_dir / layout.SUSPECTS_DIR / f"{number:08x}").unlink(missing_ok=True)
