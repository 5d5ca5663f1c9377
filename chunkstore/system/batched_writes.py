"""Writes buffers one after the other to a file, through the page cache.

It writes at most a MiB at once. The kernel allocates memory in pieces as large as one write allows
(large folios), and the largest free blocks are those unused for longest. Virtual machines that
return free memory to their host must fetch these first: a GiB took up to 2.4 s in writes of 8 MiB,
and 0.2 s in writes of 1 MiB (docs/decisions/0020-written-by-the-mib.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from lodefs.chunkstore.types import Buffer

BATCH_SIZE_BYTES = 1 << 20
BUFFERS_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)  # writev(2)


def write_at(fd: int, offset: int, buffers: Sequence[Buffer]) -> int:
    """Writes all buffers from ``offset`` on. Returns the bytes written. Raises: OSError."""
    at = offset
    for batch in _batches(buffers):
        rest = batch
        while rest:  # more than once on an almost full disk, or after a signal
            done = os.pwritev(fd, rest, at)
            at += done
            rest = _rest(rest, done)
    return at - offset


def _batches(buffers: Sequence[Buffer]) -> Iterator[list[memoryview]]:
    """Yields the buffers; those larger than a batch are cut."""
    batch: list[memoryview] = []
    size_bytes = 0
    for buffer in buffers:
        for part in _parts(buffer):
            if size_bytes + len(part) > BATCH_SIZE_BYTES or len(batch) == BUFFERS_MAX:
                yield batch
                batch, size_bytes = [], 0
            batch.append(part)
            size_bytes += len(part)
    if batch:
        yield batch


def _parts(buffer: Buffer) -> list[memoryview]:
    view = memoryview(buffer).cast("B")
    return [view[n : n + BATCH_SIZE_BYTES] for n in range(0, len(view), BATCH_SIZE_BYTES)]


def _rest(buffers: list[memoryview], done: int) -> list[memoryview]:
    for n, buffer in enumerate(buffers):
        if done < len(buffer):
            return [buffer[done:], *buffers[n + 1 :]]
        done -= len(buffer)
    return []
