"""Plans the fetches for many files: whole runs of each pack, in its order, across files.

Pure. A pack is read in units of about 8 MiB from its beginning to its end, as pull does
(chunkstore/repo/range_planner.py). The chunks of a unit go to the flat files of large dataset files
and, for all small ones together, to a slab.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lodefs.chunkstore.format.names import PackId, digest_of
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.format.tree import Segment, TreeEntry
from lodefs.chunkstore.nodecache.layout import FLAT_SIZE_BYTES_MIN
from lodefs.chunkstore.nodecache.name_rows import content_id
from lodefs.chunkstore.repo import range_planner
from lodefs.proxy.cache.chunk_cache import Flat
from lodefs.proxy.fetch.cache_fill import Unit
from lodefs.proxy.fetch.cache_write import CacheTarget

Order = Callable[[Iterable[PackId]], list[PackId]]


@dataclass(slots=True, eq=False)
class PendingFile:
    """A wanted file, and how many of its bytes are not cached yet."""

    path: bytes
    entry: TreeEntry
    left_bytes: int


class WantedSegment(NamedTuple):
    """A segment of a wanted file, and its offset in the file."""

    file: PendingFile
    segment: Segment
    offset: int


class PlannedFetch(NamedTuple):
    """A unit to fetch, its raw bytes, and how many bytes of which files it contains."""

    unit: Unit
    size_bytes: int
    gains: list[tuple[PendingFile, int]]


def shuffled(seed: bytes) -> Order:
    """Returns an order of packs that depends on ``seed``: nodes with different seeds begin with
    different packs, and can exchange them at once."""
    return lambda packs: sorted(packs, key=lambda pack: digest_of(seed + pack))


def segments_by_pack(
    files: Iterable[PendingFile],
) -> dict[PackId, list[range_planner.Wanted[WantedSegment]]]:
    runs: dict[PackId, list[range_planner.Wanted[WantedSegment]]] = defaultdict(list)
    for file in files:
        offset = 0
        for segment in file.entry.segments:
            wanted = WantedSegment(file, segment, offset)
            runs[segment.pack].append(range_planner.Wanted(segment.first, segment.count, wanted))
            offset += segment.size_bytes
    return runs


def plan_fetches(
    index: PackIndex, runs: Sequence[range_planner.Wanted[WantedSegment]]
) -> list[PlannedFetch]:
    """Returns the fetches for all runs of one pack, in its order. Raises: Corrupt if the pack does
    not have what a file's segment says."""
    for run in runs:
        index.check_run(*run.what.segment[1:])
    return [_planned(index, found) for found in range_planner.units(index, runs)]


def _planned(index: PackIndex, found: range_planner.Unit[WantedSegment]) -> PlannedFetch:
    gains = [
        (wanted.file, index.raw_size(first, first + count))
        for first, count, wanted, _ in found.parts
    ]
    unit = Unit(index.pack_id, found.first, found.count, _destinations(index, found))
    return PlannedFetch(unit, index.raw_size(unit.first, unit.end), gains)


def _destinations(
    index: PackIndex, found: range_planner.Unit[WantedSegment]
) -> tuple[CacheTarget, ...]:
    """Returns where the chunks of a unit go; small files that lie together share a destination."""
    destinations: list[CacheTarget] = []
    first = end = -1  # of small files that lie together
    for at, count, wanted, before in found.parts:
        entry = wanted.file.entry
        if entry.size_bytes >= FLAT_SIZE_BYTES_MIN:
            flat = Flat(content_id(entry), entry.size_bytes)
            shift = wanted.offset + before - index.raw_offsets[at]
            destinations.append(CacheTarget(at, at + count, flat, shift))
        elif first <= at <= end:
            end = max(end, at + count)
        else:
            if first >= 0:
                destinations.append(CacheTarget(first, end))
            first, end = at, at + count
    if first >= 0:
        destinations.append(CacheTarget(first, end))
    return tuple(destinations)
