"""Reading what lies in the cache's files; a file that is not as the index says is dropped."""

from __future__ import annotations

import os

from proxy.cache import Cache, Place
from proxy.cachefile import CacheFile
from proxy.durability import is_right
from proxy.eviction import Evictor
from proxy.offload import Pools


class CacheReads:
    """Reads of one cache. Used from the event loop alone."""

    def __init__(self, cache: Cache, evictor: Evictor, pools: Pools) -> None:
        self._cache = cache
        self._evictor = evictor
        self._pools = pools

    async def read(self, file: CacheFile, offset: int, size_bytes: int) -> bytes | None:
        """Bytes of a cache file; None where they are not there, and the file is dropped then."""
        try:
            with file.in_use() as fd:
                data = _read_now(fd, offset, size_bytes)
                if data is None:
                    data = await self._pools.disk.run(os.pread, fd, size_bytes, offset)
        except OSError as error:
            data, why = b"", str(error)
        else:
            why = f"{len(data)} bytes at {offset}, not {size_bytes}"
        if len(data) < size_bytes:
            if file.is_alive:
                await self._pools.disk.run(self._evictor.drop, file, why)
            return None
        file.last_use_s = int(self._cache.now_s())
        return data

    async def is_good(self, place: Place, chunk_id: bytes) -> bool:
        """Chunks in a file that is not known to be on disk are checked before their use."""
        if place.file.is_trusted(self._cache.boot):
            return True
        if await self._pools.disk.run(is_right, place, chunk_id):
            return True
        await self._pools.disk.run(
            self._evictor.drop, place.file, f"chunk {chunk_id.hex()} is not what it was"
        )
        return False


def _read_now(fd: int, offset: int, size_bytes: int) -> bytes | None:
    """The bytes, if the kernel has them in memory; None where the disk must be waited for.

    Only the first and the last byte are asked for (preadv2(2), RWF_NOWAIT): asking for all needs
    a buffer that is cleared first, which costs as much as half the read.
    """
    probe = bytearray(1)
    try:
        for at in (offset, offset + size_bytes - 1):
            if os.preadv(fd, (probe,), at, os.RWF_NOWAIT) != 1:
                return None
    except OSError:  # not in memory, or a file system that cannot tell
        return None
    return os.pread(fd, size_bytes, offset)
