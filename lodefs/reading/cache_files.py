"""A snapshot in the files of the node's cache, read with pread(2) and without the proxy.

What the cache does not have is None: the proxy is asked then. No thread is started: readers
themselves look now and then for what is new, and report to the proxy what they used, so that it
evicts other files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from lodefs.chunkstore.errors import LodefsError, NotFound
from lodefs.chunkstore.nodeapi import wire
from lodefs.chunkstore.nodeapi.wire import Node, Page, Snapshot, Used
from lodefs.reading import after_fork
from lodefs.reading.proxy_clients import ProxyClients

if TYPE_CHECKING:
    from lodefs.chunkstore.nodecache.view import CacheView, Extent

UPKEEP_S = 2.0
ASK_S = 1.0  # for the proxy, which may be gone while the cache is read
RETRY_S = 10.0  # after the cache could not be opened
READ_BYTES_MAX = 1 << 30  # of one pread: the kernel gives no more than 2 GiB at once

T = TypeVar("T")


class CacheFiles:
    """The cache as far as it holds one snapshot. For any thread."""

    def __init__(self, clients: ProxyClients, snapshot: Snapshot) -> None:
        self._clients = clients
        self._snapshot = snapshot
        self._view: CacheView | None = None
        self.reset()
        after_fork.renew(self)

    def reset(self) -> None:
        """Without an index: it is opened by the next reader."""
        if self._view is not None:
            self._view.abandon()
            after_fork.keep_for_ever(self._view)
            self._view = None
        self._upkeep_s = 0.0
        self._is_shared = True  # until the proxy says that it shares no cache
        self._reads = self._read_bytes = 0

    # --- names

    def lookup(self, parent_ino: int, name: bytes) -> Node | None:
        """The child of a directory. Raises: NotFound if it surely has none of that name."""
        return self._ask(lambda view: view.lookup(parent_ino, name))

    def children(self, ino: int, after: bytes, limit: int) -> Page | None:
        """Children of a directory after a name, at most ``limit``."""
        return self._ask(lambda view: view.children(ino, after, limit))

    # --- bytes

    def read(self, node: Node, first: int, size_bytes: int) -> bytes | None:
        """Bytes of a file, which must have them all."""
        extents = self._find(node, first, size_bytes)
        if extents is None:
            return None
        if len(extents) == 1:
            file, offset, size = extents[0]
            data = _pread(file.fd, size, offset)
        else:
            data = b"".join([_pread(file.fd, size, offset) for file, offset, size in extents])
        if len(data) != size_bytes:
            self._broken(extents)
            return None
        self._count(extents, size_bytes)
        return data

    def read_into(self, node: Node, first: int, buffer: memoryview) -> bool:
        """Fills ``buffer`` with bytes of a file; False if they are not all here."""
        extents = self._find(node, first, len(buffer))
        if extents is None:
            return False
        begin = 0
        for file, offset, size in extents:
            part = buffer[begin : begin + size]
            while part:
                count = os.preadv(file.fd, (part[:READ_BYTES_MAX],), offset)
                if not count:
                    self._broken(extents)
                    return False
                part, offset = part[count:], offset + count
            begin += size
        self._count(extents, len(buffer))
        return True

    def _find(self, node: Node, first: int, size_bytes: int) -> list[Extent] | None:
        view = self._current()
        if view is None:
            return None
        try:
            flat = view.known_flat(node.ino)
            if flat is not None:
                return [(flat, first, size_bytes)]
            found = view.find(node, first, size_bytes)
            if found is None and self._catch_up(view):
                found = view.find(node, first, size_bytes)
            return found
        except (LodefsError, OSError):
            self._give_up()
            return None

    def _broken(self, extents: Sequence[Extent]) -> None:
        """A file is shorter than the index says: the proxy is asked, and finds out."""
        view = self._view
        if view is not None:
            for file, _, _ in extents:
                view.forget(file)

    def _count(self, extents: Sequence[Extent], size_bytes: int) -> None:
        view = self._view
        if view is not None:
            for extent in extents:
                view.used.add(extent[0].number)
        self._reads += 1
        self._read_bytes += size_bytes

    # --- upkeep

    def _ask(self, question: Callable[[CacheView], T | None]) -> T | None:
        view = self._current()
        if view is None:
            return None
        try:
            found = question(view)
            return question(view) if found is None and self._catch_up(view) else found
        except NotFound:
            raise
        except (LodefsError, OSError):
            self._give_up()
            return None

    def _give_up(self) -> None:
        """The index cannot be read: the proxy is asked, and the index opened anew after a while."""
        self._view = None
        self._upkeep_s = time.monotonic() + RETRY_S

    def _catch_up(self, view: CacheView) -> bool:
        """Sees what the proxy wrote meanwhile; False if that was just done, or is being done."""
        if not after_fork.index_lock.acquire(blocking=False):
            return False
        try:
            return view.catch_up()
        finally:
            after_fork.index_lock.release()

    def _current(self) -> CacheView | None:
        if time.monotonic() >= self._upkeep_s and self._is_shared:
            with after_fork.index_lock:
                if time.monotonic() >= self._upkeep_s:  # nobody else did it meanwhile
                    self._maintain()
        return self._view

    def _maintain(self) -> None:
        try:
            view = self._view
            if view is not None and view.is_current():
                self._upkeep_s = time.monotonic() + UPKEEP_S
                view.catch_up()
                view.close_evicted()
                self._report(view)
            else:
                self._upkeep_s = time.monotonic() + RETRY_S
                self._view = None
                self._open()
        except (LodefsError, OSError):
            self._give_up()

    def _open(self) -> None:
        if not self._clients.is_beside:
            self._is_shared = False
            return
        with self._clients.client(ASK_S) as client:
            try:
                place = client.cache_place()
            except NotFound:
                self._is_shared = False
                return
        from lodefs.chunkstore.nodecache.view import open_view  # RocksDB comes with it

        self._view = open_view(place, self._snapshot)
        self._upkeep_s = time.monotonic() + UPKEEP_S

    def _report(self, view: CacheView) -> None:
        numbers, view.used = view.used, set()
        scattered, view.scattered = view.scattered, set()
        if not self._reads:
            return
        used = Used(
            list(islice(numbers, wire.USED_NUMBERS_MAX)),
            self._reads,
            self._read_bytes,
            self._snapshot.repo,
            self._snapshot.commit,
            list(islice(scattered, wire.SCATTERED_MAX)),
        )
        self._reads = self._read_bytes = 0
        with suppress(LodefsError), self._clients.client(ASK_S) as client:
            client.report(used)  # if it does not come, the files' next use counts

    def close(self) -> None:
        """Reports what was read since the last time."""
        view = self._view
        if view is not None:
            with after_fork.index_lock:
                self._report(view)


def _pread(fd: int, size_bytes: int, offset: int) -> bytes:
    if size_bytes <= READ_BYTES_MAX:
        return os.pread(fd, size_bytes, offset)
    pieces = range(offset, offset + size_bytes, READ_BYTES_MAX)
    end = offset + size_bytes
    return b"".join([os.pread(fd, min(READ_BYTES_MAX, end - at), at) for at in pieces])
