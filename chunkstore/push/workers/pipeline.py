"""The order of a push: chooses the next task, handles replies, and decides when to call the sink.

Workers finish in any order; the sink sees units in source order. pool.py moves the tasks between
processes. A unit fits into one slot: it is a run of small files, or a window of a large one, so
that several workers can work on one file at once (window_join.py).
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, Protocol

import msgspec

from lodefs.chunkstore.errors import Denied, LodefsError, SourceChanged, Unavailable
from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.format.names import ID_BYTES, digest_of
from lodefs.chunkstore.push.workers.source_files import (
    FileStat,
    ReadCondition,
    Stretch,
    show_path,
    source_error,
)
from lodefs.chunkstore.push.workers.window_join import Joined, join_window, kept_chunks
from lodefs.chunkstore.push.workers.work_units import (
    Attempt,
    FilesUnit,
    LargeFile,
    Planner,
    Unit,
    WindowUnit,
)
from lodefs.chunkstore.push.workers.worker import (
    CHANGED,
    NO_ACCESS,
    NO_SOURCE,
    Compress,
    Prepare,
    Prepared,
    PreparedRead,
    Reply,
    Slot,
    Task,
)
from lodefs.chunkstore.system.rate import Rate
from lodefs.chunkstore.types import Buffer

_PLANNED_MAX = 64  # units planned ahead of the workers: at most some 30,000 small files

_VANISHED = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


class Sink(Protocol):
    """Decides which chunks must be stored, and takes them. One thread calls it."""

    def wanted(self, unit: CutUnit) -> Sequence[bool] | bytes:
        """Returns one flag for each chunk of ``unit``. Called in source order."""
        ...

    def store(self, unit: CutUnit, stored: Sequence[tuple[int, Buffer]]) -> None:
        """Takes (codec, bytes) of each wanted chunk, in order. Called in source order, after
        ``wanted`` for this unit and perhaps for later ones. The buffers are valid only during the
        call."""
        ...


@dataclass(eq=False, slots=True)
class _Flight:
    """A unit under way, and its slot."""

    unit: Unit
    slot: Slot
    prepared: Prepared | None = None
    cut: CutUnit | None = None
    # (offset, size) of the wanted chunks
    places: list[tuple[int, int]] = field(default_factory=list)
    stored: list[tuple[int, int]] | None = None  # (codec, size) of the wanted chunks


class Pipeline:
    """The state of one run. Call ``next_task`` and ``done`` until nothing is left to do."""

    def __init__(
        self,
        planner: Planner,
        slots: Sequence[Slot],
        params: ChunkingParams,
        sink: Sink,
        rate: Rate | None = None,
    ) -> None:
        self._planner = planner
        self._params = params
        self._sink = sink
        self._rate = rate or Rate(None)
        self._free = list(reversed(slots))
        self._planned: deque[Unit] = deque()  # units that no worker has yet
        self._flights: dict[int, _Flight] = {}  # by slot number
        self._uncut: deque[_Flight] = deque()  # in source order, until the sink has decided
        self._unplaced: deque[_Flight] = deque()  # in source order, until the sink has them
        self._compress: deque[tuple[Slot, Compress]] = deque()

    def next_task(self, root: bytes, run: int) -> tuple[Slot, Task] | None:
        """Returns the next task and its slot; None if all tasks are done or under way, or no slot
        is free. It waits until the rate allows a read."""
        if self._compress:
            return self._compress.popleft()
        if not self._free:
            return None
        unit = self._next_unit()
        if unit is None:
            return None
        slot = self._free.pop()
        flight = self._flights[slot.number] = _Flight(unit, slot)
        self._uncut.append(flight)
        reads = unit.reads
        self._rate.take(sum(read.size_bytes for read in reads))
        return slot, Prepare(run, root, reads)

    def _next_unit(self) -> Unit | None:
        """Returns the next unit, but no window that nobody wants any more; None if there is
        none."""
        while unit := self._planned.popleft() if self._planned else self._planner.next():
            if isinstance(unit, FilesUnit) or not unit.large.is_over:
                return unit
        return None

    def plan_ahead(self) -> bool:
        """Plans one more unit while the workers are busy. Returns False if enough are planned."""
        if len(self._planned) >= _PLANNED_MAX:
            return False
        unit = self._planner.next()
        if unit is None:
            return False
        self._planned.append(unit)
        return True

    def done(self, slot: Slot, reply: Reply) -> None:
        """Takes the reply to the task in ``slot``, and calls the sink for units whose turn it
        is."""
        flight = self._flights[slot.number]
        if isinstance(reply, Prepared):
            flight.prepared = reply
        else:
            flight.stored = reply.stored
        while self._uncut and self._uncut[0].prepared is not None:
            self._decide(self._uncut.popleft())
        while self._unplaced and self._unplaced[0].stored is not None:
            self._place(self._unplaced.popleft())

    def _decide(self, flight: _Flight) -> None:
        """Asks the sink which chunks of a unit it wants."""
        assert flight.prepared is not None
        if isinstance(flight.unit, WindowUnit):
            joiner = _WindowJoiner(flight.unit, flight.slot, self._params, self._planner)
            files, position = joiner.join(flight.prepared)
        else:
            files, position = _cut_files(flight.unit, flight.prepared, self._planner), 0
        self._unplaced.append(flight)
        if not files:
            flight.stored = []
            return
        flight.cut = CutUnit(files)
        groups = _wanted_places(files, self._sink.wanted(flight.cut), position)
        flight.places = [place for group in groups for place in group]
        if groups:
            self._compress.append((flight.slot, Compress(groups)))
        else:
            flight.stored = []

    def _place(self, flight: _Flight) -> None:
        """Passes a unit's wanted chunks to the sink, and frees its slot."""
        assert flight.stored is not None
        if flight.cut is not None:
            data = flight.slot.data
            stored = [
                (codec, data[offset : offset + size])
                for (offset, _), (codec, size) in zip(flight.places, flight.stored, strict=True)
            ]
            self._sink.store(flight.cut, stored)
            for _, view in stored:
                view.release()
        del self._flights[flight.slot.number]
        self._free.append(flight.slot)


def _wanted_places(
    files: list[CutFile], flags: Sequence[bool] | bytes, position: int
) -> list[list[tuple[int, int]]]:
    """Returns (offset in the slot, size) of the wanted chunks of each file that has any."""
    groups = []
    number = 0
    for file in files:
        group = []
        for chunk in file.chunks:
            if flags[number]:
                group.append((position, chunk.raw_size_bytes))
            number += 1
            position += chunk.raw_size_bytes
        if group:
            groups.append(group)
    return groups


def _cut_files(unit: FilesUnit, prepared: Prepared, planner: Planner) -> list[CutFile]:
    """Returns the files of a unit of whole files. Files to read again go to the planner."""
    files: list[CutFile] = []
    ids = prepared.ids
    at = 0
    for attempt, read in zip(unit.attempts, prepared.reads, strict=True):
        if read.problem or read.stat is None:
            files += _retry_or_fail(attempt, read, read.problem, planner)
            continue
        chunks = []
        for size in read.sizes:
            chunks.append(CutChunk(ids[at : at + ID_BYTES], size))
            at += ID_BYTES
        digest = read.digest or chunks[0].id
        file, stat = attempt.file, read.stat
        origin = FileOrigin.of(file.path, stat, read.condition, 0)
        files.append(
            CutFile(
                file.token, chunks, first=True, last=True, digest=digest, stat=stat, origin=origin
            )
        )
    return files


def _retry_or_fail(
    attempt: Attempt, read: PreparedRead, problem: int, planner: Planner
) -> list[CutFile]:
    """Returns nothing if the file is read once more, otherwise its error. Raises: Denied or
    Unavailable if no file of the source can be read."""
    if problem in (NO_ACCESS, NO_SOURCE):
        raise read_error(attempt.file.path, problem, read.reason)
    if problem < 0 or problem in _VANISHED:
        again = attempt.again(problem, read.stat)
        if again is not None:
            planner.again(again)
            return []
    error = read_error(attempt.file.path, problem, read.reason)
    return [CutFile(attempt.file.token, [], first=True, last=True, error=error)]


def read_error(path: bytes, problem: int, reason: str) -> LodefsError:
    """Returns the error for the problem of a read (worker.py)."""
    if problem == NO_ACCESS:
        return Denied(reason)
    if problem == NO_SOURCE:
        return Unavailable(reason)
    if problem < 0:
        return SourceChanged(
            f"{show_path(path)} changed twice while it was read: push again once it is at rest"
        )
    return source_error(OSError(problem, reason or os.strerror(problem)), path)


class _WindowJoiner:
    """Joins prepared windows to those before them."""

    def __init__(
        self, unit: WindowUnit, slot: Slot, params: ChunkingParams, planner: Planner
    ) -> None:
        self._large: LargeFile = unit.large
        self._read = unit.read
        self._slot = slot
        self._params = params
        self._planner = planner

    def join(self, prepared: Prepared) -> tuple[list[CutFile], int]:
        """Returns the window's part of the file ([] if there is nothing to report), and the offset
        in the slot of its first chunk."""
        large, read = self._large, self._read
        got = prepared.reads[0]
        if large.is_over:
            return [], 0
        if got.problem or got.stat is None or (large.stat or got.stat) != got.stat:
            large.is_over = True
            problem = got.problem or CHANGED
            return _retry_or_fail(large.attempt, got, problem, self._planner), 0
        large.stat = got.stat
        if (stretch := large.attempt.file.stretch) is not None:
            return self._join_stretch(stretch, prepared)
        window_offset = read.offset - read.overlap
        begin = large.start
        start = begin - window_offset
        chunks = self._chunks(prepared, start)
        large.start += sum(chunk.raw_size_bytes for chunk in chunks)
        window = self._slot.data[read.overlap : read.overlap + read.size_bytes]
        large.hasher.update(window)
        part = CutFile(
            large.attempt.file.token,
            chunks,
            first=read.offset == 0,
            last=read.final,
            digest=large.hasher.digest() if read.final else None,
            stat=got.stat if read.final else None,
            origin=FileOrigin.of(large.attempt.file.path, got.stat, got.condition, begin),
        )
        return [part], start

    def _join_stretch(self, stretch: Stretch, prepared: Prepared) -> tuple[list[CutFile], int]:
        """Does what ``join`` does, for one stretch of a file. ``digest`` is that of its chunks
        alone."""
        large, read, got = self._large, self._read, prepared.reads[0]
        assert got.stat is not None
        window_offset = read.offset - read.overlap
        chunks = self._chunks(prepared, large.start - window_offset)
        sizes = (chunk.raw_size_bytes for chunk in chunks)
        bounds = list(accumulate(sizes, initial=large.start))
        large.start = bounds[-1]
        others = self._next_bounds(prepared) if read.offset >= stretch.end else ()
        first, stop, large.is_over = kept_chunks(stretch, bounds, others, final=read.final)
        if first == stop and not large.is_over:
            return [], 0
        is_first = large.begin is None
        begin = large.begin = bounds[first] if large.begin is None else large.begin
        start = bounds[first] - window_offset
        large.hasher.update(self._slot.data[start : bounds[stop] - window_offset])
        part = CutFile(
            large.attempt.file.token,
            chunks[first:stop],
            first=is_first,
            last=large.is_over,
            digest=large.hasher.digest() if large.is_over else None,
            stat=got.stat if large.is_over else None,
            origin=FileOrigin.of(large.attempt.file.path, got.stat, got.condition, bounds[first]),
            stretch=Stretch(begin, bounds[stop]),
        )
        return [part], start

    def _next_bounds(self, prepared: Prepared) -> set[int]:
        """Returns where the chunks of this window begin and end for the next reader."""
        large, read = self._large, self._read
        window_offset = read.offset - read.overlap
        known, joined = self._joined(prepared, large.next_start - window_offset)
        ends = [window_offset + end for end in (*joined.fresh, *known[joined.reused :])]
        bounds = {large.next_start, *ends}
        large.next_start = max(bounds)
        return bounds

    def _joined(self, prepared: Prepared, start: int) -> tuple[list[int], Joined]:
        """Returns the cuts of the window as it was prepared, and how they join those before it."""
        read = self._read
        window = self._slot.data[: read.overlap + read.size_bytes]
        known = list(accumulate(prepared.reads[0].sizes))
        return known, join_window(window, known, start, self._params, final=read.final)

    def _chunks(self, prepared: Prepared, start: int) -> list[CutChunk]:
        window = self._slot.data
        sizes, ids = prepared.reads[0].sizes, prepared.ids
        _, joined = self._joined(prepared, start)
        chunks = []
        for end in joined.fresh:
            chunks.append(CutChunk(digest_of(window[start:end]), end - start))
            start = end
        for number in range(joined.reused, len(sizes)):
            at = number * ID_BYTES
            chunks.append(CutChunk(ids[at : at + ID_BYTES], sizes[number]))
        return chunks


class CutChunk(NamedTuple):
    """One chunk: its BLAKE3-256 id and its length."""

    id: bytes
    raw_size_bytes: int


class FileOrigin(NamedTuple):
    """Where the bytes of chunks can be read again: from ``offset`` on in the file at ``path``, in
    that state."""

    path: bytes
    size_bytes: int
    condition: ReadCondition
    offset: int

    @classmethod
    def of(
        cls, path: bytes, stat: FileStat, condition: ReadCondition | None, offset: int
    ) -> FileOrigin | None:
        """Returns the origin; None if there is no condition."""
        return None if condition is None else cls(path, stat.size_bytes, condition, offset)


class CutFile(msgspec.Struct, frozen=True):
    """A whole file, or one part of a large file; the parts of a file come in order.

    A part with ``first`` begins the file and cancels earlier parts with the same token: the file
    changed while it was read, and is read again. The ``last`` part has the ``digest`` (BLAKE3 of
    the whole file) and the ``stat`` of what was read. If the file could not be read, it has the
    ``error`` instead, and no ``chunks``. ``origin`` is where the first of the chunks begins, if the
    source tells in which state they can be read again. ``stretch`` is set if the chunks so far are
    not to be the whole file, and ``digest`` is then that of these alone.
    """

    token: int
    chunks: list[CutChunk]
    first: bool
    last: bool
    digest: bytes | None = None
    stat: FileStat | None = None
    error: LodefsError | None = None
    origin: FileOrigin | None = None
    stretch: Stretch | None = None

    @property
    def size_bytes(self) -> int | None:
        """The bytes of all chunks of the file; known with the last part."""
        if self.stretch is not None:
            return self.stretch.end - self.stretch.begin
        return None if self.stat is None else self.stat.size_bytes


class CutUnit(NamedTuple):
    """A batch that is decided and stored at once. Chunks are numbered across its files."""

    files: list[CutFile]
