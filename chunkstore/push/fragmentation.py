"""Decides which stored chunks of a file are stored again, since dedup must not fragment files.

The rule of Xet (xet-core, "fragmentation prevention"): if old chunks would leave a file in runs
shorter than about 8 chunks on average, the new bytes are stored again. Pure.

A place is a number; the next chunk in the same pack has the next number.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from lodefs.chunkstore.format.tree import Segment

RUN_CHUNKS_MIN = 8  # chunks in a run on average
UNKNOWN = -1  # the place of a chunk that the store does not have


class Run(NamedTuple):
    """Consecutive chunks: ``chunks`` of them from ``place`` on, with ``size_bytes`` together."""

    place: int
    chunks: int
    size_bytes: int

    @property
    def end(self) -> int:
        """The place after the last chunk."""
        return self.place + self.chunks


class Layout(NamedTuple):
    """The layout of a file so far, over all of its parts."""

    chunks: int = 0
    breaks: int = 0  # how often a chunk does not follow the one before it
    end: int = UNKNOWN  # the place after the last chunk


def chunks_to_store(
    places: Sequence[int], layout: Layout, fresh: int, breaks_free: int = 0
) -> list[bool]:
    """Decides which chunks of a file's next part to store: True if new, or stored again.

    ``places`` says where each chunk is, or UNKNOWN. ``fresh`` is the place of the first chunk that
    would be stored. At most one break for 8 chunks of the file remains: the shortest runs of old
    chunks go first. ``breaks_free`` more breaks are allowed. A part that is one run and follows the
    part before it is always reused.
    """
    wanted = [place == UNKNOWN for place in places]
    if not wanted or all(wanted):
        return wanted
    allowed = (layout.chunks + len(places)) // RUN_CHUNKS_MIN - layout.breaks + breaks_free
    while True:
        runs = _runs(places, wanted)
        if _breaks(places, wanted, layout, fresh) <= max(0, allowed):
            return wanted
        old = [(length, first) for first, length in runs if not wanted[first]]
        if not old:
            return wanted
        shortest = min(old)[0]
        for length, first in old:
            if length == shortest:
                wanted[first : first + length] = [True] * length


def longest_runs(options: Sequence[Collection[int]], layout: Layout) -> list[int]:
    """Chooses, among the places of each chunk in a file's next part, those that make the fewest
    runs. A chunk without a place gets UNKNOWN."""
    ahead: dict[int, int] = {}  # by place: how many chunks lie in a row from there
    lengths: list[dict[int, int]] = []
    for places in reversed(options):
        ahead = {place: 1 + ahead.get(place + 1, 0) for place in places}
        lengths.append(ahead)
    found: list[int] = []
    end = layout.end
    for known in reversed(lengths):
        place = end if end in known else max(known, key=known.__getitem__, default=UNKNOWN)
        found.append(place)
        end = UNKNOWN if place == UNKNOWN else place + 1
    return found


def place_all(
    places: Sequence[int], sizes: Sequence[int], wanted: Sequence[bool], fresh: int, layout: Layout
) -> tuple[list[Run], Layout]:
    """Returns the runs of a part whose wanted chunks are stored from ``fresh`` on, and the layout
    after it. ``sizes`` are those of the chunks in bytes."""
    if not places:
        return [], layout
    runs = _all_runs(places, sizes, wanted, fresh)
    joins = layout.end in (UNKNOWN, runs[0].place)
    breaks = layout.breaks + len(runs) - joins
    return runs, Layout(layout.chunks + len(places), breaks, runs[-1].end)


def join_runs(runs: list[Run], more: list[Run]) -> list[Run]:
    """Returns ``runs`` and then ``more``. The two that meet become one run if possible."""
    if runs and more and runs[-1].end == more[0].place:
        place, chunks, size_bytes = runs[-1]
        middle = Run(place, chunks + more[0].chunks, size_bytes + more[0].size_bytes)
        return [*runs[:-1], middle, *more[1:]]
    return [*runs, *more]


def join(segments: list[Segment]) -> tuple[Segment, ...]:
    """Joins segments that follow each other in one pack."""
    if len(segments) == 1:
        return (segments[0],)
    joined: list[Segment] = []
    for segment in segments:
        last = joined[-1] if joined else None
        if last and last.pack == segment.pack and last.first + last.count == segment.first:
            size_bytes = last.size_bytes + segment.size_bytes
            joined[-1] = Segment(last.pack, last.first, last.count + segment.count, size_bytes)
        else:
            joined.append(segment)
    return tuple(joined)


def _all_runs(
    places: Sequence[int], sizes: Sequence[int], wanted: Sequence[bool], fresh: int
) -> list[Run]:
    if all(wanted):
        return [Run(fresh, len(places), sum(sizes))]
    runs: list[Run] = []
    first = end = UNKNOWN
    size_bytes = 0
    for place, size, is_wanted in zip(places, sizes, wanted, strict=True):
        if is_wanted:
            place = fresh
            fresh += 1
        if place != end:
            if end != UNKNOWN:
                runs.append(Run(first, end - first, size_bytes))
            first, size_bytes = place, 0
        end = place + 1
        size_bytes += size
    runs.append(Run(first, end - first, size_bytes))
    return runs


def _runs(places: Sequence[int], wanted: Sequence[bool]) -> list[tuple[int, int]]:
    """Returns (first number, length) of each stretch that is all new, or all old and
    consecutive."""
    runs = []
    first = 0
    for n in range(1, len(places) + 1):
        if (
            n == len(places)
            or wanted[n] != wanted[n - 1]
            or (not wanted[n] and places[n] != places[n - 1] + 1)
        ):
            runs.append((first, n - first))
            first = n
    return runs


def _breaks(places: Sequence[int], wanted: Sequence[bool], layout: Layout, fresh: int) -> int:
    """Counts the chunks that would not follow the chunk before them."""
    breaks = 0
    end = layout.end
    for place, is_wanted in zip(places, wanted, strict=True):
        if is_wanted:
            place = fresh
            fresh += 1
        if end not in (UNKNOWN, place):
            breaks += 1
        end = place + 1
    return breaks
