"""The latest requests of a mount, one by one, in memory that its workers share; off unless somebody
watches (``lodefs profile``).

The watcher switches it on for a short time (CLOCK_MONOTONIC), again and again, so it is off soon
after that process has ended in any way. Each process of the mount has a ring of its own, by its
slot in the process table, and so there is one writer. Records that are not read in time are
overwritten, and counted as lost.

    first page           until when it is on, f64
    64 bytes per slot    how many requests its ring has got so far, u64
    rings                RECORDS_MAX records each, in the form of _RECORD
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from threading import Lock
from typing import NamedTuple, Protocol

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.protocol.read_client import WaitTimes

SLOTS = 64  # traced processes; those in later slots are not traced
RECORDS_MAX = 8192  # for each process; a busy one fills it in a quarter of a second
_PAGE_BYTES = 4096
_COUNT_BYTES = 64  # one cache line of the processor for each
_RECORD = struct.Struct("<ddQQIIIffffHH")
_RING_BYTES = RECORDS_MAX * _RECORD.size
_COUNTS = _PAGE_BYTES
_RINGS = _COUNTS + SLOTS * _COUNT_BYTES


class Doubles(Protocol):
    """Memory that holds f64."""

    def __getitem__(self, index: int, /) -> float: ...


class Record(NamedTuple):
    """One request. Times are in seconds; ``start_s`` is by CLOCK_MONOTONIC. The waits are parts of
    ``elapsed_s``: for the proxy while it fetched from the store, or from peers; for the proxy
    alone; for the cache's disk. ``pid``: the asking process, 0 for the kernel itself. ``errno``: 0
    for success."""

    start_s: float
    elapsed_s: float
    ino: int
    first: int
    size_bytes: int
    opcode: int
    pid: int
    store_s: float
    peers_s: float
    proxy_s: float
    disk_s: float
    errno: int
    reserved: int = 0


class RequestTrace:
    """The memory file ``fd``, which stays the caller's. For any process of the mount, and for the
    watcher. Raises: InvalidInput if it has another form."""

    def __init__(self, fd: int) -> None:
        try:
            self._memory = memoryview(mmap.mmap(fd, _size_bytes()))
        except (ValueError, OSError) as error:
            raise InvalidInput(f"the trace of another version of lodefs: {error}") from error
        self._until_s = self._memory[:8].cast("d")
        self._counts = self._memory[_COUNTS:_RINGS].cast("Q")

    @staticmethod
    def create() -> int:
        """Returns a memory file, which takes no memory before it is used."""
        fd = os.memfd_create("lodefs-trace", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, _size_bytes())
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return fd

    def writer(self, slot: int) -> TraceWriter | None:
        """Returns the writer for the process in a slot; None if that is not traced."""
        if not 0 <= slot < SLOTS:
            return None
        ring = self._memory[_RINGS + slot * _RING_BYTES :][:_RING_BYTES]
        word = slot * _COUNT_BYTES // 8
        return TraceWriter(self._until_s, self._counts[word : word + 1], ring)

    def switch_on(self, until_s: float) -> None:
        """Traces requests until this time (CLOCK_MONOTONIC); a past time switches it off."""
        self._until_s[0] = until_s

    def reader(self) -> TraceReader:
        """Returns a reader of requests from now on."""
        counts = [self._counts[slot * _COUNT_BYTES // 8] for slot in range(SLOTS)]
        return TraceReader(self._counts, self._memory[_RINGS:], counts)


class TraceWriter:
    """Writes for one process; for any of its threads."""

    def __init__(self, until_s: Doubles, count: memoryview, ring: memoryview) -> None:
        self._until_s = until_s
        self._count = count
        self._ring = ring
        self._lock = Lock()

    def is_on(self, now_s: float) -> bool:
        """Whether somebody watches. Every request calls this."""
        return bool(self._until_s[0] > now_s)

    def add(
        self,
        start_s: float,
        waited: WaitTimes,
        *,
        opcode: int,
        ino: int,
        pid: int,
        first: int = 0,
        size_bytes: int = 0,
        errno: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Records a request that was answered now."""
        elapsed_s = clock() - start_s
        with self._lock:
            number = self._count[0]
            _RECORD.pack_into(
                self._ring, number % RECORDS_MAX * _RECORD.size, start_s, elapsed_s, ino, first,
                size_bytes, opcode, pid, waited.store_s, waited.peers_s, waited.proxy_s,
                waited.disk_s, errno, 0,
            )  # fmt: skip
            self._count[0] = number + 1


class TraceReader:
    """Reads what was traced since it was made. ``lost``: requests that were overwritten."""

    def __init__(self, counts: memoryview, rings: memoryview, seen: list[int]) -> None:
        self._counts = counts
        self._rings = rings
        self._seen = seen
        self.lost = 0

    def read(self) -> Iterator[Record]:
        """Yields the requests since the last call, those of each process in order."""
        for slot in range(SLOTS):
            word = slot * _COUNT_BYTES // 8
            count = self._counts[word]
            if count == self._seen[slot]:
                continue
            first = max(self._seen[slot], count - RECORDS_MAX)
            data = bytes(self._rings[slot * _RING_BYTES :][:_RING_BYTES])
            # What was written meanwhile may have overwritten the oldest, while it was copied
            intact = max(first, self._counts[word] - RECORDS_MAX + 1)
            self.lost += min(intact, count) - self._seen[slot]
            self._seen[slot] = count
            for number in range(intact, count):
                offset = number % RECORDS_MAX * _RECORD.size
                yield Record(*_RECORD.unpack_from(data, offset))


def _size_bytes() -> int:
    return _RINGS + SLOTS * _RING_BYTES
