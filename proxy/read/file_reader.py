"""The read path: the bytes of dataset files, from the cache, or through it from the store."""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.format.tree import Segment
from lodefs.chunkstore.nodeapi.wire import Origin
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.cache.chunk_cache import Cache, Flat
from lodefs.proxy.cache.reader import CacheReader
from lodefs.proxy.fetch.cache_fill import Filled, RawChunks, Unit, cut_units
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.fetch.readahead_policy import (
    MIB,
    UNIT_SIZE_BYTES_MAX,
    Range,
    ReadAhead,
    Regions,
    SmallFiles,
)
from lodefs.proxy.fetch.single_flight import Fetcher
from lodefs.proxy.node import Extent
from lodefs.proxy.read.extents import Extents
from lodefs.proxy.runtime import origin
from lodefs.proxy.runtime.counters import Counter

log = logging.getLogger("lodefs.cache")

CONTENTS_MAX = 16 * 1024
SEGMENTS_MAX = 512 * 1024  # of all contents that are known; each takes 200 bytes
PIECE_SIZE_BYTES = MIB  # what a reader holds at once
SMALL_PIECE_SIZE_BYTES = 128 * 1024  # what each holds if there are many, who may all be slow
READERS_MANY = 64
LOCATE_CHUNKS_MAX = 256  # of one look at the index
TRIES = 2  # through the cache, before the reader is served past it
UNCACHED_S = 5.0  # after there was no space, units stay small so long
AHEAD_TASKS_MAX = 64


class DatasetFile:
    """What is known of one dataset file: where it lies in the store and in the cache."""

    __slots__ = ("ahead", "extents", "flat", "regions", "segments", "size_bytes", "starts")

    def __init__(self, name: bytes, size_bytes: int, segments: tuple[Segment, ...]) -> None:
        self.size_bytes = size_bytes
        self.segments = segments
        sizes = (segment.size_bytes for segment in segments)
        self.starts = list(accumulate(sizes, initial=0))  # of the segments; at last the end
        self.extents = Extents()
        big = size_bytes >= layout.FLAT_SIZE_BYTES_MIN
        self.flat = Flat(name, size_bytes) if big else None
        self.ahead = ReadAhead(size_bytes) if big else None
        self.regions = Regions(size_bytes) if big else None


class ChunkPosition(NamedTuple):
    """A place in a file as a chunk in a pack. ``start``: of the chunk, in the file; its segment
    has the chunks [segment_first, segment_end)."""

    loaded: PackIndexVersion
    chunk: int
    start: int
    segment_first: int
    segment_end: int

    @property
    def shift(self) -> int:
        """From a raw offset in the pack to an offset in the file."""
        return self.start - self.loaded.index.raw_offsets[self.chunk]


class FileReader:
    """Reads dataset files by content id. Used from the event loop alone."""

    def __init__(
        self,
        cache: Cache,
        reads: CacheReader,
        fetcher: Fetcher,
        indexes: PackIndexes,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._reads = reads
        self._fetcher = fetcher
        self._indexes = indexes
        self._meter = cache.meter
        self._clock_s = clock_s
        self._contents: OrderedDict[bytes, DatasetFile] = OrderedDict()
        self._segments = 0  # of all of them
        self._readers = 0
        self._small = SmallFiles()
        self._uncached_until_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        fetcher.on_landed = self._landed

    # --- hits

    def hit(self, name: bytes, first: int, size_bytes: int) -> Extent | None:
        """Where a range lies, if it lies together and that is known at once."""
        content = self._contents.get(name)
        found = content.extents.find(first) if content is not None else None
        if content is not None and found is not None and found[2] >= size_bytes:
            if content.ahead is not None and content.ahead.is_due(first + size_bytes):
                return None  # the way of reads that reads ahead
            file, offset, _ = found
        else:
            flat = self._cache.complete_flat(name)
            if flat is None or first + size_bytes > flat.size_bytes:
                return None
            file, offset = flat, first
        fd = file.fd
        if fd < 0:
            try:
                fd = file.open()
            except OSError:
                return None
        file.last_use_s = int(self._cache.now_s())
        self._meter.hit(size_bytes)
        return Extent(fd, offset, size_bytes)

    # --- reads

    def known(self, name: bytes) -> DatasetFile | None:
        """What is known of the file with a content id."""
        content = self._contents.get(name)
        if content is not None:
            self._contents.move_to_end(name)
        return content

    def content(self, name: bytes, size_bytes: int, segments: tuple[Segment, ...]) -> DatasetFile:
        """The same, learned now if it is nothing yet."""
        content = self.known(name)
        if content is None:
            content = DatasetFile(name, size_bytes, segments)
            self._contents[name] = content
            self._segments += len(segments)
            while len(self._contents) > CONTENTS_MAX or (
                self._segments > SEGMENTS_MAX and len(self._contents) > 1
            ):
                _, oldest = self._contents.popitem(last=False)
                self._segments -= len(oldest.segments)
            file = self._cache.complete_flat(name)
            if file is not None:
                content.extents.add(0, size_bytes, file, 0)
        return content

    async def read(
        self, content: DatasetFile, first: int, size_bytes: int
    ) -> AsyncGenerator[Buffer, None]:
        """The bytes [first, first + size_bytes) in pieces of at most 1 MiB. Errors of fetching."""
        self._readers += 1
        try:
            async with aclosing(self._read(content, first, size_bytes)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            self._readers -= 1

    async def _read(
        self, content: DatasetFile, first: int, size_bytes: int
    ) -> AsyncGenerator[Buffer, None]:
        at, end = first, first + size_bytes
        stepped = tries = 0
        ahead: tuple[Range | None, int] = (None, 0)
        while at < end:
            step_end = min(at + PIECE_SIZE_BYTES, end)
            if content.ahead is not None and step_end > stepped:
                ahead = content.ahead.advance(at, step_end, end)
                stepped = step_end
            found = content.extents.find(at)
            if found is None and not await self._locate(content, at, end):
                pieces = await self._bring(content, Range(at, step_end), ahead, tries)
                ahead = (None, ahead[1])
                tries += 1
                for piece in pieces:
                    yield piece
                    at += len(piece)
                    tries = 0
                continue
            if ahead[0] is not None:
                self._begin_ahead(content, ahead[0], ahead[1])
                ahead = (None, ahead[1])
            if found is None:
                continue
            file, offset, known_bytes = found
            many = self._readers > READERS_MANY
            size_max = SMALL_PIECE_SIZE_BYTES if many else PIECE_SIZE_BYTES
            data = await self._reads.read(file, offset, min(known_bytes, step_end - at, size_max))
            if data is None:
                content.extents.clear()
                continue
            if not tries:  # else it was just fetched
                self._meter.hit(len(data))
            yield data
            at += len(data)
            tries = 0

    # --- finding

    async def _locate(self, content: DatasetFile, at: int, end: int) -> bool:
        """Learns from the index where the chunks from ``at`` on lie; whether the first is here."""
        position = await self._position_of(content, at)
        index = position.loaded.index
        shift = position.shift
        last = min(
            bisect_right(index.raw_offsets, end - 1 - shift, position.chunk),
            position.segment_end,
            position.chunk + LOCATE_CHUNKS_MAX,
        )
        places = await self._reads.find(index, position.chunk, last - position.chunk)
        here = [(n, place) for n, place in enumerate(places, position.chunk) if place is not None]
        good = await self._reads.good([(place, index.chunk_id(n)) for n, place in here])
        for n, place in here[:good]:
            start = shift + index.raw_offsets[n]
            content.extents.add(start, place.size_bytes, place.file, place.offset)
        return content.extents.find(at) is not None

    async def _position_of(self, content: DatasetFile, at: int) -> ChunkPosition:
        """The chunk that holds a byte. Corrupt where the segments hold fewer bytes, or their pack
        holds others. The index of that one pack is needed, whatever lies before it."""
        if at >= content.starts[-1]:
            raise Corrupt(f"its segments hold {content.starts[-1]} bytes: {at} is beyond")
        n = bisect_right(content.starts, at) - 1
        segment = content.segments[n]
        loaded = await self._indexes.get(segment.pack)
        index = loaded.index
        index.check_run(*segment[1:])
        shift = content.starts[n] - index.raw_offsets[segment.first]
        chunk = bisect_right(index.raw_offsets, at - shift) - 1
        start = shift + index.raw_offsets[chunk]
        return ChunkPosition(loaded, chunk, start, segment.first, segment.first + segment.count)

    # --- fetching

    async def _bring(
        self, content: DatasetFile, step: Range, ahead: tuple[Range | None, int], tries: int
    ) -> list[Buffer]:
        """Has the chunk at the beginning of a step brought to the cache, and what the policy wants
        with it. Gives bytes from there on where they found no space, or do not stay."""
        self._meter.add(Counter.MISSES)
        position = await self._position_of(content, step.first)
        if tries >= TRIES:
            kept = await self._fetcher.direct(position.loaded, self._unit(content, position, step))
            origin.note(Origin.STORE)
            return _pieces(kept, position, step)
        flight = self._fetcher.join(position.loaded.index.pack_id, position.chunk)
        if flight is None:
            unit = self._wanted(content, position, step, ahead[1])
            flight = self._fetcher.demand(position.loaded, unit, position.chunk)
        if ahead[0] is not None:
            self._begin_ahead(content, ahead[0], ahead[1])
        flight = await self._fetcher.arrived(position.loaded, flight, position.chunk)
        kept = await flight.wait()
        if flight.origin is not None:
            origin.note(flight.origin)
        if kept:
            self._uncached_until_s = self._clock_s() + UNCACHED_S
        return _pieces(kept, position, step)

    def _wanted(
        self, content: DatasetFile, position: ChunkPosition, step: Range, unit_bytes: int
    ) -> Unit:
        if self._clock_s() < self._uncached_until_s:
            return self._unit(content, position, step)
        if content.regions is None:
            return self._small_unit(content, position, step)
        if unit_bytes:
            end = min(max(step.end, step.first + unit_bytes), content.size_bytes)
            return self._unit(content, position, Range(step.first, end))
        return self._unit(content, position, content.regions.miss(*step))

    def _unit(self, content: DatasetFile, position: ChunkPosition, wanted: Range) -> Unit:
        """The chunks of a range around the spot, as far as they lie in its segment."""
        raw_offsets, shift = position.loaded.index.raw_offsets, position.shift
        first = bisect_right(raw_offsets, max(wanted.first - shift, 0)) - 1
        first = min(max(first, position.segment_first), position.chunk)
        end = bisect_right(raw_offsets, wanted.end - 1 - shift)
        end = max(min(end, position.segment_end), position.chunk + 1)
        pack = position.loaded.index.pack_id
        return Unit(pack, first, end - first, content.flat, shift + raw_offsets[first])

    def _small_unit(self, content: DatasetFile, position: ChunkPosition, step: Range) -> Unit:
        """Chunks around a small file's, whosever they are."""
        index = position.loaded.index
        window, whole = self._small.miss(index.pack_id, self._clock_s())
        own = self._unit(content, position, step)
        if whole:
            self._begin_pack(position.loaded, own.first)
        low = index.raw_offsets[own.first] - window // 4
        first = bisect_right(index.raw_offsets, max(low, 0)) - 1
        end = bisect_right(index.raw_offsets, max(low, 0) + window) - 1
        first, end = min(first, own.first), max(min(end, len(index)), own.first + own.count)
        return Unit(index.pack_id, first, end - first)

    def _landed(self, filled: Filled) -> None:
        """Learns where bytes lie that have just come, so that they are hits at once."""
        for file, offset, size_bytes in filled.runs:
            content = self._contents.get(file.content)
            if content is not None:
                content.extents.add(offset, size_bytes, file, offset)

    def _begin_ahead(self, content: DatasetFile, wanted: Range, unit_bytes: int) -> None:
        if len(self._tasks) >= AHEAD_TASKS_MAX or self._clock_s() < self._uncached_until_s:
            self._refuse(content, wanted.first)
            return
        task = asyncio.create_task(self._bring_ahead(content, wanted, unit_bytes))
        self._tasks.add(task)
        task.add_done_callback(self._ahead_ended)

    def _ahead_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("reading ahead stopped: %s", error)

    async def _bring_ahead(self, content: DatasetFile, wanted: Range, unit_bytes: int) -> None:
        at = wanted.first
        while at < wanted.end:
            position = await self._position_of(content, at)
            whole = self._ahead_unit(content, position, Range(at, wanted.end), unit_bytes)
            for unit in cut_units(whole, position.loaded, unit_bytes or UNIT_SIZE_BYTES_MAX):
                if not self._fetcher.ahead(position.loaded, unit):
                    self._refuse(content, unit.offset)
                    return
            raw_offsets = position.loaded.index.raw_offsets
            at = whole.offset + raw_offsets[whole.first + whole.count] - raw_offsets[whole.first]
        if content.ahead is not None:
            content.ahead.extended(wanted.end, at)

    def _ahead_unit(
        self, content: DatasetFile, position: ChunkPosition, wanted: Range, unit_bytes: int
    ) -> Unit:
        """What of a range lies in the spot's segment, and the rest of that where it is little."""
        unit = self._unit(content, position, wanted)
        raw_offsets = position.loaded.index.raw_offsets
        rest = raw_offsets[position.segment_end] - raw_offsets[unit.first + unit.count]
        if rest < min(unit_bytes, UNIT_SIZE_BYTES_MAX):
            unit = replace(unit, count=position.segment_end - unit.first)
        return unit

    def _refuse(self, content: DatasetFile, at: int) -> None:
        if content.ahead is not None:
            content.ahead.refused(at)

    def _begin_pack(self, loaded: PackIndexVersion, first: int) -> None:
        """Begins with the rest of a pack, and what stands before the chunk ``first`` after it."""
        whole = Unit(loaded.index.pack_id, 0, len(loaded.index))
        units = cut_units(whole, loaded, UNIT_SIZE_BYTES_MAX)
        for unit in sorted(units, key=lambda unit: unit.first + unit.count <= first):
            if not self._fetcher.ahead(loaded, unit):
                return

    async def close(self) -> None:
        """Stops reading ahead."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _pieces(kept: RawChunks, position: ChunkPosition, step: Range) -> list[Buffer]:
    """The bytes of a step from its beginning on, as far as its chunks were kept in memory."""
    pieces: list[Buffer] = []
    chunk, start = position.chunk, position.start
    while (
        start < step.end and chunk < position.segment_end and (raw := kept.get(chunk)) is not None
    ):
        pieces.append(memoryview(raw)[max(step.first - start, 0) : step.end - start])
        start += len(raw)
        chunk += 1
    return pieces
