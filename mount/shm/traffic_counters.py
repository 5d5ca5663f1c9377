"""The counters of a mount, in memory that its processes share (protocol.figures.mount_counts).

There is a row for each of the first slots of the process table (mount.shm.process_table), so that
each counter has one writer; a worker that replaces another continues with its row. The memory is a
file next to the proxy's socket, which the proxy reads, if that directory exists; else it has no
name. The mount's socket also reports the totals, which works even if the kernel hangs.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Protocol

import msgspec

from lodefs.chunkstore.protocol.figures import figure_files
from lodefs.chunkstore.protocol.figures.mount_counts import (
    ENDING,
    FILE_BYTES,
    HEAD_BYTES,
    ROW_WORDS,
    ROWS,
    Column,
    MountCounts,
    MountDescription,
    decode,
    encode_head,
    is_known,
    read_all,
    use_row,
)
from lodefs.chunkstore.protocol.read_client import WaitTimes
from lodefs.chunkstore.protocol.wire import Origin

_WORD_BYTES = 8

Count = Callable[[Column, int], None]  # see RowCounter.add

# As an answer of the proxy names them
READS_OF = {
    Origin.PEERS.encode(): Column.PEERS_READS,
    Origin.STORE.encode(): Column.STORE_READS,
}


class Traffic(msgspec.Struct, frozen=True):
    """Bytes of files that the kernel got for readers of one mount, by source; ``cache_bytes``
    includes what was prefetched (mount.read.prefetcher). Nobody counts what the kernel reads from
    the cache by itself: ``kernel_opens`` is how often files were opened in that way."""

    cache_bytes: int = 0
    peers_bytes: int = 0
    store_bytes: int = 0
    kernel_opens: int = 0


class CountsReads(Protocol):
    """Counts reads as they are answered."""

    def read(self, reads: int, size_bytes: int) -> None:
        """See RowCounter.read."""
        ...


class RowCounter:
    """Counts for one process of a mount. For any of its threads."""

    __slots__ = ("_lock", "_words")

    def __init__(self, words: memoryview[int]) -> None:
        self._words = words
        self._lock = Lock()

    def add(self, column: Column, amount: int) -> None:
        """Adds to one column; negative for a gauge."""
        with self._lock:
            self._words[column] += amount

    def read(self, reads: int, size_bytes: int) -> None:
        """Counts a read of this many bytes: ``reads``, and the column of its bytes after it. Plain
        numbers index memory faster than members of an IntEnum."""
        words = self._words
        with self._lock:
            words[reads] += 1
            words[reads + 1] += size_bytes

    def answered(self, operation: int, spent_ns: int) -> None:
        """Counts an answered request of the kernel."""
        words, first = self._words, 3 * operation
        with self._lock:
            words[first] += 1
            words[first + 1] += spent_ns

    def failed(self, operation: int) -> None:
        """Counts a request that was answered with a real error."""
        with self._lock:
            self._words[3 * operation + 2] += 1

    def brought(self, origin: bytes, size_bytes: int) -> None:
        """Counts bytes that the proxy sent or located; ``origin``: its ORIGIN_HEADER."""
        self.read(READS_OF.get(origin, Column.CACHE_READS), size_bytes)

    def waited(self, waited: WaitTimes) -> None:
        """Adds what an answered request has waited for."""
        words = self._words
        with self._lock:
            words[Column.STORE_WAIT] += int(waited.store_s * 1e9)
            words[Column.PEERS_WAIT] += int(waited.peers_s * 1e9)
            words[Column.PROXY_WAIT] += int(waited.proxy_s * 1e9)
            words[Column.DISK_WAIT] += int(waited.disk_s * 1e9)

    def begin(self) -> None:
        """Clears the waiting requests in this row for a new process."""
        self._words[Column.WAITING] = 0


class TrafficTable:
    """The table in the file ``fd``, which stays the caller's."""

    def __init__(self, fd: int) -> None:
        memory = memoryview(mmap.mmap(fd, FILE_BYTES))
        self._head = memory[:HEAD_BYTES]
        self._memory = memory
        self._words = memory[HEAD_BYTES:].cast("Q")

    @staticmethod
    def create(description: MountDescription, *directories: Path) -> int:
        """Returns a file for an empty table, locked for as long as any process has it: in the first
        usable directory, else without a name."""
        head = encode_head(description)
        with suppress(Exception):  # others write there, and a mount does not depend on it
            for _ in read_all(*directories, sweep=True):
                pass
        fd = figure_files.create_in_first(directories, ENDING, head, FILE_BYTES)
        if fd is not None:
            return fd
        fd = os.memfd_create("lodefs-counts", os.MFD_CLOEXEC)
        os.ftruncate(fd, FILE_BYTES)
        os.pwrite(fd, head, 0)
        return fd

    def counter(self, slot: int) -> RowCounter:
        """Returns a counter for the process in a slot, if that has a row; else one that does
        nothing."""
        if not 0 <= slot < ROWS:
            return uncounted()
        use_row(self._head, slot)
        return RowCounter(self._words[slot * ROW_WORDS : (slot + 1) * ROW_WORDS])

    @property
    def is_known(self) -> bool:
        """False for a table of another form than this lodefs makes."""
        return is_known(self._head)

    def counts(self) -> MountCounts:
        """Returns the counts of all processes since the mount was made."""
        return decode(bytes(self._memory), os.geteuid())

    def total(self) -> Traffic:
        """Returns a summary of the counts, for the mount's socket."""
        found = self.counts()
        cached = (Column.DIRECT_BYTES, Column.CACHE_BYTES, Column.AHEAD_BYTES)
        return Traffic(
            sum(found[column] for column in cached),
            found[Column.PEERS_BYTES],
            found[Column.STORE_BYTES],
            found[Column.KERNEL_OPENS],
        )


def ignore_count(_column: Column, _amount: int) -> None:
    """A Count that counts nothing."""


def uncounted() -> RowCounter:
    """Returns the counts without a table."""
    return RowCounter(memoryview(bytearray(_WORD_BYTES * ROW_WORDS)).cast("Q"))
