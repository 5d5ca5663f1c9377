"""Decides which reads from the cache's disk leave the page cache alone (O_DIRECT).

The kernel keeps what a mount reads in pages of the mount. Pages of the cache's file beside them
would take the same memory again, and most of the processor time of a large read from a quick disk.
On a slow disk they are worth it: the next mount has the bytes from memory.
"""

from __future__ import annotations

import math
import mmap
from typing import TYPE_CHECKING

from lodefs.chunkstore.system import libc

if TYPE_CHECKING:
    from lodefs.chunkstore.nodecache.view import Descriptor, OpenFile  # loaded where there is one

SIZE_BYTES_MIN = 512 * 1024  # smaller reads are quicker with the read-ahead of the cache's file
SLOW_BYTES_PER_S = 50 * 1000 * 1000  # for one of the several reads that are under way at a time
SLOW_MAX = 8  # after so many slow reads in a row
CACHED_MIN = 64  # as many large reads go through the page cache


class UncachedPolicy:
    """Decides by the sizes and the speed of earlier reads."""

    def __init__(self) -> None:
        self._slow = 0  # reads in a row
        self._cached = 0  # reads that are still to go through the page cache

    def wants(self, offset: int, size_bytes: int) -> bool:
        """Whether the next read from the disk is to leave the page cache alone."""
        if size_bytes < SIZE_BYTES_MIN or (offset | size_bytes) % mmap.PAGESIZE:
            return False
        if self._cached:
            self._cached -= 1
            return False
        return True

    def took(self, size_bytes: int, seconds: float) -> None:
        """Takes note of an uncached read; infinite seconds are a failure, and end the others."""
        is_slow = seconds * SLOW_BYTES_PER_S > size_bytes
        self._slow = self._slow + 1 if is_slow else 0
        if self._slow == SLOW_MAX or seconds == math.inf:
            self._slow, self._cached = 0, CACHED_MIN


class UncachedReads:
    """The uncached reads of one thread."""

    def __init__(self, policy: UncachedPolicy | None = None) -> None:
        self._policy = policy or UncachedPolicy()

    def descriptor(self, file: OpenFile, offset: int, size_bytes: int) -> Descriptor | None:
        """Returns a descriptor by which to read a range, aligned as its offset is; None if the
        range is small or in memory, or the disk slow."""
        if not self._policy.wants(offset, size_bytes):
            return None
        try:
            return None if libc.cached_pages(file.fd, offset, size_bytes) else file.uncached()
        except OSError:  # the kernel or the file system lacks something
            self._policy.took(size_bytes, math.inf)
            return None

    def took(self, size_bytes: int, seconds: float | None) -> None:
        """Takes note of a read by such a descriptor; None if it failed."""
        self._policy.took(size_bytes, math.inf if seconds is None else seconds)
