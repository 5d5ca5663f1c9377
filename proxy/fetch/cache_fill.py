"""Fetches one unit, verifies it, and stores it in the cache. Blocking.

A unit takes one index lookup, one ranged read for each run of missing chunks (mostly one), one
write, and one batch of rows; never a call for each chunk.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lodefs.chunkstore.errors import Changed, Corrupt, SourceLost
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.pack import WrongChunk
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.proxy.cache.chunk_cache import Cache, ChunkLocation
from lodefs.proxy.cache.eviction_policy import Use
from lodefs.proxy.cache.extents import Run
from lodefs.proxy.fetch.cache_write import (
    CacheTarget,
    CacheWrite,
    FetchResult,
    RawChunks,
    WritePart,
    parts_to_write,
)
from lodefs.proxy.fetch.known_damage import DamagedChunks
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.fetch.pack_source import NOBODY, FillListener, KnownWrongChunk, PackSource
from lodefs.proxy.fetch.purged_chunks import PurgedChunks
from lodefs.proxy.metrics.counters import Counter

log = logging.getLogger("lodefs.cache")

BRIDGE_SIZE_BYTES = 128 * 1024  # stored bytes that are fetched again to save a request


@dataclass(frozen=True, slots=True)
class Unit:
    """Consecutive chunks of a pack to fetch. Only those with a destination are cached; without
    ``destinations``, all of them, in slabs. ``from_origin``: from the store, without asking peers.
    ``is_announced``: nobody has asked for its bytes yet, but nodes have announced it."""

    pack: PackId
    first: int
    count: int
    destinations: tuple[CacheTarget, ...] = ()
    from_origin: bool = False
    is_announced: bool = False

    @property
    def end(self) -> int:
        return self.first + self.count


class CacheFill:
    """Fetches units into one cache. For any thread."""

    def __init__(
        self,
        cache: Cache,
        indexes: PackIndexes,
        packs: PackSource,
        origin: PackSource,
        damaged_chunks: DamagedChunks,
        purged_chunks: PurgedChunks | None = None,
    ) -> None:
        """``origin`` is read instead of ``packs`` if a unit says so, and if ``packs`` sent wrong
        bytes. ``damaged_chunks`` are those that ``origin`` refuses to read again for now.
        ``purged_chunks`` are accepted from no other source."""
        self._purged_chunks = purged_chunks or PurgedChunks()
        self._damaged_chunks = damaged_chunks
        self._cache = cache
        self._indexes = indexes
        self._packs = packs
        self._origin = origin
        self._counts = cache.counts

    def fill(
        self, pack_index: PackIndexVersion, unit: Unit, listener: FillListener = NOBODY
    ) -> FetchResult:
        """Fetches what is missing of the unit.

        Raises: WrongChunk if chunks were wrong twice; Corrupt, Unavailable, Denied,
        DeadlineExceeded.
        """
        source = self._origin if unit.from_origin else self._packs
        result = FetchResult()
        writes: list[CacheWrite] = []
        raws: RawChunks = {}
        for chunks, parts in self._missing(pack_index, unit):
            write = CacheWrite(self._cache, parts)
            received = self._read(pack_index, chunks, source, listener, write)
            result.origin = received.origin
            result.extents += received.extents
            raws |= received.memory
            writes.append(write)
        if raws:
            listener.received(raws, result.origin)
        # Copies, not views of everything
        result.memory = {n: bytes(raws[n]) for n in listener.wanted if n in raws}
        for write in writes:
            written = write.write(raws)
            result.extents += written.extents
            result.memory |= written.memory
            result.refusal = result.refusal or written.refusal
        return result

    def _missing(
        self, pack_index: PackIndexVersion, unit: Unit
    ) -> Iterator[tuple[range, list[WritePart]]]:
        """Yields the runs of chunks to fetch, and where they go."""
        index = pack_index.index
        places = self._cache.find(layout.chunk_keys(index.ids, unit.first, unit.count))
        self._use(places)
        targets = unit.destinations or (CacheTarget(unit.first, unit.end),)
        settled = [True] * unit.count  # chunks without a target are not wanted
        for target in targets:
            low, high = max(target.first - unit.first, 0), max(target.end - unit.first, 0)
            settled[low:high] = [place is not None for place in places[low:high]]
        if index.has_gone:  # chunks that are gone, by this index or a newer one, are left out
            gone = map(index.is_gone, range(unit.first, unit.end))
            settled = [done or is_gone for done, is_gone in zip(settled, gone, strict=True)]
        for first, count in missing_runs(settled, index.stored_sizes[unit.first : unit.end]):
            chunks = range(unit.first + first, unit.first + first + count)
            yield chunks, parts_to_write(index, targets, chunks, settled[first : first + count])

    def touch_asked(self, runs: Iterable[Run], first: int, end: int) -> None:
        """Notes that a reader waited for the raw bytes [first, end) of a pack, of which runs were
        just stored."""
        for run in runs:
            size_bytes = min(run.end, end) - max(run.start, first)
            if size_bytes > 0:
                self._cache.touch(run.file, Use.ASKED, size_bytes)

    def waits_for_peers(self, unit: Unit) -> bool:
        """Whether other nodes are asked for the unit before the store."""
        return not unit.from_origin and self._packs.waits_for_peers(unit.pack)

    def known_damage(self, unit: Unit) -> tuple[int, int] | None:
        """Returns chunks [first, end) of the unit that were just found to be damaged in the
        store."""
        known = self._damaged_chunks.find(unit.pack, unit.first, unit.end)
        return None if known is None else (known.first, known.end)

    def _use(self, places: list[ChunkLocation | None]) -> None:
        """Marks the files of present chunks as used, since a reader wants their neighbours."""
        for file in {place.file for place in places if place is not None}:
            self._cache.touch(file, Use.NEIGHBOUR)

    def read(self, pack_index: PackIndexVersion, unit: Unit) -> FetchResult:
        """Fetches a unit into memory, without the cache. Raises what ``fill`` raises."""
        source = self._origin if unit.from_origin else self._packs
        return self._read(pack_index, range(unit.first, unit.end), source)

    def _read(
        self,
        pack_index: PackIndexVersion,
        chunks: range,
        source: PackSource,
        listener: FillListener = NOBODY,
        write: CacheWrite | None = None,
    ) -> FetchResult:
        """Reads chunks from a source. Wrong ones are read once more from the origin, with a new
        index of the pack. If they are wrong again, they are not read for a while."""
        pack_id = pack_index.index.pack_id
        try:
            if self._purged_chunks.are_in(pack_index.index, chunks):
                raise Changed(f"the index of pack {pack_id.hex()} is older than a purge")
            return source.read(pack_index, chunks.start, len(chunks), listener, write)
        except Changed:
            log.info("pack %s was rewritten: its index is read again", pack_id.hex())
        except Corrupt as error:
            if isinstance(error, KnownWrongChunk | SourceLost):
                raise
            self._counts.add(Counter.STORE_CORRUPT)
            log.warning("%s sent wrong bytes, which are read again: %s", source.url, error)
        try:
            return self._read_again(pack_id, chunks)
        except Corrupt as error:
            self._counts.add(Counter.STORE_CORRUPT)
            bad = error.number if isinstance(error, WrongChunk) else None
            twice = WrongChunk(f"{self._origin.url} sent wrong bytes twice: {error}", bad)
            bad_first, bad_end = (chunks.start, chunks.stop) if bad is None else (bad, bad + 1)
            self._damaged_chunks.note(pack_id, twice, bad_first, bad_end)
            raise twice from error

    def _read_again(self, pack_id: PackId, chunks: range) -> FetchResult:
        """Reads from the origin, with its current index."""
        try:
            return self._origin.read(self._indexes.reload(pack_id), chunks.start, len(chunks))
        except Changed:  # it was rewritten once more just now
            return self._origin.read(self._indexes.reload(pack_id), chunks.start, len(chunks))


def part_of(unit: Unit, first: int, end: int) -> Unit:
    """Returns the chunks [first, end) of a unit."""
    destinations = tuple(one for one in unit.destinations if one.first < end and first < one.end)
    return replace(unit, first=first, count=end - first, destinations=destinations)


def cut_units(unit: Unit, pack_index: PackIndexVersion, size_bytes: int) -> list[Unit]:
    """Splits a unit evenly into parts of about ``size_bytes`` raw bytes (at most an eighth and a
    chunk more), or of one chunk. A small remainder would cost as much per request as the others."""
    raw_offsets = pack_index.index.raw_offsets
    first, end = unit.first, unit.first + unit.count
    base = raw_offsets[first]
    total = raw_offsets[end] - base
    parts = max(1, -((size_bytes // 8 - total) // size_bytes))
    units: list[Unit] = []
    for part in range(1, parts + 1):
        cut = bisect_left(raw_offsets, base + total * part // parts, first, end)
        if cut > first:
            units.append(part_of(unit, first, cut))
            first = cut
    return units


def missing_runs(present: Sequence[bool], stored_sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the runs (first, count) to fetch: everything missing, with small present gaps
    bridged."""
    runs: list[tuple[int, int]] = []
    gap_bytes = 0
    for n, is_present in enumerate(present):
        if is_present:
            gap_bytes += stored_sizes[n]
            continue
        if runs and gap_bytes <= BRIDGE_SIZE_BYTES:
            runs[-1] = (runs[-1][0], n + 1 - runs[-1][0])
        else:
            runs.append((n, 1))
        gap_bytes = 0
    return runs
