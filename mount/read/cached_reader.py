"""Reads a snapshot for a mount: from the node's cache first, then from the proxy."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from lodefs.chunkstore.protocol.figures.mount_counts import Column
from lodefs.chunkstore.protocol.read_client import Client
from lodefs.chunkstore.protocol.wire import Entry, Page
from lodefs.chunkstore.types import Buffer
from lodefs.mount.fs.device_lead import BeforeBlocking
from lodefs.mount.read.cache_monitor import CacheMonitor
from lodefs.mount.read.prefetch_policy import is_telling
from lodefs.mount.read.read_events import EmitRead, ReadEvent, ignore_read
from lodefs.mount.read.uncached_reads import SIZE_BYTES_MIN, UncachedReads
from lodefs.mount.shm.traffic_counters import CountsReads, uncounted

if TYPE_CHECKING:
    from lodefs.chunkstore.nodecache.cached_snapshot import Piece

    # Only a process that has opened a cache loads it
    from lodefs.chunkstore.nodecache.view import CacheView, Extent, OpenFile

_DIRECT_READS = Column.DIRECT_READS.value


class CachedReader:
    """A mount.fs.filesystem.Reader for one thread.

    ``before_blocking`` is called before waiting for a disk. ``emit`` is called with reads that
    similar reads are likely to follow.
    """

    def __init__(
        self,
        client: Client,
        cache: CacheMonitor,
        before_blocking: BeforeBlocking | None = None,
        counter: CountsReads | None = None,
        emit: EmitRead = ignore_read,
    ) -> None:
        self._client = client
        self._cache = cache
        self._before_disk = before_blocking.disk if before_blocking else lambda: None
        self._counter = counter or uncounted()
        self._nowait = os.RWF_NOWAIT
        self._uncached = UncachedReads()
        self._held: OpenFile | None = None
        self._emit = emit
        self.waited = client.waited
        self.begin = client.begin  # see ThreadReader
        self.cancel = client.cancel

    def node(self, ino: int) -> Entry:
        """See Reader."""
        found = self._cache.ask(lambda view: view.node(ino), eager=False)
        return self._client.node(ino) if found is None else found

    def lookup(self, parent_ino: int, name: bytes) -> Entry:
        """See Reader."""
        found = self._cache.ask(lambda view: view.lookup(parent_ino, name), eager=False)
        return self._client.lookup(parent_ino, name) if found is None else found

    def children(self, ino: int, after: bytes, limit: int) -> Page:
        """See Reader."""
        found = self._cache.ask(lambda view: view.children(ino, after, limit))
        return self._client.children(ino, after, limit) if found is None else found

    def read(self, ino: int, first: int, size_bytes: int) -> Buffer:
        """See Reader."""
        cache = self._cache
        if cache.neighbours_size_bytes and is_telling(first, size_bytes):
            self._emit(ReadEvent(ino, first, size_bytes))
        extents = cache.find(ino, first, size_bytes)
        if extents is None:
            extents, pieces = self._fetch(ino, first, size_bytes)
            if extents is None:
                if len(pieces) == 1 and not isinstance(pieces[0], tuple):
                    return pieces[0]
                return self._rendered(ino, first, pieces)
        if not extents:
            return b""
        file, offset, size = extents[0]
        data = self._client.scratch(size)
        if len(extents) > 1 or not self._fill(data, file, offset):
            data = self._rendered(ino, first, extents)
        cache.count(len(data), file)
        self._counter.read(_DIRECT_READS, len(data))
        return data

    def _fetch(
        self, ino: int, first: int, size_bytes: int
    ) -> tuple[list[Extent] | None, Sequence[Piece]]:
        """Returns the pieces that the proxy answers, and no extents. If the range is on its way,
        and another thread has asked for one shortly before it, waits for that answer first; if that
        answer has the extents of this range, too, returns these, and does not ask the proxy."""
        cache, client = self._cache, self._client
        if not cache.is_coming(ino, first + size_bytes):
            return None, cache.fetch(client, ino, first, size_bytes)
        with cache.shared_answers.after_others(client, ino, first) as has_waited:
            extents = cache.find(ino, first, size_bytes) if has_waited else None
            if extents is not None:
                return extents, ()
            return None, cache.fetch(client, ino, first, size_bytes)

    def _rendered(self, ino: int, first: int, pieces: Sequence[Piece]) -> memoryview:
        client = self._client
        return self._cache.render(
            pieces, client.scratch, self._fill, lambda at, size: client.read(ino, first + at, size)
        )

    def complete_flat(self, ino: int) -> int | None:
        """Returns a descriptor, for reading, of the file in the cache that has the bytes of a whole
        file and nothing else. It is open until this thread's next call. None without one."""
        self._held = file = self._cache.ask(lambda view: self._complete(view, ino))
        return None if file is None else file.fd

    def _complete(self, view: CacheView, ino: int) -> OpenFile | None:
        node = self._cache.node(view, ino)
        file = view.complete_flat(node) if node is not None else None
        if node is None or file is None or os.fstat(file.fd).st_size != node.size_bytes:
            return None
        view.used.add(file.number)
        return file

    def is_cut(self, ino: int) -> bool:
        """Whether the complete file in the cache has the wrong size."""
        return bool(self._cache.ask(lambda view: self._is_cut(view, ino), eager=False))

    def _is_cut(self, view: CacheView, ino: int) -> bool:
        node = self._cache.node(view, ino)
        file = view.complete_flat(node) if node is not None else None
        return bool(node and file and os.fstat(file.fd).st_size != node.size_bytes)

    def _fill(self, part: memoryview, file: OpenFile, offset: int) -> bool:
        """Reads until ``part`` is full; False if the file is too short."""
        fd = file.fd
        if len(part) >= SIZE_BYTES_MIN and self._fill_uncached(part, file, offset):
            return True
        try:
            if os.preadv(fd, (part,), offset, self._nowait) == len(part):
                return True
        except BlockingIOError:
            pass
        except OSError as error:
            if not self._nowait or error.errno != errno.EOPNOTSUPP:
                return False
            self._nowait = 0  # this file system cannot tell, so reads may block
        self._before_disk()
        if file.is_slab:
            self._bring_neighbours(fd, offset)
        return self._from_disk(fd, part, offset) is not None

    def _fill_uncached(self, part: memoryview, file: OpenFile, offset: int) -> bool:
        """Reads a large part past the page cache; False if that is not wanted, or failed."""
        uncached = self._uncached.descriptor(file, offset, len(part))
        if uncached is None:
            return False
        self._before_disk()
        seconds = self._from_disk(uncached.fd, part, offset)
        self._uncached.took(len(part), seconds)
        return seconds is not None

    def _from_disk(self, fd: int, part: memoryview, offset: int) -> float | None:
        """Reads until ``part`` is full. Returns the seconds that it took; None if it failed."""
        begin_s = time.monotonic()
        try:
            is_full = os.preadv(fd, (part,), offset) == len(part)
        except OSError:
            is_full = False
        seconds = time.monotonic() - begin_s
        self.waited.for_disk(seconds)
        return seconds if is_full else None

    def _bring_neighbours(self, fd: int, offset: int) -> None:
        """Makes the kernel read the neighbouring bytes, if that is worthwhile."""
        size_bytes = self._cache.neighbours_size_bytes
        if size_bytes:
            with suppress(OSError):
                first = offset - offset % size_bytes
                os.posix_fadvise(fd, first, size_bytes, os.POSIX_FADV_WILLNEED)
