"""What is known to be on disk, and checking what is not.

A file's row names the boot during which it was written, until a sync says that all of its indexed
bytes are on disk. After a reboot without that, its chunks are checked against their ids before
their first use, and the whole file in the background.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from chunkstore import cachelayout as layout
from chunkstore.errors import LodefsError
from chunkstore.names import digest_of
from proxy.cache import Cache, Place
from proxy.cachefile import CacheFile
from proxy.eviction import Evictor

USE_RESOLUTION_S = 60


def sync(cache: Cache, evictor: Evictor) -> None:
    """Puts on disk what was written since this boot, and notes that. NoSpace, Unavailable."""
    for file in list(cache.files.values()):
        if file.boot == cache.boot and file.is_alive:
            _sync_file(cache, evictor, file, trusted=True)


def save_uses(cache: Cache) -> None:
    """Notes when files were last used, for evictions after a restart. NoSpace, Unavailable."""
    for file in list(cache.files.values()):
        if file.last_use_s - file.saved_use_s >= USE_RESOLUTION_S:
            _write_row(cache, file)


def is_right(place: Place, chunk_id: bytes) -> bool:
    """Whether the bytes at a place are those of the chunk. False also where they are missing."""
    try:
        with place.file.in_use() as fd:
            data = os.pread(fd, place.size_bytes, place.offset)
    except OSError:
        return False
    return digest_of(data) == chunk_id


def check(cache: Cache, evictor: Evictor, file: CacheFile) -> None:
    """Checks every chunk of a file that is not trusted; then it is, or it is dropped."""
    generation = file.generation
    for place, chunk_id in _chunks(cache, file):
        if not file.is_alive:
            return
        if not is_right(place, chunk_id):
            evictor.drop(file, f"{place.size_bytes} bytes at {place.offset} are not those written")
            return
    _sync_file(cache, evictor, file, trusted=file.generation == generation)


def _chunks(cache: Cache, file: CacheFile) -> Iterator[tuple[Place, bytes]]:
    for key, value in cache.kv.scan(layout.run_prefix(file.number)):
        offset = layout.run_offset(key)
        for chunk_id, size_bytes in layout.decode_run_row(value).chunks:
            yield Place(file, offset, size_bytes), chunk_id
            offset += size_bytes


def _sync_file(cache: Cache, evictor: Evictor, file: CacheFile, *, trusted: bool) -> None:
    """``trusted``: what is indexed by now is right, so that a sync makes it durable. Otherwise
    chunks were added while the older ones were checked: these are right too, but not yet synced.
    """
    generation = file.generation
    try:
        with file.in_use() as fd:
            os.fdatasync(fd)
    except OSError as error:
        # the kernel may have thrown away what it could not write
        evictor.drop(file, f"it cannot be put on disk: {error.strerror}")
        return
    with file.lock:
        if not file.is_alive:
            return
        durable = trusted and file.generation == generation
        file.boot = layout.DURABLE if durable else cache.boot
        cache.step("sync")
        cache.kv.write([(layout.file_key(file.number), layout.encode_file_row(file.row))])


def _write_row(cache: Cache, file: CacheFile) -> None:
    with file.lock:
        if file.is_alive and file.generation + file.present_bytes:
            file.saved_use_s = file.last_use_s
            cache.kv.write([(layout.file_key(file.number), layout.encode_file_row(file.row))])


def close(cache: Cache, evictor: Evictor) -> str:
    """Before a clean end: everything on disk. Gives what went wrong, "" where nothing did."""
    try:
        sync(cache, evictor)
        for file in list(cache.files.values()):
            if file.last_use_s != file.saved_use_s:
                _write_row(cache, file)
    except LodefsError as error:
        return str(error)
    return ""
