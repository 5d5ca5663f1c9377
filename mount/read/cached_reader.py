"""Reading a snapshot from the node's cache without asking the proxy, as far as that goes."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from lodefs.chunkstore.errors import LodefsError, NotFound
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.nodeapi.figures.mount_counts import Column
from lodefs.chunkstore.nodeapi.read_client import Client
from lodefs.chunkstore.nodeapi.wire import Node, Page, Place
from lodefs.chunkstore.system.lru import Lru
from lodefs.chunkstore.types import Buffer
from lodefs.mount.fs.device_lead import BeforeBlocking
from lodefs.mount.read.cache_monitor import CacheMonitor, ReadCounter
from lodefs.mount.read.prefetch_policy import is_telling
from lodefs.mount.read.read_events import EmitRead, ReadEvent, ignore_read
from lodefs.mount.shm.traffic_counters import CountsReads, uncounted

if TYPE_CHECKING:
    from lodefs.chunkstore.nodecache.view import (  # loaded where there is a cache
        CacheView,
        Extent,
        OpenFile,
    )

_NOTHING = memoryview(b"")
_DIRECT_READS = Column.DIRECT_READS.value

T = TypeVar("T")


class CachedReader:
    """A mount.fs.filesystem.Reader of one thread: the cache's files first, then the proxy.

    ``nodes`` is what the file system remembers of entries. ``before_blocking`` is called before
    waiting for a disk. ``emit`` hears of reads that others like them are likely to follow.
    """

    def __init__(
        self,
        client: Client,
        monitor: CacheMonitor,
        nodes: Lru[int, Node],
        before_blocking: BeforeBlocking | None = None,
        counter: CountsReads | None = None,
        emit: EmitRead = ignore_read,
    ) -> None:
        self._client = client
        self._monitor = monitor
        self._nodes = nodes
        self._before_disk = before_blocking.disk if before_blocking else lambda: None
        self._counter = counter or uncounted()
        self._nowait = os.RWF_NOWAIT
        self._held: OpenFile | None = None
        self._tell = emit
        self.waited = client.waited
        self._tally = ReadCounter()
        monitor.tallies.append(self._tally)

    def begin(self, waited_s: float = 0.0) -> None:
        """The time for the next request starts now, or ``waited_s`` ago."""
        self._client.begin(waited_s)

    def cancel(self) -> None:
        """Called from another thread: nobody waits for the request any more."""
        self._client.cancel()

    def node(self, ino: int) -> Node:
        """As of Reader."""
        found = self._ask(lambda view: view.node(ino))
        return self._client.node(ino) if found is None else found

    def lookup(self, parent_ino: int, name: bytes) -> Node:
        """As of Reader."""
        found = self._ask(lambda view: view.lookup(parent_ino, name))
        return self._client.lookup(parent_ino, name) if found is None else found

    def children(self, ino: int, after: bytes, limit: int) -> Page:
        """As of Reader."""
        found = self._ask(lambda view: view.children(ino, after, limit), eager=True)
        return self._client.children(ino, after, limit) if found is None else found

    def read(self, ino: int, first: int, size_bytes: int) -> Buffer:
        """As of Reader."""
        found = self._ask(lambda view: self._read(view, ino, first, size_bytes), eager=True)
        if found is not None:
            return found
        view = self._monitor.view
        if view is not None and size_bytes > 0:
            return self._located(view, ino, first, size_bytes)
        return self._client.read(ino, first, size_bytes)

    def _located(self, view: CacheView, ino: int, first: int, size_bytes: int) -> Buffer:
        """Bytes from where the proxy says that they lie; else from the proxy itself."""
        extents: list[Extent] = []
        at, end = first, first + size_bytes
        while at < end:
            told = self._client.locate(ino, at, end - at)
            if not isinstance(told, Place):
                if at == first:
                    return told
                break
            end = min(end, told.file_size_bytes)
            file = view.tell(ino, told)
            if file is None:
                break
            size = min(end - at, told.size_bytes)
            extents.append((file, told.offset, size))
            at += size
        if at >= end:
            found = self._filled(view, extents, end - first)
            if found is not None:
                return found
        return self._client.read(ino, first, size_bytes)

    def complete_flat(self, ino: int) -> int | None:
        """A descriptor of the file in the cache that has the bytes of a whole file and nothing
        else, for reading; open until this thread's next call. None where there is none."""
        self._held = file = self._ask(lambda view: self._complete(view, ino), eager=True)
        return None if file is None else file.fd

    def is_cut(self, ino: int) -> bool:
        """Whether the complete file in the cache has another size than the file that it is."""
        return bool(self._ask(lambda view: self._is_cut(view, ino)))

    def _ask(self, question: Callable[[CacheView], T | None], *, eager: bool = False) -> T | None:
        """What the cache answers; None: the proxy must be asked. NotFound where there surely is
        nothing.

        ``eager``: have news looked for where it did not know; they come too late for this
        question, but for the next ones: bytes are asked for often, and directories are loaded ahead
        of a walk. Single names need none: the kernel remembers what the proxy says of them.
        """
        view = self._monitor.view
        if view is None:
            return None
        try:
            found = question(view)
        except NotFound:
            raise
        except LodefsError as error:
            self._monitor.failed(view, error)
            return None
        if found is None and eager:
            self._monitor.wake()
        return found

    # --- bytes

    def _read(self, view: CacheView, ino: int, first: int, size_bytes: int) -> memoryview | None:
        if self._monitor.neighbours_size_bytes and is_telling(first, size_bytes):
            self._tell(ReadEvent(ino, first, size_bytes))
        file = view.known_flat(ino)
        if file is not None:
            size = min(size_bytes, file.size_bytes - first)
            return self._bytes(view, [(file, first, size)], size) if size > 0 else _NOTHING
        told = view.told(ino, first, size_bytes)
        if told is not None:
            return self._bytes(view, [told], size_bytes)
        node = self._node(view, ino)
        if node is None or node.kind != Kind.FILE:
            return None
        size = min(size_bytes, node.size_bytes - first)
        if size <= 0:
            return _NOTHING
        extents = view.find(node, first, size)
        return None if extents is None else self._bytes(view, extents, size)

    def _complete(self, view: CacheView, ino: int) -> OpenFile | None:
        node = self._node(view, ino)
        if node is None or node.kind != Kind.FILE:
            return None
        file = view.complete_flat(node)
        if file is None or os.fstat(file.fd).st_size != node.size_bytes:
            return None
        view.used.add(file.number)
        return file

    def _is_cut(self, view: CacheView, ino: int) -> bool:
        node = self._node(view, ino)
        if node is None:
            return False
        file = view.complete_flat(node)
        return file is not None and os.fstat(file.fd).st_size != node.size_bytes

    def _node(self, view: CacheView, ino: int) -> Node | None:
        node = self._nodes.get(ino)
        if node is None:
            node = view.node(ino)
            if node is not None:
                self._nodes.put(ino, node)
        return node

    def _bytes(self, view: CacheView, extents: list[Extent], size_bytes: int) -> memoryview | None:
        """As ``_filled``, for what nobody was asked about."""
        found = self._filled(view, extents, size_bytes)
        if found is not None:
            self._tally.reads += 1
            self._tally.read_bytes += size_bytes
            self._counter.read(_DIRECT_READS, size_bytes)
        return found

    def _filled(self, view: CacheView, extents: list[Extent], size_bytes: int) -> memoryview | None:
        """The bytes of all extents, one after the other; None where a file has become shorter."""
        buffer = self._client.scratch(size_bytes)
        end = 0
        for file, offset, size in extents:
            begin, end = end, end + size
            if not self._fill(buffer[begin:end], file, offset):
                view.forget(file)
                self._monitor.complain(
                    f"the cache file {file.number:08x} has not the bytes that it should have; "
                    "the proxy is asked"
                )
                return None
            view.used.add(file.number)
        return buffer

    def _fill(self, part: memoryview, file: OpenFile, offset: int) -> bool:
        """Reads until ``part`` is full; False where the file does not have so much."""
        fd = file.fd
        try:
            if os.preadv(fd, (part,), offset, self._nowait) == len(part):
                return True
        except BlockingIOError:
            pass
        except OSError as error:
            if not self._nowait or error.errno != errno.EOPNOTSUPP:
                return False
            self._nowait = 0  # this file system cannot tell: its reads are taken as they are
        self._before_disk()
        if file.is_slab:
            self._bring_neighbours(fd, offset)
        begin_s = time.monotonic()
        try:
            return os.preadv(fd, (part,), offset) == len(part)
        except OSError:
            return False
        finally:
            self.waited.for_disk(time.monotonic() - begin_s)

    def _bring_neighbours(self, fd: int, offset: int) -> None:
        """Has the kernel read what lies around, where that is worth while."""
        size_bytes = self._monitor.neighbours_size_bytes
        if size_bytes:
            with suppress(OSError):
                first = offset - offset % size_bytes
                os.posix_fadvise(fd, first, size_bytes, os.POSIX_FADV_WILLNEED)
