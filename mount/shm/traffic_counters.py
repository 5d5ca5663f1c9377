"""What the readers of a mount got, counted in memory that its workers share.

A row for each slot of the roster (mount.shm.process_table), so that a count has one writing
process; a worker that comes after another goes on with its row. Told at the mount's socket, which
works also where the kernel does not.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from enum import IntEnum
from threading import Lock

import msgspec

from lodefs.chunkstore.nodeapi.wire import Origin
from lodefs.mount.shm.process_table import SLOTS

_WORD_BYTES = 8


class Column(IntEnum):
    """A figure of the table."""

    CACHE_BYTES = 0
    PEERS_BYTES = 1
    STORE_BYTES = 2
    KERNEL_OPENS = 3


# As an answer of the proxy names them; b"" where it does not.
COLUMN_OF = {
    b"": Column.CACHE_BYTES,
    Origin.PEERS.encode(): Column.PEERS_BYTES,
    Origin.STORE.encode(): Column.STORE_BYTES,
}

Count = Callable[[Column, int], None]


class Traffic(msgspec.Struct, frozen=True):
    """Bytes of files that the kernel got for readers of one mount, by where they came from; what it
    was given before it asked (mount.read.prefetcher) is among ``cache_bytes``. What the kernel
    reads from the cache by itself is not counted by anybody: ``kernel_opens`` says how often files
    were opened so."""

    cache_bytes: int = 0
    peers_bytes: int = 0
    store_bytes: int = 0
    kernel_opens: int = 0


class TrafficTable:
    """The table in the memory file ``fd``, which stays the caller's."""

    def __init__(self, fd: int) -> None:
        self._words = memoryview(mmap.mmap(fd, _size_bytes())).cast("Q")
        self._lock = Lock()

    @staticmethod
    def create() -> int:
        """A memory file for an empty table."""
        fd = os.memfd_create("lodefs-traffic", os.MFD_CLOEXEC)
        os.ftruncate(fd, _size_bytes())
        return fd

    def counter(self, slot: int) -> Count:
        """Counts for the process in a slot. For any thread of that."""
        words, lock, first = self._words, self._lock, slot * len(Column)

        def count(column: Column, amount: int) -> None:
            with lock:
                words[first + column] += amount

        return count

    def total(self) -> Traffic:
        """What all processes counted since the mount was made."""
        return Traffic(*(sum(self._words[column :: len(Column)]) for column in Column))


def by_origin(count: Count) -> Callable[[bytes, int], None]:
    """Counts bytes of the proxy's answers by what their ORIGIN_HEADER says."""
    return lambda origin, size_bytes: count(COLUMN_OF.get(origin, Column.CACHE_BYTES), size_bytes)


def uncounted(_column: Column, _amount: int) -> None:
    """Where there is no table."""


def _size_bytes() -> int:
    return SLOTS * len(Column) * _WORD_BYTES
