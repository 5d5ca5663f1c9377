"""Chunks of files that are cut piece by piece, in parallel: what a piece gives, how pieces join.

FastCDC (Xia et al., USENIX ATC 2016) begins anew at every cut, so a cut depends only on where its
chunk starts and on at most ``size_bytes_max`` bytes from there. A window in the middle of a file
is therefore cut before its true first chunk is known: from the window's beginning, which is mostly
not a true cut. When the window before it is done, the true start is known; cutting again from
there soon gives a cut that is known already, and from that one on both agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.format.chunking import ChunkingParams, cut
from lodefs.chunkstore.push.workers.source_files import FileStat


class CutChunk(NamedTuple):
    """One chunk: its BLAKE3-256 and its length."""

    id: bytes
    raw_size_bytes: int


class CutFile(msgspec.Struct, frozen=True):
    """A whole file, or one part of a large one; the parts of one file come in order.

    A part with ``first`` begins the file: whatever came for the same token before is void (the
    file changed while it was read, and is read again). ``digest`` (BLAKE3 of the whole file) and
    ``stat`` (of what was really read) come with the ``last`` part; ``error`` stands in their place
    if the file could not be read, and then ``chunks`` is empty and ``last`` is set.
    """

    token: int
    chunks: list[CutChunk]
    first: bool
    last: bool
    digest: bytes | None = None
    stat: FileStat | None = None
    error: LodefsError | None = None

    @property
    def size_bytes(self) -> int | None:
        """Bytes of the whole file; known with the last part."""
        return None if self.stat is None else self.stat.size_bytes


class CutUnit(NamedTuple):
    """A batch that is decided and stored at once. Chunks are numbered through all its files."""

    files: list[CutFile]


class Joined(NamedTuple):
    """The true cuts of a window: ``fresh`` ends, then ``known[reused:]``."""

    fresh: list[int]
    reused: int


def join_window(
    window: memoryview,
    known: Sequence[int],
    start: int,
    params: ChunkingParams,
    *,
    final: bool,
) -> Joined:
    """The cuts of ``window`` from ``start`` on, when ``known`` are those from its beginning on.

    All are offsets in the window; ``known`` came from ``cut(window, final=final)``. The same
    as cutting ``window[start:]``, at the cost of a few chunks if the two meet soon.
    """
    after = {0: 0, **{end: number for number, end in enumerate(known, start=1)}}
    fresh: list[int] = []
    position, span = start, params.size_bytes_max + 1
    while position not in after:
        at_end = position + span >= len(window)
        piece = window[position : position + span]
        for end in cut(piece, params, final=final and at_end):
            fresh.append(position + end)
            if fresh[-1] in after:
                return Joined(fresh, after[fresh[-1]])
        if at_end:
            return Joined(fresh, len(known))
        position = fresh[-1]  # a span longer than the maximum holds at least one certain cut
        span *= 2
    return Joined(fresh, after[position])
