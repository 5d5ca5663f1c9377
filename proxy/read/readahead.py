"""How much of a pack a read fetches: the unit that it waits for, and what comes ahead of it."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace

from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.proxy.fetch.cache_fill import Destination, Unit, cut_units
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.fetch.readahead_policy import UNIT_SIZE_BYTES_MAX, Range, SmallFiles
from lodefs.proxy.fetch.single_flight import Fetcher
from lodefs.proxy.read.dataset_file import ChunkPosition, DatasetFile, position_of

log = logging.getLogger("lodefs.cache")

PAUSE_S = 5.0  # after the cache had no space: units stay small, nothing is read ahead
TASKS_MAX = 64


class ReadaheadScheduler:
    """Chooses the units of reads, and starts those that nobody waits for yet. Used from the event
    loop alone."""

    def __init__(
        self, fetcher: Fetcher, indexes: PackIndexes, *, clock_s: Callable[[], float]
    ) -> None:
        self._fetcher = fetcher
        self._indexes = indexes
        self._clock_s = clock_s
        self._small = SmallFiles()
        self._paused_until_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    def pause(self) -> None:
        """For a while fetches only what is read: the cache has no space."""
        self._paused_until_s = self._clock_s() + PAUSE_S

    def demand_unit(
        self, known: DatasetFile, position: ChunkPosition, step: Range, unit_bytes: int
    ) -> Unit:
        """The unit to fetch for a step of a read that misses the chunk at the position.
        ``unit_bytes``: the unit size of a sequential read, else 0."""
        if self._clock_s() < self._paused_until_s:
            return unit_around(known, position, step)
        if known.regions is None:
            return self._small_unit(known, position, step)
        if unit_bytes:
            end = min(max(step.end, step.first + unit_bytes), known.size_bytes)
            return unit_around(known, position, Range(step.first, end))
        return unit_around(known, position, known.regions.miss(*step))

    def start(self, known: DatasetFile, wanted: Range, unit_bytes: int) -> None:
        """Starts to fetch a range of a file ahead of its readers, unless too much is under way."""
        if len(self._tasks) >= TASKS_MAX or self._clock_s() < self._paused_until_s:
            _refuse(known, wanted.first)
            return
        task = asyncio.create_task(self._fetch_ahead(known, wanted, unit_bytes))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Stops reading ahead."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("reading ahead stopped: %s", error)

    async def _fetch_ahead(self, known: DatasetFile, wanted: Range, unit_bytes: int) -> None:
        at = wanted.first
        while at < wanted.end:
            position = await position_of(self._indexes, known, at)
            whole = _ahead_unit(known, position, Range(at, wanted.end), unit_bytes)
            raw_offsets = position.loaded.index.raw_offsets
            for unit in cut_units(whole, position.loaded, unit_bytes or UNIT_SIZE_BYTES_MAX):
                if not self._fetcher.ahead(position.loaded, unit):
                    _refuse(known, position.shift + raw_offsets[unit.first])
                    return
            at = position.shift + raw_offsets[whole.end]
        if known.ahead is not None:
            known.ahead.extended(wanted.end, at)

    def _small_unit(self, known: DatasetFile, position: ChunkPosition, step: Range) -> Unit:
        """Chunks around a small file's, of any file."""
        index = position.loaded.index
        window, whole = self._small.miss(index.pack_id, self._clock_s())
        own = unit_around(known, position, step)
        if whole:
            self._start_rest_of_pack(position.loaded, own.first)
        low = index.raw_offsets[own.first] - window // 4
        first = bisect_right(index.raw_offsets, max(low, 0)) - 1
        end = bisect_right(index.raw_offsets, max(low, 0) + window) - 1
        first, end = min(first, own.first), max(min(end, len(index)), own.end)
        return Unit(index.pack_id, first, end - first)

    def _start_rest_of_pack(self, loaded: PackIndexVersion, first: int) -> None:
        """Starts to fetch the rest of a pack. What lies before the chunk ``first`` comes last."""
        whole = Unit(loaded.index.pack_id, 0, len(loaded.index))
        units = cut_units(whole, loaded, UNIT_SIZE_BYTES_MAX)
        for unit in sorted(units, key=lambda unit: unit.end <= first):
            if not self._fetcher.ahead(loaded, unit):
                return


def unit_around(known: DatasetFile, position: ChunkPosition, wanted: Range) -> Unit:
    """The chunks of a range around the position, as far as they lie in its segment."""
    raw_offsets, shift = position.loaded.index.raw_offsets, position.shift
    first = bisect_right(raw_offsets, max(wanted.first - shift, 0)) - 1
    first = min(max(first, position.segment_first), position.chunk)
    end = bisect_right(raw_offsets, wanted.end - 1 - shift)
    end = max(min(end, position.segment_end), position.chunk + 1)
    flat = Destination(position.segment_first, position.segment_end, known.flat, shift)
    return Unit(position.loaded.index.pack_id, first, end - first, (flat,) if known.flat else ())


def _ahead_unit(
    known: DatasetFile, position: ChunkPosition, wanted: Range, unit_bytes: int
) -> Unit:
    """The part of a range in the position's segment, and the rest of that if it is small."""
    unit = unit_around(known, position, wanted)
    raw_offsets = position.loaded.index.raw_offsets
    rest = raw_offsets[position.segment_end] - raw_offsets[unit.end]
    if rest < min(unit_bytes, UNIT_SIZE_BYTES_MAX):
        unit = replace(unit, count=position.segment_end - unit.first)
    return unit


def _refuse(known: DatasetFile, at: int) -> None:
    if known.ahead is not None:
        known.ahead.refused(at)
