"""What a killed process or a power cut left behind: cleaned up in the background after a start."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from chunkstore import cachelayout as layout
from chunkstore.errors import LodefsError
from proxy import durability
from proxy.cache import Cache
from proxy.eviction import Evictor

log = logging.getLogger("lodefs.cache")


def clean(cache: Cache, evictor: Evictor, *, stopping: Callable[[], bool]) -> None:
    """Finishes evictions, removes files without rows, checks files that are not trusted."""
    try:
        evictor.finish()
        _remove_files(cache, stopping)
        for file in list(cache.files.values()):
            if stopping():
                return
            if not file.is_trusted(cache.boot):
                durability.check(cache, evictor, file)
    except (OSError, LodefsError) as error:
        log.warning("the cache %s is not cleaned up fully: %s", cache.settings.path, error)


def _remove_files(cache: Cache, stopping: Callable[[], bool]) -> None:
    for path in _files(cache.settings.path):
        if stopping():
            return
        number = layout.number_of(path)
        if number is None:
            continue  # not ours
        with cache.lock:  # a new file is made and entered in the table under it
            file = cache.files.get(number)
            if file is None or file.path != path:
                path.unlink(missing_ok=True)


def _files(cache_dir: Path) -> Iterator[Path]:
    for kind in (layout.SLABS_DIR, layout.FLAT_DIR):
        for folder in sorted((cache_dir / kind).iterdir()):
            if folder.is_dir():
                with os.scandir(folder) as found:
                    yield from [Path(entry.path) for entry in found]
