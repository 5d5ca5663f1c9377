"""Ranges of dataset files, and the one way to their bytes: looked up in the cache, or fetched into
it once.

Bodies of GETs, places for mounts, chunks for other nodes, and trees are renderings of
``FileRanges.ensure``.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import NamedTuple, Protocol

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.tree import Segment
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.chunk_cache import Flat
from lodefs.proxy.cache.extents import Extents, PackExtents, Run
from lodefs.proxy.cache.reader import CacheReader
from lodefs.proxy.fetch.cache_fill import Unit
from lodefs.proxy.fetch.cache_write import CacheTarget, FetchResult, RawChunks
from lodefs.proxy.fetch.flight import Follower
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.fetch.single_flight import Fetcher

LOOKUP_CHUNKS_MAX = 256  # in one index lookup
TRIES = 2  # through the cache, before the reader is served without it
DIRECT_TRIES = 2  # without it: the pack may have been rewritten meanwhile

Place = tuple[CacheFile, int, int]  # cache file, offset, size


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


class Demand(Protocol):
    """A reader's choice of what is fetched if bytes are missing."""

    @property
    def follower(self) -> Follower | None:
        """The node that asks, if the reader is one: for it, the store is asked without waiting for
        peers."""

    def unit(self, position: ChunkPosition) -> Unit:
        """Returns the unit to fetch, with the chunk at the position."""

    def started(self) -> None:
        """Reads ahead: the bytes are in the cache, or on their way."""


class RangePart(NamedTuple):
    """The beginning of a range: its place in the cache, or its bytes, if the cache has not taken
    them, or not yet, or if they are in memory anyway. ``fetched`` is None if the cache had it
    before."""

    found: Place | bytes
    fetched: FetchResult | None


class FileRanges:
    """Ranges of files through one cache. For use on the event loop only."""

    def __init__(self, reads: CacheReader, fetcher: Fetcher, indexes: PackIndexes) -> None:
        self._reads = reads
        self._fetcher = fetcher
        self._indexes = indexes
        self._pack_extents = PackExtents()

    def known(self, file: DatasetFile, at: int, size_bytes: int = 1) -> Place | None:
        """Returns the place of the bytes from ``at`` on, as far as it is in memory;
        ``size_bytes`` of them are wanted."""
        found = file.extents.find(at)
        if found is not None and found[2] >= size_bytes:
            return found
        if self._learn(file, at if found is None else at + found[2]):
            found = file.extents.find(at)
        return found

    async def ensure(self, file: DatasetFile, wanted: range, end: int, demand: Demand) -> RangePart:
        """Returns the beginning of a range of a file, which is fetched if the cache lacks it; the
        file's bytes up to ``end`` are looked up with it. Raises: Corrupt; the errors of
        fetching."""
        fetched: FetchResult | None = None
        for fetch in (*[self._fetch] * TRIES, *[self._direct] * DIRECT_TRIES):
            place = self.known(file, wanted.start, len(wanted))
            if place is None:
                place = await self._lookup(file, wanted.start, end, demand)
            if place is not None:
                demand.started()
                return RangePart(place, fetched)
            position = await self._position(file, wanted.start, demand)
            position.pack_index.index.check_there(position.chunk, 1)
            fetched = await fetch(position, file, wanted, demand)
            if data := _joined(fetched.memory, position, wanted):
                return RangePart(data, fetched)
        raise position.not_kept()

    async def read(
        self, file: DatasetFile, wanted: range, end: int, demand: Demand
    ) -> tuple[bytes, RangePart]:
        """Does what ``ensure`` does, and returns the bytes as well."""
        fetched: FetchResult | None = None
        for _ in range(TRIES):
            part = await self.ensure(file, wanted, end, demand)
            fetched = part.fetched or fetched
            if isinstance(part.found, bytes):
                return part.found, part
            cached, offset, size_bytes = part.found
            data = await self._reads.read(cached, offset, min(size_bytes, len(wanted)))
            if data is not None:
                return data, RangePart(part.found, fetched)
            file.extents.clear()
        position = await self._position(file, wanted.start, demand)
        fetched = await self._direct(position, file, wanted, demand)
        data = _joined(fetched.memory, position, wanted)
        if not data:
            raise position.not_kept()
        return data, RangePart(data, fetched)

    async def position(
        self, file: DatasetFile, at: int, *, from_origin: bool = False
    ) -> ChunkPosition:
        """Returns the chunk with a byte. It needs only the index of that pack. Raises: Corrupt if
        the segments have fewer bytes, or if the sizes in their pack differ; the errors of loading
        an index."""
        n = file.segment_at(at)
        segment = file.segments[n]
        pack_index = await self._indexes.get(segment.pack, from_origin=from_origin)
        index = pack_index.index
        index.check_run(*segment[1:])
        shift = file.starts[n] - index.raw_offsets[segment.first]
        chunk = bisect_right(index.raw_offsets, at - shift) - 1
        start = shift + index.raw_offsets[chunk]
        return ChunkPosition(pack_index, chunk, start, segment.first, segment.first + segment.count)

    def ahead(self, pack_index: PackIndexVersion, unit: Unit) -> bool:
        """Starts to fetch a unit ahead of readers. Returns False if too much is under way."""
        flight = self._fetcher.ahead(pack_index, unit)
        if flight is not None:
            flight.task.add_done_callback(partial(self._landed, unit.pack))
        return flight is not None

    def _landed(self, pack: PackId, task: asyncio.Task[FetchResult]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._pack_extents.add(pack, task.result().extents)

    async def _position(self, file: DatasetFile, at: int, demand: Demand) -> ChunkPosition:
        return await self.position(file, at, from_origin=demand.follower is not None)

    async def _fetch(
        self, position: ChunkPosition, _file: DatasetFile, wanted: range, demand: Demand
    ) -> FetchResult:
        """Fetches the chunk at a position into the cache, with its unit."""
        pack_index, chunk, follower = position.pack_index, position.chunk, demand.follower
        flight = self._fetcher.join(position.pack, chunk, follower)
        if flight is None:
            unit, end = demand.unit(position), position.end_of(wanted.stop)
            flight = self._fetcher.demand(pack_index, unit, chunk, end)
        demand.started()
        least = position.end_of(wanted.start + follower.least_bytes) - 1 if follower else chunk
        result = await self._fetcher.result(pack_index, flight, chunk, follower, least)
        self._pack_extents.add(position.pack, result.extents)
        return result

    async def _direct(
        self, position: ChunkPosition, file: DatasetFile, wanted: range, demand: Demand
    ) -> FetchResult:
        """Fetches the chunks of a range into memory."""
        unit = unit_around(file, position, wanted.start, wanted.stop)
        unit = replace(unit, from_origin=demand.follower is not None)
        return await self._fetcher.direct(position.pack_index, unit)

    async def _lookup(self, file: DatasetFile, at: int, end: int, demand: Demand) -> Place | None:
        """Returns the place of the bytes from ``at`` on that the index has, and remembers those up
        to ``end``."""
        position = await self._position(file, at, demand)
        index, chunk = position.pack_index.index, position.chunk
        last = min(position.end_of(end), chunk + LOOKUP_CHUNKS_MAX)
        places = await self._reads.find(index, chunk, last - chunk)
        here = [(n, place) for n, place in enumerate(places, chunk) if place is not None]
        good = await self._reads.good([(place, index.chunk_id(n)) for n, place in here])
        offsets = index.raw_offsets
        runs = [Run(offsets[n], offsets[n + 1], file, at) for n, (file, at, _) in here[:good]]
        self._pack_extents.add(index.pack_id, runs)
        return self.known(file, at)

    def _learn(self, file: DatasetFile, at: int) -> bool:
        """Adds the known extent of a byte in its pack. Returns False if there is none."""
        if at >= file.starts[-1]:
            return False
        n = file.segment_at(at)
        segment, start = file.segments[n], file.starts[n]
        pack_index = self._indexes.in_memory(segment.pack)
        if pack_index is None or segment.first + segment.count > len(pack_index.index):
            return False
        raw_offsets = pack_index.index.raw_offsets
        first, end = raw_offsets[segment.first], raw_offsets[segment.first + segment.count]
        run = self._pack_extents.run(segment.pack, first + at - start)
        if run is None or end - first != segment.size_bytes:
            return False
        low, high = max(run.start, first), min(run.end, end)
        place = run.offset + low - run.start
        file.extents.add(start + low - first, high - low, run.file, place)
        return True


def unit_around(file: DatasetFile, position: ChunkPosition, first: int, end: int) -> Unit:
    """Returns the chunks of the bytes [first, end) around the position, as far as they are in its
    segment."""
    raw_offsets, shift = position.pack_index.index.raw_offsets, position.shift
    low = bisect_right(raw_offsets, max(first - shift, 0)) - 1
    low = min(max(low, position.segment_first), position.chunk)
    high = max(position.end_of(end), position.chunk + 1)
    flat = CacheTarget(position.segment_first, position.segment_end, file.flat, shift)
    return Unit(position.pack, low, high - low, (flat,) if file.flat else ())


def _joined(chunks: RawChunks, position: ChunkPosition, wanted: range) -> bytes:
    """Returns the wanted bytes of a file, as far as chunks are consecutive."""
    pieces: list[Buffer] = []
    chunk, start = position.chunk, position.start
    while start < wanted.stop and chunk < position.segment_end:
        raw = chunks.get(chunk)
        if raw is None:
            break
        pieces.append(memoryview(raw)[max(wanted.start - start, 0) : wanted.stop - start])
        start += len(raw)
        chunk += 1
    return b"".join(pieces)
