"""Makes the cache durable, and checks the files that may not be on disk.

A file's row names the boot during which it was written, until a sync shows that all of its indexed
bytes are on disk. If the machine restarts before that, its chunks are checked against their ids
before their first use, and the whole file is checked in the background.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from lodefs.chunkstore.errors import LodefsError, Unavailable
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.affected_files import Segments
from lodefs.chunkstore.nodecache.kv import Row
from lodefs.chunkstore.nodecache.verify import check_file
from lodefs.chunkstore.system.os_errors import DAMAGED, FULL
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.chunk_cache import Cache

USE_RESOLUTION_S = 60


def sync(cache: Cache) -> None:
    """Syncs files that were written since this boot, and marks them as durable. An error of one
    file is raised after all others are synced. Raises: NoSpace, Unavailable."""
    failed: LodefsError | None = None
    for file in cache.all_files():
        if file.boot == cache.boot and file.is_alive:
            try:
                _sync_file(cache, file, trusted=True)
            except LodefsError as error:
                failed = error
    if failed is not None:
        raise failed


def save_uses(cache: Cache, resolution_s: int = USE_RESOLUTION_S) -> None:
    """Stores when files were last used, if that is so much later than what is stored, for evictions
    after a restart. Raises: NoSpace, Unavailable."""
    for file in cache.all_files():
        if file.last_use_s - file.saved_use_s >= resolution_s:
            _write_row(cache, file)


def is_damage(error: OSError) -> bool:
    """Whether a failed read means that the file cannot be read any more, and not just that nothing
    can be read now (out of descriptors or memory)."""
    return error.errno in DAMAGED


def unreadable(file: CacheFile, error: OSError) -> Unavailable:
    """Returns the error for a file that cannot be read now."""
    return Unavailable(f"the cache file {file.path} cannot be read now: {error.strerror}")


class Stopped(Exception):
    """The node is stopping. What is given to ``check`` as ``pace`` raises it."""


def check(
    cache: Cache,
    file: CacheFile,
    *,
    pace: Callable[[int], None],
    window: mmap.mmap | None = None,
    segments: Mapping[bytes, Segments] = MappingProxyType({}),
) -> bool:
    """Reads a file from the disk, as ``check_file`` does with these arguments. Drops it if it is
    damaged, and notes the time if it is right. Returns whether it is right, and still there.

    Raises: what ``pace`` raises; NoSpace; Denied, Unavailable if the file cannot be read now.
    """
    began_s = int(cache.now_s())
    found = check_file(
        cache.kv, cache.settings.path, file.number, file.row, segments, window=window, pace=pace
    )
    if found.damages:
        first, more = found.damages[0], len(found.damages) - 1
        others = f", and {more} others" if more else ""
        why = f"{first.size_bytes} bytes at {first.offset}: {first.what}{others}"
        cache.eviction.drop(file, why)
        return False
    with file.lock:  # an eviction marks the file under it, and removes its rows afterwards
        if file.is_alive:
            cache.kv.write([(layout.checked_key(file.number), layout.encode_checked(began_s))])
            file.mark_checked(began_s)
        return file.is_alive


def check_and_sync(
    cache: Cache, file: CacheFile, *, pace: Callable[[int], None], window: mmap.mmap
) -> None:
    """Checks a file that is not trusted, and trusts or drops it. Raises: as ``check``."""
    generation = file.generation
    if check(cache, file, pace=pace, window=window):
        _sync_file(cache, file, trusted=file.generation == generation)


def _sync_file(cache: Cache, file: CacheFile, *, trusted: bool) -> None:
    """Syncs a file. ``trusted``: what is indexed now is right, so that a sync makes it durable.
    Otherwise chunks were added while the older ones were checked; these are right, too, but not
    synced yet. Raises: NoSpace; Unavailable if the file cannot be opened now."""
    generation = file.generation
    try:
        with file.in_use() as fd:
            problem = _put_on_disk(fd)
    except OSError as error:
        if not is_damage(error):
            raise unreadable(file, error) from error
        problem = str(error.strerror)
    if problem:
        cache.eviction.drop(file, f"it cannot be synced to disk: {problem}")
        return
    with file.lock:
        if not file.is_alive:
            return
        durable = trusted and file.generation == generation
        before, file.boot = file.boot, layout.DURABLE if durable else cache.boot
        try:
            cache.step("sync")
            cache.kv.write(rows_of(file))
        except BaseException:
            file.boot = before
            raise


def _put_on_disk(fd: int) -> str:
    """Syncs a file. Returns the reason of a failure, or "". After one, the kernel has discarded the
    bytes that it could not write (fsync(2): EIO, ENOSPC, EDQUOT)."""
    try:
        os.fdatasync(fd)
    except OSError as error:
        if error.errno in DAMAGED | FULL:
            return str(error.strerror)
        raise
    return ""


def rows_of(file: CacheFile) -> list[Row]:
    """Returns the index rows of a file itself: its state, and when it was last checked."""
    rows: list[Row] = [(layout.file_key(file.number), layout.encode_file_row(file.row))]
    if file.checked_s:
        rows.append((layout.checked_key(file.number), layout.encode_checked(file.checked_s)))
    return rows


def _write_row(cache: Cache, file: CacheFile) -> None:
    with file.lock:
        if file.is_alive and file.generation + file.present_bytes:
            before, file.saved_use_s = file.saved_use_s, file.last_use_s
            try:
                cache.kv.write(rows_of(file))
            except BaseException:
                file.saved_use_s = before
                raise


def close(cache: Cache) -> str:
    """Syncs everything before a clean exit. Returns what failed, or ""."""
    problem = ""
    for step in (sync, partial(save_uses, resolution_s=1)):
        try:
            step(cache)
        except LodefsError as error:
            problem = str(error)
    return problem
