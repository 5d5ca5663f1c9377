"""Joins windows of a file that were cut apart: the cuts are those of one reader.

FastCDC (Xia et al., USENIX ATC 2016) begins anew at every cut, so a cut depends only on where its
chunk starts and on at most ``size_bytes_max`` bytes from there. So a window in the middle of a file
is cut before its true first chunk is known. The cutting starts at the window's beginning, which is
usually not a true cut. When the window before it is done, the true start is known. Cutting again
from there soon reaches a cut that is known already, and from there on both agree (``join_window``).

The readers of two stretches of a file know nothing of each other. Each starts before its stretch as
above, and takes the chunks that begin in it. At its end it also cuts as the next reader does, and
goes on until both agree (``kept_chunks``). The next reader's chunks before that place are dropped
when the stretches are put together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Sequence
from typing import NamedTuple

from lodefs.chunkstore.format.chunking import ChunkingParams, cut
from lodefs.chunkstore.push.workers.source_files import Stretch


class Joined(NamedTuple):
    """The true cuts of a window: ``fresh`` ends, then ``known[reused:]``."""

    fresh: list[int]
    reused: int


def join_window(
    window: memoryview, known: Sequence[int], start: int, params: ChunkingParams, *, final: bool
) -> Joined:
    """Returns the cuts of ``window`` from ``start`` on, given ``known``, the cuts from its
    beginning.

    All are offsets in the window; ``known`` came from ``cut(window, final=final)``. The result
    equals cutting ``window[start:]``, but costs only a few chunks if the two meet soon.
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
        position = fresh[-1]  # a span longer than the maximum has at least one certain cut
        span *= 2
    return Joined(fresh, after[position])


class Kept(NamedTuple):
    """The chunks of a window that a reader of a stretch takes, from the number ``first`` to before
    ``stop``, and whether they are its last ones."""

    first: int
    stop: int
    is_over: bool


def kept_chunks(
    stretch: Stretch, bounds: Sequence[int], others: Container[int], *, final: bool
) -> Kept:
    """Returns which chunks of a window its reader takes. ``bounds`` are the offsets in the file
    where they begin, and the end of the last one; ``others`` are those of the next reader."""
    stop = len(bounds) - 1
    first = min(bisect_left(bounds, stretch.begin), stop)
    for number in range(bisect_left(bounds, stretch.end), stop + 1):
        if bounds[number] in others:
            return Kept(min(first, number), number, is_over=True)
    return Kept(first, stop, is_over=final)
