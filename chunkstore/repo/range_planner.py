"""Fetch units: plans which runs of chunks of one pack are read with one GET.

Pure. Pull, verify and the scan of trees use it: wanted chunks that lie close together are read
together, in reads of about 8 MiB, at which one connection to S3 reaches full speed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.format.pack import PackIndex

UNIT_STORED_BYTES_MAX = 8 << 20
UNIT_RAW_BYTES_MAX = 16 << 20  # bounds the memory of a unit whose chunks compress well
GAP_STORED_BYTES_MAX = 256 << 10  # reading this much in vain is cheaper than another GET

T = TypeVar("T")


class Wanted(NamedTuple, Generic[T]):
    """A run of chunks of one pack, and what the caller wants it for."""

    first: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    what: T


class Unit(NamedTuple, Generic[T]):
    """Chunks [first, first + count) of a pack to read at once, and the runs that they belong to.

    Each part lies wholly in the unit. It is (first, count, what, raw bytes of its run before it).
    """

    first: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    parts: list[tuple[int, int, T, int]]


def units(index: PackIndex, wanted: Iterable[Wanted[T]]) -> Iterator[Unit[T]]:
    """Yields the units that hold all wanted runs of one pack, in the order of the pack.

    Runs may overlap (files that share chunks): a chunk is in one unit only. A run that is longer
    than a unit is split; its parts say where in the run they start. Raises: Corrupt if the pack
    does not have such chunks.
    """
    ordered = sorted(wanted, key=lambda run: run[:2])
    chunks = len(index.offsets) - 1
    for run in ordered:
        if run.first < 0 or run.count < 1 or run.first + run.count > chunks:
            raise Corrupt(
                f"the pack has {chunks} chunks: {run.count} from number {run.first} are not in it"
            )
    position = 0
    waiting: list[Wanted[T]] = []  # runs that began in an earlier unit and have not ended
    for first, end in _spans(index, ordered):
        parts = []
        while position < len(ordered) and ordered[position].first < end:
            waiting.append(ordered[position])
            position += 1
        for run in waiting:
            start = max(first, run.first)
            stop = min(end, run.first + run.count)
            before = index.raw_offsets[start] - index.raw_offsets[run.first]
            parts.append((start, stop - start, run.what, before))
        waiting = [run for run in waiting if run.first + run.count > end]
        yield Unit(first, end - first, parts)


def _spans(index: PackIndex, ordered: Sequence[Wanted[T]]) -> Iterator[tuple[int, int]]:
    """Yields [first, end) of each unit for sorted runs."""
    if not ordered:
        return
    first, end = ordered[0].first, 0
    for run in ordered:
        if end and index.offsets[run.first] - index.offsets[end] > GAP_STORED_BYTES_MAX:
            yield from _cut(index, first, end)
            first, end = run.first, 0
        end = max(end, run.first + run.count)
    yield from _cut(index, first, end)


def _cut(index: PackIndex, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Splits [first, end) into pieces within both limits, of at least one chunk."""
    while first < end:
        stored = _fit(index.offsets, first, end, UNIT_STORED_BYTES_MAX)
        raw = _fit(index.raw_offsets, first, end, UNIT_RAW_BYTES_MAX)
        stop = max(first + 1, min(stored, raw))
        yield first, stop
        first = stop


def _fit(offsets: Sequence[int], first: int, end: int, size_bytes_max: int) -> int:
    """Returns the greatest ``stop`` up to ``end`` for which [first, stop) has at most
    ``size_bytes_max``."""
    return bisect_right(offsets, offsets[first] + size_bytes_max, first, end + 1) - 1
