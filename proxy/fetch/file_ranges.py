"""The one way to the bytes of a file: looked up in the cache, or fetched into it once.

Bodies of GETs, places for mounts, chunks for other nodes, and trees are renderings of
``FileRanges.ensure``.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.extents import PackExtents, Run
from lodefs.proxy.cache.reader import CacheReader
from lodefs.proxy.fetch.cache_fill import FetchResult, Unit
from lodefs.proxy.fetch.cache_write import RawChunks
from lodefs.proxy.fetch.dataset_file import ChunkPosition, DatasetFile, position_of, unit_around
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.fetch.single_flight import Fetcher

LOOKUP_CHUNKS_MAX = 256  # in one index lookup
TRIES = 2  # through the cache, before the reader is served without it
DIRECT_TRIES = 2  # without it: the pack may have been rewritten meanwhile

Place = tuple[CacheFile, int, int]  # cache file, offset, size


class Demand(Protocol):
    """A reader's choice of what is fetched if bytes are missing."""

    @property
    def from_origin(self) -> bool:
        """Whether to ask the store without waiting for peers."""

    def unit(self, position: ChunkPosition) -> Unit:
        """Returns the unit to fetch, with the chunk at the position."""

    def started(self) -> None:
        """Reads ahead: the bytes are in the cache, or on their way."""


class Part(NamedTuple):
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

    async def ensure(self, file: DatasetFile, wanted: range, end: int, demand: Demand) -> Part:
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
                return Part(place, fetched)
            position = await self._position(file, wanted.start, demand)
            position.pack_index.index.check_there(position.chunk, 1)
            fetched = await fetch(position, file, wanted, demand)
            if data := _joined(fetched.memory, position, wanted):
                return Part(data, fetched)
        raise position.not_kept()

    async def read(
        self, file: DatasetFile, wanted: range, end: int, demand: Demand
    ) -> tuple[bytes, Part]:
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
                return data, Part(part.found, fetched)
            file.extents.clear()
        position = await self._position(file, wanted.start, demand)
        fetched = await self._direct(position, file, wanted, demand)
        data = _joined(fetched.memory, position, wanted)
        if not data:
            raise position.not_kept()
        return data, Part(data, fetched)

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
        return await position_of(self._indexes, file, at, from_origin=demand.from_origin)

    async def _fetch(
        self, position: ChunkPosition, _file: DatasetFile, wanted: range, demand: Demand
    ) -> FetchResult:
        """Fetches the chunk at a position into the cache, with its unit."""
        pack_index, chunk, for_peer = position.pack_index, position.chunk, demand.from_origin
        flight = self._fetcher.join(position.pack, chunk, for_peer=for_peer)
        if flight is None:
            unit, end = demand.unit(position), position.end_of(wanted.stop)
            flight = self._fetcher.demand(pack_index, unit, chunk, end)
        demand.started()
        result = await self._fetcher.result(pack_index, flight, chunk, for_peer=for_peer)
        self._pack_extents.add(position.pack, result.extents)
        return result

    async def _direct(
        self, position: ChunkPosition, file: DatasetFile, wanted: range, demand: Demand
    ) -> FetchResult:
        """Fetches the chunks of a range into memory."""
        unit = unit_around(file, position, wanted.start, wanted.stop)
        unit = replace(unit, from_origin=demand.from_origin)
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
