"""Fetches chunks from the store to the cache's files by data processes: this process finds the
places and writes the rows, and sees none of the bytes.

Only the plain case is handled here. Wrong bytes and rewritten packs raise the store's errors. In
all other cases the caller learns that nothing was fetched, and reads the bytes itself, with
retries.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lodefs.chunkstore.errors import Changed, LodefsError, Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import ID_BYTES
from lodefs.chunkstore.format.pack import WrongChunk
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.objects.ranges.order import Done, RangeOrder, range_order
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.chunkstore.system.circuit_breaker import CircuitBreaker
from lodefs.proxy.cache.extents import Run
from lodefs.proxy.cache.reservation import Chunk, Reservation
from lodefs.proxy.data import order as orders
from lodefs.proxy.data.order import FetchReport, FetchTask, WriteTarget
from lodefs.proxy.data.processes import GRACE_S, DataProcesses, NotDone
from lodefs.proxy.fetch.cache_write import CacheWrite, WritePart

log = logging.getLogger("lodefs.data")

SIZE_BYTES_LEAST = 512 * 1024  # stored bytes; for fewer, another process is not worth it
PAUSE_S_FIRST, PAUSE_S_MAX = 1.0, 30.0  # without orders after a failed one
PARTS_MAX = orders.FILES_MAX - 1  # files that one order writes to


class PlaneWrite(NamedTuple):
    """What a data process has fetched: stored bytes, and where the pack's raw bytes lie."""

    received_bytes: int
    extents: list[Run]


class DataPlane:
    """Fetches chunks of one store's packs by data processes, which the node ends. For any
    thread."""

    def __init__(
        self, processes: DataProcesses, objects: ObjectStore, *, transfer_timeout_s: float
    ) -> None:
        self.processes = processes
        self._objects = objects
        self._timeout_s = transfer_timeout_s + GRACE_S
        # An order would only ask a failing store (or disk) once more, and does not know how long
        # to leave it alone.
        self._breaker = CircuitBreaker(PAUSE_S_FIRST, PAUSE_S_MAX)

    def takes(
        self, pack_index: PackIndexVersion, first: int, count: int, write: CacheWrite
    ) -> bool:
        """Whether data processes may fetch chunks [first, first + count): they run, and these are
        enough."""
        if pack_index.index.stored_size(first, first + count) < SIZE_BYTES_LEAST:
            return False
        return self.processes.start() and not write.gate.is_slow() and len(write.parts) <= PARTS_MAX

    def fetch(
        self, pack_index: PackIndexVersion, first: int, count: int, write: CacheWrite
    ) -> PlaneWrite | None:
        """Fetches chunks that data processes take, and writes those that have a place in the cache.
        Returns None if nothing was fetched. Raises: WrongChunk, Changed; Corrupt, Denied and others
        if the store's file cannot be read."""
        index = pack_index.index
        offset, size_bytes = index.offsets[first], index.stored_size(first, first + count)
        if not (self._breaker.is_closed or self._breaker.is_due()):
            return None
        key = keys.pack(index.pack_id)
        try:
            with range_order(self._objects, key, offset, size_bytes, pack_index.etag) as read:
                if read is None:
                    return None
                with write.reserved() as places:
                    if places is None:
                        return None
                    return self._fetch(pack_index, first, count, read, write, places)
        except (NotDone, OSError, LodefsError) as error:
            if isinstance(error, WrongChunk | Changed):
                raise
            log.info("chunks %d to %d of %s: %s", first, first + count - 1, key, error)
            return None

    def _fetch(
        self,
        pack_index: PackIndexVersion,
        first: int,
        count: int,
        read: RangeOrder,
        write: CacheWrite,
        places: Sequence[Reservation],
    ) -> PlaneWrite:
        order = _order_of(pack_index, first, count, read, write.parts, places)
        fds = [placed.file.open() for placed in places]
        if read.http is None:
            fds.insert(0, read.fd)
        for placed in places:
            placed.is_held = True  # until it is certain that nobody writes there any more
        try:
            report = self.processes.carry_out(order, fds, self._timeout_s)
        except NotDone as error:
            if error.is_disk_slow:
                write.gate.note_slow()
            for placed in places:
                placed.is_held = not error.is_over
            raise
        for placed in places:
            placed.is_held = False
        if report.outcome == orders.DAMAGED and report.number < len(places):
            places[report.number].drop(report.why)
        if report.outcome == orders.SLOW:
            write.gate.note_slow()
        self._heed(report, pack_index, first, read.done)
        return PlaneWrite(report.received_bytes, write.commit(places))

    def _heed(
        self, report: FetchReport, pack_index: PackIndexVersion, first: int, done: Done
    ) -> None:
        """Counts what arrived. Raises: the error in the report."""
        key = keys.pack(pack_index.index.pack_id)
        if report.outcome == orders.DONE:
            done(report.received_bytes, report.seconds, None)
            self._breaker.answered()
            return
        if report.outcome == orders.WRONG:
            done(report.received_bytes, report.seconds, None)
            number = first + report.number
            raise WrongChunk(f"chunk {number} of {key}: {report.why}", number)
        if report.outcome == orders.CHANGED:
            done(0, report.seconds, Changed)
            raise Changed(f"{key} was rewritten")
        if report.outcome == orders.FAILED:
            done(0, report.seconds, Unavailable)
            self._breaker.failed()
        raise NotDone(report.why)


def _order_of(
    pack_index: PackIndexVersion,
    first: int,
    count: int,
    read: RangeOrder,
    parts: Sequence[WritePart],
    places: Sequence[Reservation],
) -> FetchTask:
    index, end = pack_index.index, first + count
    targets: list[WriteTarget] = []
    for file, (part, placed) in enumerate(zip(parts, places, strict=True)):
        numbers = iter(n - first for n in part.numbers)
        for run in placed.runs:
            targets += _targets(file, run.offset, [(next(numbers), c) for c in run.chunks])
    return FetchTask(
        read.http,
        read.offset,
        index.ids[first * ID_BYTES : end * ID_BYTES],
        index.stored_sizes[first:end].tobytes(),
        index.raw_sizes[first:end].tobytes(),
        index.codecs[first:end],
        tuple(targets),
        tuple(placed.file.length_bytes for placed in places),
    )


def _targets(file: int, offset: int, chunks: Sequence[tuple[int, Chunk]]) -> Iterator[WriteTarget]:
    """Yields the targets of consecutive chunks from an offset on: one for each run of consecutive
    numbers."""
    begin, end, at = chunks[0][0], chunks[0][0], offset
    for number, chunk in chunks:
        if number != end:
            yield WriteTarget(begin, end, file, at)
            begin, at = number, offset
        end = number + 1
        offset += chunk.size_bytes
    yield WriteTarget(begin, end, file, at)
