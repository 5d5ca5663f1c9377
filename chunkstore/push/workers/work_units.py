"""Makes units of work of source files: runs of small files, and windows of large ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec
from blake3 import blake3

from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.push.workers.source_files import FileStat, SourceFile
from lodefs.chunkstore.push.workers.worker import RESIZED, Read

FILES_MAX = 512
PATHS_BYTES_MAX = 128 << 10  # for one unit; a path has at most 4095 bytes
_FILE_MESSAGE_BYTES = 256  # size of a file's message without its path
_CHUNK_MESSAGE_BYTES = 64
_RETRIES_MAX = 1


@dataclass(frozen=True, slots=True)
class UnitLimits:
    """The largest size of a unit, and what its slot needs for that."""

    params: ChunkingParams
    unit_bytes: int  # larger files are cut in windows of this size
    files_max: int = FILES_MAX

    @property
    def slot_data_bytes(self) -> int:
        return self.unit_bytes + self.params.size_bytes_max + 1

    @property
    def slot_messages_bytes(self) -> int:
        chunks = self.slot_data_bytes // self.params.size_bytes_min + self.files_max
        return (
            PATHS_BYTES_MAX + chunks * _CHUNK_MESSAGE_BYTES + self.files_max * _FILE_MESSAGE_BYTES
        )


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """A file to read, and how often reading it failed because it changed."""

    file: SourceFile
    retries: int = 0
    resized: bool = False

    def again(self, problem: int, stat: FileStat | None) -> Attempt | None:
        """Returns the next attempt, for the size that was seen; None after enough attempts.

        A file that differs from the scan has not necessarily changed while it was read.
        """
        file = self.file
        if file.stretch is not None:  # its readers have to see one file
            return None
        seen = file if stat is None else SourceFile(file.path, stat.size_bytes, file.token)
        if problem == RESIZED and not self.resized:
            return Attempt(seen, self.retries, resized=True)
        if self.retries < _RETRIES_MAX:
            return Attempt(seen, self.retries + 1, self.resized)
        return None


@dataclass(slots=True)
class LargeFile:
    """The state of a file in windows, up to the last joined window."""

    attempt: Attempt
    stat: FileStat | None = None
    start: int = 0  # offset of the first chunk of the next window
    hasher: blake3 = field(default_factory=blake3)
    is_over: bool = False  # no more windows are wanted
    # Of a stretch: where the first of its chunks begins, and ``start`` for the reader after it
    begin: int | None = None
    next_start: int = 0


@dataclass(frozen=True, slots=True)
class FilesUnit:
    """Whole files, one after the other."""

    attempts: list[Attempt]

    @property
    def reads(self) -> list[Read]:
        files = [attempt.file for attempt in self.attempts]
        return [Read(file.path, file.size_bytes, 0, file.size_bytes) for file in files]


@dataclass(frozen=True, slots=True)
class WindowUnit:
    """One window of a large file."""

    large: LargeFile
    read: Read

    @property
    def reads(self) -> list[Read]:
        return [self.read]


Unit = FilesUnit | WindowUnit


class Planner:
    """Makes units of ``files`` in their order."""

    def __init__(self, files: Iterable[SourceFile], limits: UnitLimits) -> None:
        self._files = iter(files)
        self._limits = limits
        self._first: deque[Attempt] = deque()  # these come before the rest of the files
        self._windows: Iterator[WindowUnit] = iter(())

    def again(self, attempt: Attempt) -> None:
        """Puts a file before all that is not planned yet."""
        self._first.appendleft(attempt)

    def next(self) -> Unit | None:
        """Returns the next unit; None if there is none until ``again`` is called."""
        window = next(self._windows, None)
        if window is not None:
            return window
        gathered: list[Attempt] = []
        size = paths = 0
        while (attempt := self._next_attempt()) is not None:
            size += attempt.file.read_bytes
            paths += len(attempt.file.path)
            full = size > self._limits.unit_bytes or paths > PATHS_BYTES_MAX
            if gathered and full:
                self.again(attempt)
                break
            if attempt.file.stretch or attempt.file.size_bytes > self._limits.unit_bytes:
                self._windows = self._split(attempt)
                return next(self._windows)
            gathered.append(attempt)
            if len(gathered) == self._limits.files_max:
                break
        return FilesUnit(gathered) if gathered else None

    def _next_attempt(self) -> Attempt | None:
        if self._first:
            return self._first.popleft()
        file = next(self._files, None)
        return None if file is None else Attempt(file)

    def _split(self, attempt: Attempt) -> Iterator[WindowUnit]:
        """Yields the windows of a file until it ends or no more are wanted. Those of a stretch go
        on behind its end: how far its last chunk reaches is not known yet."""
        large = LargeFile(attempt)
        file, most = attempt.file, self._limits.params.size_bytes_max
        begin, end = file.stretch or (0, file.size_bytes)
        large.start, large.next_start = max(0, begin - most), end - most
        step = self._limits.unit_bytes
        for first, last in ((begin, end), (end, file.size_bytes)):
            for offset in range(first, last, step):
                if large.is_over:
                    return
                size = min(step, last - offset)
                overlap = most if offset else 0
                yield WindowUnit(large, Read(file.path, file.size_bytes, offset, size, overlap))
