"""Schedules read-ahead: the unit that a read waits for, and what to fetch ahead of it."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from lodefs.chunkstore.format.tree import Segment
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.proxy.cache.chunk_cache import Flat
from lodefs.proxy.cache.prefetch_accuracy import PrefetchAccuracy
from lodefs.proxy.fetch.cache_fill import Unit, cut_units, part_of
from lodefs.proxy.fetch.chunk_reader import UNIT_SIZE_BYTES as PEER_UNIT_SIZE_BYTES
from lodefs.proxy.fetch.file_ranges import ChunkPosition, DatasetFile, FileRanges, unit_around
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.read.readahead_policy import (
    UNIT_SIZE_BYTES_MAX,
    RandomReadWindow,
    Range,
    ReadAhead,
    SmallFiles,
)
from lodefs.proxy.read.refault_tracker import RefaultTracker

log = logging.getLogger("lodefs.cache")

PAUSE_S = 5.0  # after the cache had no space: small units, no read-ahead
TASKS_MAX = 64  # of read-ahead; and of announcements, which may wait for another node
ANNOUNCING_MAX = 8  # requests at once


class ReadFile(DatasetFile):
    """A dataset file that is read, with what its read-ahead knows of large ones."""

    __slots__ = ("ahead", "regions", "size_bytes")

    def __init__(self, content_id: bytes, size_bytes: int, segments: tuple[Segment, ...]) -> None:
        is_large = size_bytes >= layout.FLAT_SIZE_BYTES_MIN
        super().__init__(segments, Flat(content_id, size_bytes) if is_large else None)
        self.size_bytes = size_bytes
        self.ahead = ReadAhead(size_bytes) if is_large else None
        self.regions = RandomReadWindow(size_bytes) if is_large else None


class ReadaheadScheduler:
    """Chooses the units of reads, and starts those that nobody waits for yet. For use on the event
    loop only."""

    def __init__(
        self,
        ranges: FileRanges,
        indexes: PackIndexes,
        accuracy: PrefetchAccuracy,
        *,
        clock_s: Callable[[], float],
    ) -> None:
        self._ranges = ranges
        self._indexes = indexes
        self._clock_s = clock_s
        self._accuracy = accuracy
        self._small = SmallFiles()
        self._refetches = RefaultTracker()
        self._paused_until_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._announcements: set[asyncio.Task[None]] = set()
        self._announcing = asyncio.Semaphore(ANNOUNCING_MAX)

    def pause(self) -> None:
        """Fetches only what is read for a while, since the cache has no space."""
        self._paused_until_s = self._clock_s() + PAUSE_S

    def demand_unit(
        self, known: ReadFile, position: ChunkPosition, step: Range, unit_bytes: int
    ) -> Unit:
        """Returns the unit to fetch for a step of a read that misses the chunk at the position.
        ``unit_bytes`` is the unit size of a sequential read, otherwise 0."""
        unit = self._demand_unit(known, position, step, unit_bytes)
        self._refetches.note(unit.pack, unit.first, unit.count)
        return unit

    def _demand_unit(
        self, known: ReadFile, position: ChunkPosition, step: Range, unit_bytes: int
    ) -> Unit:
        if self._clock_s() < self._paused_until_s:
            return unit_around(known, position, *step)
        if known.regions is not None and unit_bytes:
            end = min(max(step.end, step.first + unit_bytes), known.size_bytes)
            return unit_around(known, position, step.first, end)
        if self._accuracy.is_low:
            return self._sparing_unit(known, position, step)
        return self._unit_with_neighbours(known, position, step)

    def _unit_with_neighbours(self, known: ReadFile, position: ChunkPosition, step: Range) -> Unit:
        if known.regions is None:
            return self._small_unit(known, position, step)
        return unit_around(known, position, *known.regions.miss(*step))

    def _sparing_unit(self, known: ReadFile, position: ChunkPosition, step: Range) -> Unit:
        """Returns a small unit while most prefetched bytes are evicted unread: it contains nothing
        that was fetched before, unless the last misses say that it will be read."""
        own = unit_around(known, position, *step)
        if not self._refetches.was_fetched(own.pack, position.chunk):
            unit = self._unit_with_neighbours(known, position, step)
            chunks = range(own.first, own.end)
            new = self._refetches.new_around(own.pack, unit.first, unit.end, chunks)
            return part_of(unit, new.start, new.stop)
        raw_offsets, shift = position.pack_index.index.raw_offsets, position.shift
        wanted = self._refetches.miss(own.pack, raw_offsets[own.first], raw_offsets[own.end])
        if known.regions is not None:
            return unit_around(known, position, wanted.first + shift, wanted.end + shift)
        return _chunks_within(position, own, wanted)

    def start(self, known: ReadFile, wanted: Range, unit_bytes: int) -> None:
        """Starts to fetch a range of a file ahead of its readers, unless too much is under way, and
        announces what they may get to after it."""
        if len(self._tasks) >= TASKS_MAX or self._clock_s() < self._paused_until_s:
            _refuse(known, wanted.first)
            return
        self._begin(self._fetch_ahead(known, wanted, unit_bytes), self._tasks)
        is_busy = len(self._announcements) >= TASKS_MAX
        if known.ahead is None or is_busy or self._accuracy.is_low:
            return
        for number in known.segments_ending(*known.ahead.reach()):
            # A smaller one would cost a request, and its reader asks for all of it at once
            is_large = known.segments[number].size_bytes >= PEER_UNIT_SIZE_BYTES
            if is_large and known.extents.find(known.starts[number]) is None:
                self._begin(self._announce(known, number), self._announcements)

    def _begin(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(partial(self._ended, tasks))

    async def close(self) -> None:
        tasks = self._tasks | self._announcements
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, tasks: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("read-ahead stopped: %s", error)

    async def _fetch_ahead(self, known: ReadFile, wanted: Range, unit_bytes: int) -> None:
        at = wanted.first
        while at < wanted.end:
            position = await self._ranges.position(known, at)
            whole = _ahead_unit(known, position, Range(at, wanted.end), unit_bytes)
            raw_offsets = position.pack_index.index.raw_offsets
            for unit in cut_units(whole, position.pack_index, unit_bytes or UNIT_SIZE_BYTES_MAX):
                if not self._start(position.pack_index, unit):
                    _refuse(known, position.shift + raw_offsets[unit.first])
                    return
            at = position.shift + raw_offsets[whole.end]
        if known.ahead is not None:
            known.ahead.extended(wanted.end, at)

    async def _announce(self, known: ReadFile, number: int) -> None:
        """Announces a segment to the owner of its pack. If that is this node, begins to fetch it
        from the store, since others will ask for it."""
        pack, first, count = known.segments[number][:3]
        async with self._announcing:
            if not await self._indexes.announce(pack, range(first, first + count)):
                return
            first_byte, end = known.starts[number : number + 2]
            position = await self._ranges.position(known, first_byte)
            own = unit_around(known, position, first_byte, end)
            whole = replace(own, from_origin=True, is_announced=True)
            for unit in cut_units(whole, position.pack_index, PEER_UNIT_SIZE_BYTES):
                if not self._start(position.pack_index, unit):
                    return

    def _small_unit(self, known: ReadFile, position: ChunkPosition, step: Range) -> Unit:
        """Returns chunks around those of a small file, of any file."""
        index = position.pack_index.index
        window, whole = self._small.miss(index.pack_id, self._clock_s())
        own = unit_around(known, position, *step)
        if whole:
            self._start_rest_of_pack(position.pack_index, own.first)
        low = max(index.raw_offsets[own.first] - window // 4, 0)
        return _chunks_within(position, own, Range(low, low + window))

    def _start_rest_of_pack(self, pack_index: PackIndexVersion, first: int) -> None:
        """Starts to fetch the rest of a pack. Chunks before ``first`` come last."""
        whole = Unit(pack_index.index.pack_id, 0, len(pack_index.index))
        units = cut_units(whole, pack_index, UNIT_SIZE_BYTES_MAX)
        for unit in sorted(units, key=lambda unit: unit.end <= first):
            is_again = self._refetches.was_fetched(unit.pack, unit.first)
            if is_again and self._accuracy.is_low:
                continue
            if not self._start(pack_index, unit):
                return

    def _start(self, pack_index: PackIndexVersion, unit: Unit) -> bool:
        """Starts to fetch a unit ahead of readers. Returns False if too much is under way."""
        is_started = self._ranges.ahead(pack_index, unit)
        if is_started:
            self._refetches.note(unit.pack, unit.first, unit.count)
        return is_started


def _chunks_within(position: ChunkPosition, own: Unit, wanted: Range) -> Unit:
    """Returns the chunks ``own`` and those around it within raw bytes of the pack, of any file; all
    of the first chunk."""
    index = position.pack_index.index
    first = bisect_right(index.raw_offsets, max(wanted.first, 0)) - 1
    end = bisect_right(index.raw_offsets, wanted.end) - 1
    first, end = min(first, own.first), max(min(end, len(index)), own.end)
    return Unit(index.pack_id, first, end - first)


def _ahead_unit(known: ReadFile, position: ChunkPosition, wanted: Range, unit_bytes: int) -> Unit:
    """Returns the part of a range in the position's segment, and the rest of that if it is
    small."""
    unit = unit_around(known, position, *wanted)
    rest_bytes = position.pack_index.index.raw_size(unit.end, position.segment_end)
    if rest_bytes < min(unit_bytes, UNIT_SIZE_BYTES_MAX):
        unit = replace(unit, count=position.segment_end - unit.first)
    return unit


def _refuse(known: ReadFile, at: int) -> None:
    if known.ahead is not None:
        known.ahead.refused(at)
