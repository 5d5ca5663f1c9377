"""One dataset file for reads: its segments, their places in it, and its read-ahead."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.format.tree import Segment
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.proxy.cache.chunk_cache import Flat
from lodefs.proxy.cache.extents import Extents
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.read.readahead_policy import RandomReadWindow, ReadAhead


class DatasetFile:
    """The location of one dataset file in the store and in the cache, as far as it is known."""

    __slots__ = ("ahead", "extents", "flat", "regions", "segments", "size_bytes", "starts")

    def __init__(self, content_id: bytes, size_bytes: int, segments: tuple[Segment, ...]) -> None:
        self.size_bytes = size_bytes
        self.segments = segments
        sizes = (segment.size_bytes for segment in segments)
        # Offsets of the segments, and then the end
        self.starts = list(accumulate(sizes, initial=0))
        self.extents = Extents()
        big = size_bytes >= layout.FLAT_SIZE_BYTES_MIN
        self.flat = Flat(content_id, size_bytes) if big else None
        self.ahead = ReadAhead(size_bytes) if big else None
        self.regions = RandomReadWindow(size_bytes) if big else None

    def segment_at(self, at: int) -> int:
        """Returns the number of the segment with a byte. Raises: Corrupt."""
        if at >= self.starts[-1]:
            raise Corrupt(f"its segments hold {self.starts[-1]} bytes: {at} is beyond")
        return bisect_right(self.starts, at) - 1


class ChunkPosition(NamedTuple):
    """A chunk in a pack, for a place in a file. ``start`` is the chunk's offset in the file. Its
    segment has the chunks [segment_first, segment_end)."""

    pack_index: PackIndexVersion
    chunk: int
    start: int
    segment_first: int
    segment_end: int

    @property
    def shift(self) -> int:
        """From a raw offset in the pack to an offset in the file."""
        return self.start - self.pack_index.index.raw_offsets[self.chunk]


async def position_of(indexes: PackIndexes, known: DatasetFile, at: int) -> ChunkPosition:
    """Returns the chunk with a byte. It needs only the index of that pack. Raises: Corrupt if the
    segments have fewer bytes, or if the sizes in their pack differ; the errors of loading an
    index."""
    n = known.segment_at(at)
    segment = known.segments[n]
    pack_index = await indexes.get(segment.pack)
    index = pack_index.index
    index.check_run(*segment[1:])
    shift = known.starts[n] - index.raw_offsets[segment.first]
    chunk = bisect_right(index.raw_offsets, at - shift) - 1
    start = shift + index.raw_offsets[chunk]
    return ChunkPosition(pack_index, chunk, start, segment.first, segment.first + segment.count)
