"""The process of a mount that stores bytes in the kernel's page cache before they are asked for.

The first read of a small file costs a request and its answer. Storing it in the page cache without
a request (FUSE_NOTIFY_STORE) costs a fifth of that, and reading it then needs no process of lodefs.
This runs beside the workers, since the notification waits for pages that are being read: neither a
thread that answers reads nor the end of a worker may wait for that. The mount works without it, but
slower.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.protocol.figures.mount_counts import Column
from lodefs.chunkstore.protocol.wire import Entry
from lodefs.mount.fs.filesystem import LARGE
from lodefs.mount.kernel import device
from lodefs.mount.read.cache_monitor import CacheMonitor
from lodefs.mount.read.prefetch_policy import (
    BLOCK_BYTES,
    READ_BYTES_MAX,
    SIBLINGS_BYTES_MAX,
    Policy,
    Read,
    is_small,
    together,
)
from lodefs.mount.read.read_events import ReadEvent, ReadEvents
from lodefs.mount.shm.traffic_counters import Count, ignore_count

if TYPE_CHECKING:
    from lodefs.chunkstore.nodecache.view import CacheView, OpenFile  # loaded where there is one

TICK_S = 1.0  # how often to check for the end of the connection
IN_VAIN_MAX = 8  # stop after this many files in a row that the kernel has forgotten
GAP_BYTES_MAX = 64 * 1024  # a smaller gap is read rather than split into two reads
RUN_BYTES_MAX = 2 * SIBLINGS_BYTES_MAX
MISSING_MAX = 8  # stop after this many files in a row that are not on the node


class Piece(NamedTuple):
    """A small file, by its inode number, and the place of its bytes in a file of the cache."""

    ino: int
    offset: int
    size_bytes: int

    @property
    def end(self) -> int:
        """The offset after its bytes."""
        return self.offset + self.size_bytes


class Run(msgspec.Struct):
    """Small files that are read together from a file of the cache, by their offsets."""

    file: OpenFile
    pieces: list[Piece]
    end: int = 0  # the largest end of its pieces, which may overlap

    @property
    def first(self) -> int:
        """The offset at which it begins."""
        return self.pieces[0].offset

    @property
    def size_bytes(self) -> int:
        """The bytes from its beginning to its end."""
        return self.end - self.first

    @property
    def is_worth_a_read(self) -> bool:
        """Whether to read it from the disk: a single file is left to its readers."""
        return len(self.pieces) > 1

    def add(self, piece: Piece) -> bool:
        """Adds the next piece; False if it does not belong to this run."""
        end = max(self.end, piece.end)
        if self.pieces and (
            piece.offset > self.end + GAP_BYTES_MAX or end - self.first > RUN_BYTES_MAX
        ):
            return False
        self.pieces.append(piece)
        self.end = end
        return True

    def advise(self) -> None:
        """Asks the disk for all of it at once, instead of part by part."""
        if self.is_worth_a_read:
            with suppress(OSError):
                where = (self.file.fd, self.first, self.size_bytes)
                os.posix_fadvise(*where, os.POSIX_FADV_WILLNEED)


def runs_of(view: CacheView, nodes: Sequence[Entry]) -> Iterator[Run]:
    """Groups files whose bytes lie in one file of the cache: those that lie close together form a
    run."""
    for file, pieces in _pieces(view, nodes).items():
        run = Run(file, [])
        for piece in sorted(pieces, key=lambda one: one.offset):
            if not run.add(piece):
                yield run
                run = Run(file, [])
                run.add(piece)
        yield run


def _pieces(view: CacheView, nodes: Sequence[Entry]) -> dict[OpenFile, list[Piece]]:
    found: dict[OpenFile, list[Piece]] = {}
    missing = 0
    for node, chunk in zip(nodes, view.find_chunks(nodes), strict=True):
        extents = [chunk] if chunk is not None else view.find(node, 0, node.size_bytes)
        if extents is not None and len(extents) == 1:
            ((file, offset, size_bytes),) = extents
            found.setdefault(file, []).append(Piece(node.ino, offset, size_bytes))
            missing = 0
        elif (missing := missing + 1) == MISSING_MAX:
            break
    return found


class Prefetcher:
    """Stores data of the node's cache, which ``monitor`` finds, in the kernel's page cache, by the
    connection ``fd``. ``large``: also parts of large files. ``count`` is called with the number of
    bytes stored."""

    def __init__(
        self,
        fd: int,
        monitor: CacheMonitor,
        *,
        large: bool,
        count: Count = ignore_count,
        policy: Policy | None = None,
    ) -> None:
        self._fd = fd
        self._monitor = monitor
        self._large = large
        self._count = count
        self._policy = policy or Policy()
        self._buffer = memoryview(mmap.mmap(-1, RUN_BYTES_MAX))

    def prefetch(self, events: Sequence[ReadEvent]) -> None:
        """Stores what is likely to follow these reads, which workers have answered."""
        view = self._monitor.view
        if view is None:
            return
        try:
            heard = [found for event in events if (found := self._look(view, event)) is not None]
            done: set[int] = set()
            for node, read in heard:
                if node.ino not in done:
                    done.update(self._store_siblings(view, node, read))
        except LodefsError as error:
            self._monitor.failed(view, error)

    def _look(self, view: CacheView, event: ReadEvent) -> tuple[Entry, Read] | None:
        """Returns a small file whose siblings may be wanted. Blocks are stored at once."""
        block = event.first // BLOCK_BYTES
        read = self._policy.look((event.ino, block))
        if read is Read.NOTHING:
            return None
        node = view.node(event.ino)
        if node is None or node.kind != Kind.FILE or event.first >= node.size_bytes:
            return None
        if not is_small(node):
            if self._large and event.size_bytes <= READ_BYTES_MAX:
                self._store_block(view, node, block)
            return None
        if event.first == 0 and event.size_bytes >= node.size_bytes:
            self._policy.mark([(node.ino, 0)])  # the answer stores it
        return node, read

    def _store_block(self, view: CacheView, node: Entry, block: int) -> None:
        spot = (node.ino, block)
        if not (self._policy.is_dense(spot) and self._policy.begin(spot)):
            return
        first = block * BLOCK_BYTES
        data = self._buffer[: min(BLOCK_BYTES, node.size_bytes - first)]
        file = view.complete_flat(node)
        if file is not None and _read(file, data, first):
            view.used.add(file.number)
            if device.store(self._fd, node.ino | LARGE, first, data):
                self._policy.mark([spot])
                self._note_stored(view, len(data))

    def _store_siblings(self, view: CacheView, node: Entry, read: Read) -> Iterable[int]:
        """Stores siblings. Returns the numbers of those that were stored."""
        part = view.part(node)
        if part is None or not self._policy.is_dense(part.key):
            return ()
        group = together(part.nodes(), node.ino)
        nodes = [one for one in group if self._policy.wants((one.ino, 0), read)]
        if nodes and self._policy.begin(group[0].ino):
            runs = list(runs_of(view, nodes))
            for run in runs:
                run.advise()  # the disk reads the others while one is stored
            for run in runs:
                self._store_run(view, run)
        return (one.ino for one in group)

    def _store_run(self, view: CacheView, run: Run) -> None:
        data = self._buffer[: run.size_bytes]
        if not _read(run.file, data, run.first, flags=0 if run.is_worth_a_read else os.RWF_NOWAIT):
            return
        view.used.add(run.file.number)
        self._policy.mark([(piece.ino, 0) for piece in run.pieces], is_kept=False)
        kept: list[Piece] = []
        in_vain = 0
        for piece in run.pieces:
            at = piece.offset - run.first
            if device.store(self._fd, piece.ino, 0, data[at : at + piece.size_bytes]):
                kept.append(piece)
                in_vain = 0
            elif (in_vain := in_vain + 1) == IN_VAIN_MAX:
                break
        self._policy.mark([(piece.ino, 0) for piece in kept])
        self._note_stored(view, sum(piece.size_bytes for piece in kept))

    def _note_stored(self, view: CacheView, size_bytes: int) -> None:
        self._count(Column.AHEAD_BYTES, size_bytes)
        view.stored_bytes += size_bytes


def serve(
    events: ReadEvents, monitor: CacheMonitor, prefetcher: Prefetcher, is_over: Callable[[], bool]
) -> None:
    """Prefetches after reads until the connection has ended, or no process serves it any more."""
    events.listen()
    told = events.receive(TICK_S)
    while told is not None and not is_over():
        if told and not monitor.is_started:
            monitor.start()
        prefetcher.prefetch(told)
        told = events.receive(TICK_S)


def _read(file: OpenFile, data: memoryview, first: int, *, flags: int = 0) -> bool:
    """Reads into ``data``; False if it cannot be filled. Workers handle a file that has become
    shorter."""
    try:
        return os.preadv(file.fd, (data,), first, flags) == len(data)
    except OSError:  # includes BlockingIOError
        return False
