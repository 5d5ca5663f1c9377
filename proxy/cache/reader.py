"""Reads the cache's files. A file that does not match the index is dropped.

If a file cannot be read for another reason, such as a lack of descriptors, its bytes may be right.
Then it stays, and the read fails with a retryable error.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.proxy.cache import durability
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.chunk_cache import Cache, ChunkLocation
from lodefs.proxy.cache.eviction_policy import Use
from lodefs.proxy.runtime.thread_pools import Pools

CHUNKS_FEW = 64  # of a MiB at most; the event loop asks by itself: a thread costs 0.2 ms


class CacheReader:
    """Reads from one cache, for use on the event loop only."""

    def __init__(self, cache: Cache, pools: Pools) -> None:
        self._cache = cache
        self._pools = pools

    async def read(self, file: CacheFile, offset: int, size_bytes: int) -> bytes | None:
        """Returns bytes of a cache file. If they are missing, drops the file and returns None.
        Raises: Unavailable if the file cannot be read now."""
        try:
            with file.in_use() as fd:
                data = _read_now(fd, offset, size_bytes)
                if data is None:
                    data = await self._pools.disk.run(os.pread, fd, size_bytes, offset)
        except OSError as error:
            if not durability.is_damage(error):
                raise durability.unreadable(file, error) from error
            data, why = b"", str(error)
        else:
            why = f"{len(data)} bytes at {offset}, not {size_bytes}"
        if len(data) < size_bytes:
            if file.is_alive:
                await self._pools.disk.run(self._cache.eviction.drop, file, why)
            return None
        self._cache.touch(file, Use.READ, size_bytes)
        return data

    async def find(self, index: PackIndex, first: int, count: int) -> list[ChunkLocation | None]:
        """Returns where chunks of a pack lie. Unless memory tells that a few of them are not here,
        it runs in a thread, since the index may wait for the disk
        (docs/decisions/0001-sync-library-async-proxy.md)."""
        keys = layout.chunk_keys(index.ids, first, count)
        if count <= CHUNKS_FEW and self._cache.lacks(keys):
            return [None] * count
        return await self._pools.disk.run(self._cache.find, keys)

    async def good(self, chunks: Sequence[tuple[ChunkLocation, bytes]]) -> int:
        """Returns how many chunks, from the first on, can be used. Chunks in a file that may not be
        on disk, or was not checked for long, are checked here, all at once; the file of the first
        wrong one is dropped. Raises: Unavailable if a file cannot be read now."""
        boot = self._cache.boot
        if all(place.file.is_trusted(boot) for place, _ in chunks):
            return len(chunks)
        return await self._pools.disk.run(self._check, chunks)

    def _check(self, chunks: Sequence[tuple[ChunkLocation, bytes]]) -> int:
        for n, (place, chunk_id) in enumerate(chunks):
            is_known = place.file.is_trusted(self._cache.boot)
            if not is_known and read_chunk(place, chunk_id) is None:
                self._cache.eviction.drop(place.file, f"chunk {chunk_id.hex()} has changed")
                return n
        return len(chunks)


def read_chunk(place: ChunkLocation, chunk_id: bytes) -> bytes | None:
    """Returns the bytes of a chunk at a place, verified; None if they are wrong or missing.
    Blocking. Raises: Unavailable if they cannot be read now."""
    try:
        with place.file.in_use() as fd:
            raw = os.pread(fd, place.size_bytes, place.offset)
    except OSError as error:
        if not durability.is_damage(error):
            raise durability.unreadable(place.file, error) from error
        return None
    return raw if digest_of(raw) == chunk_id else None


def _read_now(fd: int, offset: int, size_bytes: int) -> bytes | None:
    """Returns the bytes if the kernel has them in memory; None if they must be read from the disk.

    It tests only the first and the last byte (preadv2(2), RWF_NOWAIT): testing all needs a buffer
    that is cleared first, which costs as much as half the read.
    """
    probe = bytearray(1)
    try:
        for at in (offset, offset + size_bytes - 1):
            if os.preadv(fd, (probe,), at, os.RWF_NOWAIT) != 1:
                return None
    except OSError:  # not in memory, or the file system does not support the flag
        return None
    return os.pread(fd, size_bytes, offset)
