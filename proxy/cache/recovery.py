"""What a killed process or a power cut left behind: cleaned up in the background after a start."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.system.progress import Progress
from lodefs.proxy.cache import durability
from lodefs.proxy.cache.chunk_cache import Cache

log = logging.getLogger("lodefs.cache")


def clean(
    cache: Cache,
    *,
    stopping: Callable[[], bool],
    progress: Progress | None = None,
) -> int:
    """Finishes evictions, removes files without rows, checks files that a power cut may have
    harmed. How many of these are left: they could not be read, or the node stops. Not 0 either
    where anything else failed, and is to be tried again.

    ``progress`` shows how many files and bytes there are to check, and were.
    """
    progress = progress or Progress()
    with cache.lock:  # reads add files meanwhile
        files = list(cache.files.values())
    unsure = [file for file in files if not file.is_recovered(cache.boot)]
    progress.files_total, progress.files_done = len(unsure), 0
    progress.bytes_total, progress.bytes_done = sum(file.present_bytes for file in unsure), 0
    problem: Exception | None = None
    try:
        cache.eviction.finish()
        _remove_files(cache, stopping)
    except (OSError, LodefsError) as error:
        problem = error
    for file in unsure:
        if stopping():
            break
        try:
            durability.check(cache, file, stopping=stopping)
        except LodefsError as error:
            problem = error
        progress.files_done += 1
        progress.bytes_done += file.present_bytes
    if problem is not None:
        log.warning("the cache %s is not cleaned up fully: %s", cache.settings.path, problem)
    left = sum(file.is_alive and not file.is_recovered(cache.boot) for file in unsure)
    return left or int(problem is not None)


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
