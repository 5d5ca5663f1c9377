"""Reports of damaged files in a node's cache, for the proxy to check.

Only the proxy may drop a file of its cache. Whoever finds one damaged names it here; the proxy
checks it itself, and drops it if that is true (proxy/cache/damage_check.py). A wrong word costs
a read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from lodefs.chunkstore.errors import Denied
from lodefs.chunkstore.nodecache import layout as layout


def suspect(cache_dir: Path, numbers: Iterable[int]) -> None:
    """Asks the proxy of a cache, running or not, to look at files. Raises: Denied."""
    folder = cache_dir / layout.SUSPECTS_DIR
    try:
        folder.mkdir(exist_ok=True)
        for number in numbers:
            (folder / f"{number:08x}").touch()
    except PermissionError as error:
        raise Denied(f"{folder}: {error.strerror}: only the proxy's user may repair") from error


def suspects(cache_dir: Path) -> list[int]:
    """The numbers of files that the proxy has still to look at."""
    try:
        names = sorted(os.listdir(cache_dir / layout.SUSPECTS_DIR))
    except FileNotFoundError:
        return []
    found = [layout.number_of(Path(name)) for name in names]
    return [number for number in found if number is not None]


def settle(cache_dir: Path, number: int) -> None:
    """Takes a file off the list: the proxy looked at it."""
    (cache_dir / layout.SUSPECTS_DIR / f"{number:08x}").unlink(missing_ok=True)
