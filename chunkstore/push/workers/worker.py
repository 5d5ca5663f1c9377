"""Reads, cuts and hashes files into a slot, and compresses their chunks in it.

Tasks and their replies are plain messages. Between two tasks a worker keeps only the open root
directory, so any worker can do any task. Slots are memory that a push shares with its workers.
Fresh pages slow a fast push down most, so a slot keeps its pages from one unit of work to the next.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import msgspec

from lodefs.chunkstore.format.chunking import ChunkingParams, cut
from lodefs.chunkstore.format.compression import RAW, RawStreak, compress
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.push.remote.remote_files import is_url
from lodefs.chunkstore.push.workers.source_files import (
    FileStat,
    ReadCondition,
    Source,
    is_hole,
    read_data,
    read_full,
    stat_of,
)

CHANGED = -1  # something wrote to the file while it was read
RESIZED = -2  # the file does not have the planned size: plan it again with the size that was seen
NO_ACCESS = -3  # the source refuses all requests: the push ends
NO_SOURCE = -4  # the source does not answer, or not rightly: the push ends


class Read(msgspec.Struct, array_like=True, frozen=True):
    """A read of a file, or of its window from ``offset`` on and ``overlap`` bytes before that."""

    path: bytes
    file_size_bytes: int
    offset: int
    size_bytes: int
    overlap: int = 0

    @property
    def whole(self) -> bool:
        return self.size_bytes == self.file_size_bytes

    @property
    def final(self) -> bool:
        return self.offset + self.size_bytes == self.file_size_bytes


class Prepare(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """A task: read, cut and hash files, one after the other. A new ``run`` opens ``root`` anew."""

    run: int
    root: bytes
    reads: list[Read]


class Compress(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """A task: compress chunks in place. There is one list of (offset, size) for each file."""

    files: list[list[tuple[int, int]]]


class PreparedRead(msgspec.Struct, array_like=True, frozen=True):
    """The result of a read, or its problem: CHANGED, RESIZED, NO_ACCESS, NO_SOURCE, or an errno.
    ``reason`` is the problem in words, if the source has given them.

    ``sizes`` are those of the chunks that are certain, from the beginning of the overlap on.
    ``digest`` is set for a whole file that does not have exactly one chunk.
    """

    stat: FileStat | None
    sizes: list[int] = []
    digest: bytes | None = None
    problem: int = 0
    reason: str = ""
    condition: ReadCondition | None = None  # in which the same bytes can be read again


class Prepared(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """The reply to Prepare. ``ids`` joins those of all chunks of all reads. Failed reads take no
    room."""

    reads: list[PreparedRead]
    ids: bytes


class Compressed(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """The reply to Compress: (codec, size) of each chunk, which lies where the raw chunk lay."""

    stored: list[tuple[int, int]]


Task = Prepare | Compress
Reply = Prepared | Compressed


class Outcome(NamedTuple):
    """The state in which a file was read if that succeeded, otherwise the state if it is known, and
    the problem, as in PreparedRead. ``is_hole``: all that was read is zeros."""

    stat: FileStat | None
    problem: int = 0
    reason: str = ""
    condition: ReadCondition | None = None
    is_hole: bool = False


class Reads(Protocol):
    """Reads the files of one source."""

    def begin(self, reads: Sequence[Read]) -> None:
        """Announces the reads that follow, in their order."""
        ...

    def read_into(self, read: Read, room: memoryview) -> Outcome:
        """Puts what was read at the beginning of ``room``."""
        ...

    def close(self) -> None:
        """Frees the source."""
        ...


class LocalReads:
    """Implements Reads for a directory. Raises: NotFound or Denied if it cannot be opened."""

    def __init__(self, root: bytes) -> None:
        self._source = Source(root)

    def begin(self, reads: Sequence[Read]) -> None:
        """Implements Reads: the disk reads ahead by itself."""

    def read_into(self, read: Read, room: memoryview) -> Outcome:
        return _read_into(self._source, read, room)

    def close(self) -> None:
        self._source.close()


def open_reads(root: bytes) -> Reads:
    """Opens a directory, or the source that a URL names."""
    if not is_url(root):
        return LocalReads(root)
    from lodefs.chunkstore.push.workers.remote_reads import RemoteReads

    return RemoteReads(root)


class Worker:
    """Runs the tasks in this process."""

    def __init__(self, params: ChunkingParams) -> None:
        self._params = params
        self._source: Reads | None = None
        self._run = -1
        # The last hole that was cut, by its size and whether it ended its file
        self._hole: dict[tuple[int, bool], tuple[list[int], list[bytes]]] = {}

    def perform(self, slot: Slot, task: Task) -> Reply:
        if isinstance(task, Compress):
            return Compressed([stored for file in task.files for stored in _compress(slot, file)])
        return self._prepare(slot, task)

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def _prepare(self, slot: Slot, task: Prepare) -> Prepared:
        source = self._source_of(task)
        reads: list[PreparedRead] = []
        ids: list[bytes] = []
        position = 0
        source.begin(task.reads)
        for read in task.reads:
            room = slot.data[position:]
            outcome = source.read_into(read, room)
            stat = outcome.stat
            if stat is None or outcome.problem:
                failed = PreparedRead(stat, problem=outcome.problem, reason=outcome.reason)
                reads.append(failed)
                continue
            size = read.overlap + (stat.size_bytes if read.whole else read.size_bytes)
            cut_read = self._cut_hole if outcome.is_hole else self._cut
            sizes, digest = cut_read(read, room[:size], ids)
            reads.append(PreparedRead(stat, sizes, digest, condition=outcome.condition))
            position += size
        return Prepared(reads, b"".join(ids))

    def _cut(
        self, read: Read, data: memoryview, ids: list[bytes]
    ) -> tuple[list[int], bytes | None]:
        """Cuts ``data`` into chunks and appends their ids to ``ids``. Returns their sizes, and the
        digest of a whole file that does not have exactly one chunk."""
        if read.whole and len(data) <= self._params.size_bytes_min:
            ids.extend([digest_of(data)] if data else [])
            sizes = [len(data)] if data else []
        else:
            ends = [0, *cut(data, self._params, final=read.final)]
            sizes = [end - start for start, end in pairwise(ends)]
            ids.extend([digest_of(data[start:end]) for start, end in pairwise(ends)])
        return sizes, digest_of(data) if read.whole and len(sizes) != 1 else None

    def _cut_hole(
        self, read: Read, data: memoryview, ids: list[bytes]
    ) -> tuple[list[int], bytes | None]:
        """Does the same for a window of zeros, which is cut like the last one of its size."""
        key = len(data), read.final
        if key not in self._hole:
            found: list[bytes] = []
            self._hole = {key: (self._cut(read, data, found)[0], found)}
        sizes, found = self._hole[key]
        ids.extend(found)
        return sizes, None

    def _source_of(self, task: Prepare) -> Reads:
        if self._source is None or self._run != task.run:
            self.close()
            self._source = open_reads(task.root)
            self._run = task.run
        return self._source


def _read_into(source: Source, read: Read, room: memoryview) -> Outcome:
    try:
        fd = source.open(read.path)
    except OSError as error:
        return Outcome(None, error.errno or errno.EIO)
    try:
        stat = stat_of(fd)
        wrong_size = stat.size_bytes != read.file_size_bytes
        size = read.overlap + (stat.size_bytes if read.whole else read.size_bytes)
        if (wrong_size and not read.whole) or size >= len(room):
            return Outcome(stat, RESIZED)
        probe = 1 if read.final else 0
        start = read.offset - read.overlap
        is_zeros = not read.whole and is_hole(fd, start, size)
        if is_zeros:  # not what the file has meanwhile: the ids are those of zeros
            room[:size] = bytes(size)
            got = size
        else:
            read_from = read_full if read.whole else read_data
            got = read_from(fd, room[: size + probe], start, size)
        if got != size or stat_of(fd) != stat:
            return Outcome(stat, CHANGED)
        return Outcome(stat, is_hole=is_zeros)
    except OSError as error:
        return Outcome(None, error.errno or errno.EIO)
    finally:
        os.close(fd)


def _compress(slot: Slot, chunks: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Compresses the chunks of one file in place."""
    compress_next = compress if len(chunks) == 1 else RawStreak().compress
    for offset, size in chunks:
        codec, stored = compress_next(slot.data[offset : offset + size])
        if codec != RAW:
            slot.data[offset : offset + len(stored)] = stored
        yield codec, len(stored)


_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Slot:
    """Room for the bytes of one unit of work (``data``) and for messages about it."""

    number: int
    data: memoryview
    _messages: memoryview

    def write_message(self, message: bytes) -> None:
        """Leaves ``message`` for the other side. Raises: ValueError if it is too large."""
        end = _LENGTH_BYTES + len(message)
        if end > len(self._messages):
            raise ValueError(f"a message of {len(message)} bytes does not fit into the slot")
        self._messages[:_LENGTH_BYTES] = len(message).to_bytes(_LENGTH_BYTES, "little")
        self._messages[_LENGTH_BYTES:end] = message

    def read_message(self) -> memoryview:
        """Returns the message of the other side; valid until the next message is written."""
        size = int.from_bytes(self._messages[:_LENGTH_BYTES], "little")
        return self._messages[_LENGTH_BYTES : _LENGTH_BYTES + size]


class SharedSlots:
    """``count`` slots in one anonymous mapping that forked processes share."""

    def __init__(self, count: int, data_bytes: int, messages_bytes: int) -> None:
        data_bytes = _whole_pages(data_bytes)
        step = data_bytes + _whole_pages(messages_bytes + _LENGTH_BYTES)
        self._map = mmap.mmap(-1, count * step)
        self._view = memoryview(self._map)
        self.slots: list[Slot] = []
        for number in range(count):
            room = self._view[number * step : (number + 1) * step]
            self.slots.append(Slot(number, room[:data_bytes], room[data_bytes:]))

    def close(self) -> None:
        """Frees the memory, or has the last view free it if there are views."""
        self.slots.clear()
        self._view.release()
        with contextlib.suppress(BufferError):
            self._map.close()


def _whole_pages(size_bytes: int) -> int:
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
