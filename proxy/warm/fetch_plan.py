"""What to fetch for many files: whole runs of each pack, in its order, whosever chunks they are.

Pure. A pack is read in units of about 8 MiB from its beginning to its end, as pull does
(chunkstore/repo/range_planner.py); what a unit brings goes to the flat files of large dataset files
and, for all small ones together, to a slab.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from lodefs.chunkstore.format.names import PackId, digest_of
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.format.tree import Entry, Segment
from lodefs.chunkstore.nodecache.layout import FLAT_SIZE_BYTES_MIN
from lodefs.chunkstore.nodecache.name_rows import content_id
from lodefs.chunkstore.repo import range_planner
from lodefs.proxy.cache.chunk_cache import Flat
from lodefs.proxy.fetch.cache_fill import Unit

Order = Callable[[Iterable[PackId]], list[PackId]]


class Wish:
    """A file that is wanted, and how many of its bytes are not here yet."""

    __slots__ = ("entry", "left_bytes", "path")

    def __init__(self, path: bytes, entry: Entry) -> None:
        self.path = path
        self.entry = entry
        self.left_bytes = entry.size_bytes


class Share(NamedTuple):
    """A segment of a wanted file, and where in the file it begins."""

    wish: Wish
    segment: Segment
    offset: int


class Errand(NamedTuple):
    """A unit to fetch, its raw bytes, and how many bytes of which files come with it."""

    unit: Unit
    size_bytes: int
    brings: list[tuple[Wish, int]]


def shuffled(seed: bytes) -> Order:
    """Packs in an order that depends on ``seed``: nodes that differ in it begin with different
    packs, and have something to give to each other at once."""
    return lambda packs: sorted(packs, key=lambda pack: digest_of(seed + pack))


def runs_by_pack(wishes: Iterable[Wish]) -> dict[PackId, list[range_planner.Wanted[Share]]]:
    """The runs of chunks that the files want, by pack."""
    wanted: dict[PackId, list[range_planner.Wanted[Share]]] = defaultdict(list)
    for wish in wishes:
        offset = 0
        for segment in wish.entry.segments:
            share = Share(wish, segment, offset)
            wanted[segment.pack].append(range_planner.Wanted(segment.first, segment.count, share))
            offset += segment.size_bytes
    return wanted


def errands(index: PackIndex, runs: Sequence[range_planner.Wanted[Share]]) -> list[Errand]:
    """The fetches that bring all runs of one pack, in its order.

    Corrupt where the pack does not hold what a file's segment says.
    """
    for run in runs:
        index.check_run(*run.what.segment[1:])
    return [_errand(index, found) for found in range_planner.units(index, runs)]


def _errand(index: PackIndex, found: range_planner.Unit[Share]) -> Errand:
    raw_offsets = index.raw_offsets
    brings = [
        (share.wish, raw_offsets[first + count] - raw_offsets[first])
        for first, count, share, _ in found.parts
    ]
    unit = Unit(index.pack_id, found.first, found.count, parts=_parts(index, found))
    return Errand(unit, raw_offsets[unit.end] - raw_offsets[unit.first], brings)


def _parts(index: PackIndex, found: range_planner.Unit[Share]) -> tuple[Unit, ...]:
    """Where the chunks of a unit belong; small files that lie together make one part."""
    parts: list[Unit] = []
    first = end = -1  # of small files that lie together
    for at, count, share, before in found.parts:
        entry = share.wish.entry
        if entry.size_bytes >= FLAT_SIZE_BYTES_MIN:
            flat = Flat(content_id(entry), entry.size_bytes)
            parts.append(Unit(index.pack_id, at, count, flat, share.offset + before))
        elif first <= at <= end:
            end = max(end, at + count)
        else:
            if first >= 0:
                parts.append(Unit(index.pack_id, first, end - first))
            first, end = at, at + count
    if first >= 0:
        parts.append(Unit(index.pack_id, first, end - first))
    return tuple(parts)
