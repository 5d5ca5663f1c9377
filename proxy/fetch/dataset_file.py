"""A dataset file, as far as its place in the store and in the cache is known."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.tree import Segment
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.proxy.cache.chunk_cache import Flat
from lodefs.proxy.cache.extents import Extents
from lodefs.proxy.fetch.cache_fill import Unit
from lodefs.proxy.fetch.cache_write import CacheTarget
from lodefs.proxy.fetch.pack_indexes import PackIndexes


class DatasetFile:
    """The segments of a file, and its extents in the cache. ``flat`` is None if its chunks go to
    slabs. Any run of chunks of a pack is a file, too, of one segment."""

    __slots__ = ("extents", "flat", "segments", "starts")

    def __init__(self, segments: tuple[Segment, ...], flat: Flat | None = None) -> None:
        self.segments = segments
        self.flat = flat
        sizes = (segment.size_bytes for segment in segments)
        # Offsets of the segments, and then the end
        self.starts = list(accumulate(sizes, initial=0))
        self.extents = Extents()

    def segment_at(self, at: int) -> int:
        """Returns the number of the segment with a byte. Raises: Corrupt."""
        if at >= self.starts[-1]:
            raise Corrupt(f"its segments hold {self.starts[-1]} bytes: {at} is beyond")
        return bisect_right(self.starts, at) - 1

    def segments_ending(self, after: int, end: int) -> range:
        """Returns the numbers of the segments that end after a byte, and not after another."""
        first, last = (max(bisect_right(self.starts, at) - 1, 0) for at in (after, end))
        return range(first, last)


class ChunkPosition(NamedTuple):
    """A chunk in a pack, for a place in a file. ``start`` is the chunk's offset in the file. Its
    segment has the chunks [segment_first, segment_end)."""

    pack_index: PackIndexVersion
    chunk: int
    start: int
    segment_first: int
    segment_end: int

    @property
    def pack(self) -> PackId:
        return self.pack_index.index.pack_id

    @property
    def shift(self) -> int:
        """From a raw offset in the pack to an offset in the file."""
        return self.start - self.pack_index.index.raw_offsets[self.chunk]

    def not_kept(self) -> Corrupt:
        """Returns the error for a chunk that is neither in the store nor in the cache for long."""
        return Corrupt(f"chunk {self.chunk} of pack {self.pack.hex()} is not kept")

    def end_of(self, end: int) -> int:
        """Returns the end of the chunks of the segment with bytes of the file before ``end``."""
        raw_offsets = self.pack_index.index.raw_offsets
        return min(bisect_right(raw_offsets, end - 1 - self.shift), self.segment_end)


async def position_of(
    indexes: PackIndexes, file: DatasetFile, at: int, *, from_origin: bool = False
) -> ChunkPosition:
    """Returns the chunk with a byte. It needs only the index of that pack. Raises: Corrupt if the
    segments have fewer bytes, or if the sizes in their pack differ; the errors of loading an
    index."""
    n = file.segment_at(at)
    segment = file.segments[n]
    pack_index = await indexes.get(segment.pack, from_origin=from_origin)
    index = pack_index.index
    index.check_run(*segment[1:])
    shift = file.starts[n] - index.raw_offsets[segment.first]
    chunk = bisect_right(index.raw_offsets, at - shift) - 1
    start = shift + index.raw_offsets[chunk]
    return ChunkPosition(pack_index, chunk, start, segment.first, segment.first + segment.count)


def unit_around(file: DatasetFile, position: ChunkPosition, first: int, end: int) -> Unit:
    """Returns the chunks of the bytes [first, end) around the position, as far as they are in its
    segment."""
    raw_offsets, shift = position.pack_index.index.raw_offsets, position.shift
    low = bisect_right(raw_offsets, max(first - shift, 0)) - 1
    low = min(max(low, position.segment_first), position.chunk)
    high = max(position.end_of(end), position.chunk + 1)
    flat = CacheTarget(position.segment_first, position.segment_end, file.flat, shift)
    return Unit(position.pack, low, high - low, (flat,) if file.flat else ())
