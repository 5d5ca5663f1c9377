"""The order of a push: which task is next, what comes of replies, when the sink is asked.

Workers finish in any order; the sink sees units in source order. No processes here: pool.py moves
the tasks.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

from lodefs.chunkstore.errors import LodefsError, SourceChanged
from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.format.names import ID_BYTES, digest_of
from lodefs.chunkstore.push.workers.shared_slots import Slot
from lodefs.chunkstore.push.workers.source_files import FileStat, show_path, source_error
from lodefs.chunkstore.push.workers.window_join import CutChunk, CutFile, CutUnit, join_window
from lodefs.chunkstore.push.workers.work_units import (
    Attempt,
    FilesUnit,
    LargeFile,
    Planner,
    Unit,
    WindowUnit,
)
from lodefs.chunkstore.push.workers.worker import CHANGED, Compress, Prepare, Prepared, Reply, Task
from lodefs.chunkstore.types import Buffer

_PLANNED_MAX = 64  # units planned ahead of the workers: at most some 30,000 small files

_VANISHED = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


class Sink(Protocol):
    """Decides which chunks have to be stored, and takes them. Called by one thread."""

    def wanted(self, unit: CutUnit) -> Sequence[bool] | bytes:
        """One flag for each chunk of ``unit``. Called in source order."""
        ...

    def store(self, unit: CutUnit, stored: Sequence[tuple[int, Buffer]]) -> None:
        """(codec, bytes) of each wanted chunk, in order. Called in source order, after ``wanted``
        of this unit and perhaps of some more. The buffers are valid during the call only."""
        ...


@dataclass(eq=False, slots=True)
class _Flight:
    """A unit on its way, and the slot that holds it."""

    unit: Unit
    slot: Slot
    prepared: Prepared | None = None
    cut: CutUnit | None = None
    places: list[tuple[int, int]] = field(default_factory=list)  # (offset, size) of the wanted
    stored: list[tuple[int, int]] | None = None  # (codec, size) of the wanted


class Pipeline:
    """The state of one run. ``next_task`` and ``done`` until there is nothing left to do."""

    def __init__(
        self, planner: Planner, slots: Sequence[Slot], params: ChunkingParams, sink: Sink
    ) -> None:
        self._planner = planner
        self._params = params
        self._sink = sink
        self._free = list(reversed(slots))
        self._planned: deque[Unit] = deque()  # that no worker has yet
        self._flights: dict[int, _Flight] = {}  # by slot number
        self._uncut: deque[_Flight] = deque()  # in source order, until the sink has decided
        self._unplaced: deque[_Flight] = deque()  # in source order, until the sink has them
        self._compress: deque[tuple[Slot, Compress]] = deque()

    def next_task(self, root: bytes, run: int) -> tuple[Slot, Task] | None:
        """What a worker can do now; None when all is done or under way, or no slot is free."""
        if self._compress:
            return self._compress.popleft()
        if not self._free:
            return None
        unit = self._planned.popleft() if self._planned else self._planner.next()
        if unit is None:
            return None
        slot = self._free.pop()
        flight = self._flights[slot.number] = _Flight(unit, slot)
        self._uncut.append(flight)
        return slot, Prepare(run, root, unit.reads)

    def plan_ahead(self) -> bool:
        """Plans one more unit, while the workers are busy; False if that is enough."""
        if len(self._planned) >= _PLANNED_MAX:
            return False
        unit = self._planner.next()
        if unit is None:
            return False
        self._planned.append(unit)
        return True

    def done(self, slot: Slot, reply: Reply) -> None:
        """Takes the reply to the task in ``slot``, and calls the sink if it is its turn."""
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
        """Asks the sink what is wanted of a unit."""
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
        """Gives a unit's wanted chunks to the sink, and frees its slot."""
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
    """(offset in the slot, size) of the wanted chunks of each file that has some."""
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
    """The files of a unit of whole files; what has to be read again goes to the planner."""
    files: list[CutFile] = []
    ids = prepared.ids
    at = 0
    for attempt, read in zip(unit.attempts, prepared.reads, strict=True):
        if read.problem or read.stat is None:
            files += _retry_or_fail(attempt, read.problem, read.stat, planner)
            continue
        chunks = []
        for size in read.sizes:
            chunks.append(CutChunk(ids[at : at + ID_BYTES], size))
            at += ID_BYTES
        digest = read.digest or chunks[0].id
        token = attempt.file.token
        files.append(CutFile(token, chunks, first=True, last=True, digest=digest, stat=read.stat))
    return files


def _retry_or_fail(
    attempt: Attempt, problem: int, stat: FileStat | None, planner: Planner
) -> list[CutFile]:
    """Nothing if the file is read once more; else its error."""
    if problem < 0 or problem in _VANISHED:
        again = attempt.again(problem, stat)
        if again is not None:
            planner.again(again)
            return []
    error = _error(attempt.file.path, problem)
    return [CutFile(attempt.file.token, [], first=True, last=True, error=error)]


def _error(path: bytes, problem: int) -> LodefsError:
    if problem < 0:
        return SourceChanged(
            f"{show_path(path)} changed while it was read, twice: push again when it is at rest"
        )
    return source_error(OSError(problem, os.strerror(problem)), path)


class _WindowJoiner:
    """Joins one prepared window to those before it."""

    def __init__(
        self, unit: WindowUnit, slot: Slot, params: ChunkingParams, planner: Planner
    ) -> None:
        self._large: LargeFile = unit.large
        self._read = unit.read
        self._slot = slot
        self._params = params
        self._planner = planner

    def join(self, prepared: Prepared) -> tuple[list[CutFile], int]:
        """The window's part of the file ([] if there is nothing to tell), and where in the
        slot its first chunk lies."""
        large, read = self._large, self._read
        got = prepared.reads[0]
        if large.given_up:
            return [], 0
        if got.problem or got.stat is None or (large.stat or got.stat) != got.stat:
            large.given_up = True
            problem = got.problem or CHANGED
            return _retry_or_fail(large.attempt, problem, got.stat, self._planner), 0
        large.stat = got.stat
        window_offset = read.offset - read.overlap
        start = large.start - window_offset
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
        )
        return [part], start

    def _chunks(self, prepared: Prepared, start: int) -> list[CutChunk]:
        read = self._read
        window = self._slot.data[: read.overlap + read.size_bytes]
        sizes, ids = prepared.reads[0].sizes, prepared.ids
        known = list(accumulate(sizes))
        joined = join_window(window, known, start, self._params, final=read.final)
        chunks = []
        for end in joined.fresh:
            chunks.append(CutChunk(digest_of(window[start:end]), end - start))
            start = end
        for number in range(joined.reused, len(sizes)):
            at = number * ID_BYTES
            chunks.append(CutChunk(ids[at : at + ID_BYTES], sizes[number]))
        return chunks
