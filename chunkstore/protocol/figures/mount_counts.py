"""The counters of a mount's processes, in a file that all of them share and others may read.

The file lies in a directory beside the proxy's socket (figure_files). Its head of HEAD_BYTES has
the magic, sizes and a MessagePack map that describes the mount. Then come ROWS rows of ROW_WORDS
counters of 8 bytes. Each row belongs to one process at a time, so that each counter has one writer.
A process that replaces another continues its row. The last ROWS bytes of the head are 1 for each
row that was ever used: a byte each, since processes that start at once write there at once.
"""

from __future__ import annotations

import array
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import UnknownFormat
from lodefs.chunkstore.format.decoding import msgpack_decoder
from lodefs.chunkstore.protocol.figures.figure_files import living

ENDING = ".mount"
VERSION = 2
MAGIC = b"lodefsMC"
HEAD_BYTES = 8192
ROWS = 64
ROW_WORDS = 64
FILE_BYTES = HEAD_BYTES + 8 * ROWS * ROW_WORDS
_HEAD = struct.Struct("=8sIIII")  # magic, version, rows, words of a row, info's size
_FORM = _HEAD.pack(MAGIC, VERSION, ROWS, ROW_WORDS, 0)[:-4]
_USED_OFFSET = HEAD_BYTES - ROWS


class Operation(IntEnum):
    """A request of the kernel. Each has three words: count, nanoseconds, errors."""

    LOOKUP = 0
    GETATTR = 1
    OPEN = 2
    READ = 3
    RELEASE = 4
    LIST = 5
    OTHER = 6

    @property
    def label(self) -> str:
        """The name to show."""
        return self.name.lower()


class Column(IntEnum):
    """A word of a row. Times are in nanoseconds."""

    OPERATIONS = 0  # three for each Operation
    DIRECT_READS = 24  # from the cache's files, without the proxy
    DIRECT_BYTES = 25
    CACHE_READS = 26  # through the proxy, which had them in its cache
    CACHE_BYTES = 27
    PEERS_READS = 28
    PEERS_BYTES = 29
    STORE_READS = 30
    STORE_BYTES = 31
    AHEAD_BYTES = 32  # put into the page cache before they were asked for
    STORE_WAIT = 33
    PEERS_WAIT = 34
    PROXY_WAIT = 35
    DISK_WAIT = 36
    WAITING = 37  # requests that wait now: a gauge
    KERNEL_OPENS = 38  # opens of files that the kernel reads by itself
    KERNEL_OPENED_BYTES = 39
    WORKER_RESTARTS = 40
    RESENDS = 41


class MountDescription(msgspec.Struct, frozen=True):
    """A description of a mount, in the head of its file."""

    mountpoint: bytes
    repo: str
    commit: str
    version: str
    started_s: float  # Unix time


class Wait(msgspec.Struct, frozen=True):
    """Seconds that requests took, by what they waited for, summed over requests. ``fuse_s`` is the
    rest: processor time of the mount."""

    store_s: float
    peers_s: float
    proxy_s: float
    cache_disk_s: float
    fuse_s: float


class MountCounts(msgspec.Struct, frozen=True):
    """The counters of one mount since it was made, and its user."""

    description: MountDescription
    uid: int
    words: tuple[int, ...]  # by Column

    def __getitem__(self, column: Column) -> int:
        return self.words[column]

    def requests(self, operation: Operation) -> tuple[int, float, int]:
        """Returns how many requests of a kind ended, their total seconds, and how many failed."""
        count, spent_ns, errors = self.words[3 * operation : 3 * operation + 3]
        return count, spent_ns / 1e9, errors

    @property
    def waiting(self) -> Wait:
        """Returns how the time of all finished requests was spent."""
        words = self.words
        spent_ns = sum(words[3 * operation + 1] for operation in Operation)
        known = (Column.STORE_WAIT, Column.PEERS_WAIT, Column.PROXY_WAIT, Column.DISK_WAIT)
        waits_ns = [words[column] for column in known]
        rest_ns = max(spent_ns - sum(waits_ns), 0)
        return Wait(*(one / 1e9 for one in (*waits_ns, rest_ns)))


def encode_head(description: MountDescription) -> bytes:
    """Returns the head of a new file, with no row in use."""
    info = msgspec.msgpack.encode(description)
    head = _HEAD.pack(MAGIC, VERSION, ROWS, ROW_WORDS, len(info)) + info
    return head.ljust(HEAD_BYTES, b"\0")


def is_known(head: memoryview) -> bool:
    """Whether a file has the format of this module."""
    return bytes(head[: len(_FORM)]) == _FORM


def rows_in_use(head: memoryview) -> int:
    """Returns how many rows of a file must be read: up to the last one that was ever used."""
    return bytes(head[_USED_OFFSET:HEAD_BYTES]).rfind(1) + 1


def use_row(head: memoryview, row: int) -> None:
    """Marks a row as used."""
    head[_USED_OFFSET + row] = 1


def decode(data: bytes, uid: int = 0) -> MountCounts:
    """Returns the counters in a file's bytes. Unused rows may be missing. Raises: UnknownFormat."""
    try:
        magic, version, rows, width, info_bytes = _HEAD.unpack_from(data)
        if (magic, version, rows, width) != (MAGIC, VERSION, ROWS, ROW_WORDS):
            raise UnknownFormat(
                f"not counters of a mount that this lodefs knows (version {version})"
            )
        info = data[_HEAD.size : min(_HEAD.size + info_bytes, _USED_OFFSET)]
        description = msgpack_decoder(MountDescription).decode(info)
    except (struct.error, ValueError, RecursionError) as error:
        raise UnknownFormat(f"not counters of a mount: {error}") from error
    words = array.array("Q")
    used = rows_in_use(memoryview(data))
    body = data[HEAD_BYTES : HEAD_BYTES + 8 * ROW_WORDS * used]
    words.frombytes(body[: len(body) // 8 * 8])
    sums = tuple(sum(words[column::ROW_WORDS]) & ((1 << 64) - 1) for column in range(ROW_WORDS))
    return MountCounts(description, uid, sums)


def read_all(*directories: Path, sweep: bool = False) -> Iterator[MountCounts]:
    """Yields the counters of all living mounts that have files in directories, as far as they can
    be read. ``sweep`` removes the files of mounts that have ended, if the user may."""
    for file in (file for one in directories for file in living(one, ENDING, sweep=sweep)):
        with suppress(OSError, UnknownFormat):
            head = os.pread(file.fd, HEAD_BYTES, 0)
            used = rows_in_use(memoryview(head.ljust(HEAD_BYTES, b"\0")))
            rows = os.pread(file.fd, 8 * ROW_WORDS * used, HEAD_BYTES)
            yield decode(head + rows, file.uid)
