"""Background recovery: cleans up after a kill or a power cut, and checks files that were reported
as damaged (``lodefs verify --cache --repair``)."""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.damage_reports import reported_files, resolve_report
from lodefs.chunkstore.nodecache.verify import WINDOW_SIZE_BYTES, segments_of_files
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
    """Completes evictions, removes files without rows, and checks files that a power cut may have
    damaged. Returns how many of these are left because they could not be read or the node is
    stopping; never 0 if anything else failed and must be retried.

    ``progress`` shows how many files and bytes there are to check, and how many were checked.
    """
    progress = progress or Progress()
    unsure = [file for file in cache.all_files() if not file.is_recovered(cache.boot)]
    progress.files_total, progress.files_done = len(unsure), 0
    progress.bytes_total, progress.bytes_done = sum(file.present_bytes for file in unsure), 0
    problem: Exception | None = None
    try:
        cache.eviction.finish()
        _remove_files(cache, stopping)
    except (OSError, LodefsError) as error:
        problem = error
    window = mmap.mmap(-1, WINDOW_SIZE_BYTES)
    for file in unsure:
        try:
            durability.check_and_sync(cache, file, pace=_ending(stopping), window=window)
        except durability.Stopped:
            break
        except LodefsError as error:
            problem = error
        progress.files_done += 1
        progress.bytes_done += file.present_bytes
    if problem is not None:
        log.warning("the cache %s is not cleaned up completely: %s", cache.settings.path, problem)
    left = sum(file.is_alive and not file.is_recovered(cache.boot) for file in unsure)
    return left or int(problem is not None)


def _remove_files(cache: Cache, stopping: Callable[[], bool]) -> None:
    for path in _files(cache.directory.held):
        if stopping():
            return
        number = layout.number_of(path)
        if number is None:
            continue  # not a file of the cache
        with cache.lock:  # new files are made and entered under the lock
            file = cache.files.get(number)
            if file is None or file.held_path != path:
                path.unlink(missing_ok=True)


def _files(cache_dir: Path) -> Iterator[Path]:
    for kind in (layout.SLABS_DIR, layout.FLAT_DIR):
        for folder in sorted((cache_dir / kind).iterdir()):
            if folder.is_dir():
                with os.scandir(folder) as found:
                    yield from [Path(entry.path) for entry in found]


def check_reported(cache: Cache, *, stopping: Callable[[], bool]) -> list[int]:
    """Checks every reported file, and drops damaged ones. Returns their numbers.

    Their bytes are fetched again on demand. ``stopping`` is called for each chunk; the report of a
    file that was not read completely stays.
    """
    pace, path, dropped = _ending(stopping), cache.settings.path, list[int]()
    try:
        for number in reported_files(path):
            pace(0)
            file = cache.file(number)
            if file is not None:
                segments = segments_of_files(cache.kv, [file.row])
                if not durability.check(cache, file, pace=pace, segments=segments):
                    dropped.append(number)
            resolve_report(path, number)
    except durability.Stopped:
        log.info("the reported files of %s are checked after the next start", path)
    except (OSError, LodefsError) as error:
        log.warning("reported files of %s are not checked: %s", path, error)
    return dropped


def _ending(stopping: Callable[[], bool]) -> Callable[[int], None]:
    """Returns what ends a check when the node is stopping."""

    def pace(_size_bytes: int) -> None:
        if stopping():
            raise durability.Stopped

    return pace
