"""Writes buffers one after the other to a file, through the page cache.

A write goes to the next multiple of 256 KiB of the file at most. The kernel allocates memory in
pieces as large as one write allows (large folios), and the largest free blocks are those unused for
longest. Virtual machines that return free memory to their host must fetch these first: a GiB took
up to 1.9 s in writes of 2 MiB, up to 1.0 s in writes of 1 MiB, and 0.2 s in writes of 256 KiB,
which take less if they are aligned (docs/decisions/0115-the-write.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from lodefs.chunkstore.types import Buffer

BATCH_SIZE_BYTES = 256 * 1024
BUFFERS_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)  # writev(2)


def write_at(fd: int, offset: int, buffers: Sequence[Buffer]) -> int:
    """Writes all buffers from ``offset`` on. Returns the bytes written. Raises: OSError."""
    at = offset
    for batch in _batches(buffers, offset):
        rest = batch
        while rest:  # more than once on an almost full disk, or after a signal
            done = os.pwritev(fd, rest, at)
            at += done
            rest = _rest(rest, done)
    return at - offset


def damage(fd: int, length_bytes: int) -> str:
    """Returns how somebody else damaged a file of at least ``length_bytes``, as far as its name and
    size show, or "". Raises: OSError.

    Bytes written after the end of a truncated file would leave zeros before them, which no reader
    could tell from data.
    """
    status = os.fstat(fd)
    if not status.st_nlink:
        return "it was removed"
    if status.st_size < length_bytes:
        return f"it was truncated to {status.st_size} bytes"
    return ""


def _batches(buffers: Sequence[Buffer], offset: int) -> Iterator[list[memoryview]]:
    """Yields the buffers, which are cut at the multiples of a batch in the file."""
    batch: list[memoryview] = []
    room = BATCH_SIZE_BYTES - offset % BATCH_SIZE_BYTES
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        while view:
            part, view = view[:room], view[room:]
            batch.append(part)
            room -= len(part)
            if not room or len(batch) == BUFFERS_MAX:
                yield batch
                batch, room = [], room or BATCH_SIZE_BYTES
    if batch:
        yield batch


def _rest(buffers: list[memoryview], done: int) -> list[memoryview]:
    for n, buffer in enumerate(buffers):
        if done < len(buffer):
            return [buffer[done:], *buffers[n + 1 :]]
        done -= len(buffer)
    return []
