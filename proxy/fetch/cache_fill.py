"""Fetches one unit, verifies it, and stores it in the cache. Blocking.

A unit takes one index lookup, one ranged read for each run of missing chunks (mostly one), one
write, and one batch of rows; never a call for each chunk.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, TypeVar

from lodefs.chunkstore.errors import Changed, Corrupt, SourceLost
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion, WrongChunk
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.cache.chunk_cache import (
    Cache,
    ChunkLocation,
    ComingChunk,
    Flat,
    NewChunk,
    StoredRun,
)
from lodefs.proxy.cache.eviction_policy import Use
from lodefs.proxy.cache.extents import Run
from lodefs.proxy.fetch.data_plane import ReservationPart, WriteReservation
from lodefs.proxy.fetch.known_damage import DamagedChunks
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.fetch.pack_source import KnownWrongChunk, OnTransferStarted, PackSource
from lodefs.proxy.fetch.purged_chunks import PurgedChunks
from lodefs.proxy.runtime.counters import Counter

log = logging.getLogger("lodefs.cache")

BRIDGE_SIZE_BYTES = 128 * 1024  # stored bytes that are fetched again to save a request


@dataclass(frozen=True, slots=True)
class CacheTarget:
    """The place in the cache for those of the chunks [first, end) of a pack that are in a unit: in
    the flat file ``flat``, or in slabs. ``shift`` leads from raw offsets in the pack to offsets in
    that file."""

    first: int
    end: int
    flat: Flat | None = None
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Unit:
    """Consecutive chunks of a pack to fetch. Only those with a destination are cached; without
    ``destinations``, all of them, in slabs. ``from_origin``: from the store, without asking
    peers."""

    pack: PackId
    first: int
    count: int
    destinations: tuple[CacheTarget, ...] = ()
    from_origin: bool = False

    @property
    def end(self) -> int:
        return self.first + self.count


class _Part(NamedTuple):
    """Chunks [first, end) of a run that go to one destination."""

    destination: CacheTarget
    first: int
    end: int


Raws = TypeVar("Raws")
RawChunks = dict[int, Buffer]  # raw bytes by the chunk's number in the pack


@dataclass(slots=True)
class FetchResult:
    """A fetched unit. ``uncached_chunks`` found no space, or, if they were ``left_out``, a disk
    that was too slow. ``held_chunks`` are copies of those that the first reader wants at once.
    ``runs`` are the places of the pack's raw bytes in the cache. ``fetched_bytes`` counts raw bytes
    that are new in the cache."""

    uncached_chunks: RawChunks = field(default_factory=dict)
    left_out: bool = False
    held_chunks: RawChunks = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    fetched_bytes: int = 0


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
        self,
        pack_index: PackIndexVersion,
        unit: Unit,
        on_started: OnTransferStarted = lambda _origin: None,
        held: range = range(0),
        on_read: Callable[[RawChunks], None] = lambda _chunks: None,
    ) -> FetchResult:
        """Fetches what is missing of the unit. ``on_started`` is that of PackSource. ``held`` are
        the chunks to return copies of. ``on_read`` is called with the chunks in memory before the
        first of them is written, which may take long.

        Raises: WrongChunk if chunks were wrong twice; Corrupt, Unavailable, Denied,
        DeadlineExceeded.
        """
        index = pack_index.index  # chunks that are gone, by this index or a newer one, are left out
        places = self._cache.find(layout.chunk_keys(index.ids, unit.first, unit.count))
        self._use(places)
        destinations = unit.destinations or (CacheTarget(unit.first, unit.end),)
        present = [place is not None for place in places]
        settled = [True] * unit.count  # chunks without a destination are not wanted
        for one in destinations:
            low, high = max(one.first - unit.first, 0), max(one.end - unit.first, 0)
            settled[low:high] = present[low:high]
        if index.has_gone:
            gone = map(index.is_gone, range(unit.first, unit.end))
            settled = [done or is_gone for done, is_gone in zip(settled, gone, strict=True)]
        filled = FetchResult()
        read: dict[int, list[Buffer]] = {}  # by the number of the first chunk
        sizes = index.stored_sizes[unit.first : unit.end]
        for skipped, count in missing_runs(settled, sizes):
            first, end = unit.first + skipped, unit.first + skipped + count
            parts = _parts(destinations, first, end)
            landing = self._landing(pack_index, parts, unit.first, settled)
            source = self._origin if unit.from_origin else self._packs
            raws = self._checked(
                pack_index,
                range(first, end),
                source,
                partial(source.read_to, pack_index, first, count, on_started, landing),
            )
            if raws is None:
                _note_landed(landing, filled)
                continue
            for n in range(max(first, held.start), min(end, held.stop)):
                if raws[n - first]:
                    # A copy, not a view of everything
                    filled.held_chunks[n] = bytes(raws[n - first])
            read[first] = raws
        if read:
            chunks = ((n, raw) for first, raws in read.items() for n, raw in enumerate(raws, first))
            on_read({n: raw for n, raw in chunks if raw})
        for first, raws in read.items():
            for one, low, high in _parts(destinations, first, first + len(raws)):
                here = slice(low - unit.first, high - unit.first)
                self._store(
                    pack_index, one, low, raws[low - first : high - first], settled[here], filled
                )
                settled[here] = [True] * (high - low)
        return filled

    def _landing(
        self,
        pack_index: PackIndexVersion,
        parts: Sequence[_Part],
        first: int,
        settled: Sequence[bool],
    ) -> WriteReservation:
        """Returns where missing chunks go. ``settled`` is about those from ``first`` on."""

        def found() -> list[ReservationPart]:
            of_parts = (
                _coming(pack_index, one, low, settled[low - first : high - first])
                for one, low, high in parts
            )
            return [part for part in of_parts if part.chunks]

        return WriteReservation(self._cache, found)

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

    def _store(
        self,
        pack_index: PackIndexVersion,
        destination: CacheTarget,
        first: int,
        raws: list[Buffer],
        present: list[bool],
        filled: FetchResult,
    ) -> None:
        """Stores the missing chunks from ``first`` on."""
        chunks = _new_chunks(pack_index, destination.shift, first, raws, present)
        if not chunks:
            return
        size_bytes = sum(len(chunk.raw) for chunk in chunks)
        with self._cache.gate.turn(size_bytes) as may_write:
            stored = self._cache.store(chunks, destination.flat) if may_write else []
        if not stored:
            why = Counter.UNCACHED_BYTES if may_write else Counter.LEFT_OUT_BYTES
            self._counts.add(why, sum(map(len, raws)))
            filled.left_out |= not may_write
            filled.uncached_chunks.update((n, raw) for n, raw in enumerate(raws, first) if raw)
            return
        filled.fetched_bytes += size_bytes
        filled.runs.extend(_pack_runs(stored, destination.shift))

    def read(
        self,
        pack_index: PackIndexVersion,
        first: int,
        count: int,
        on_started: OnTransferStarted = lambda _origin: None,
        *,
        from_origin: bool = False,
    ) -> list[Buffer]:
        """Returns verified raw chunks; b"" for those that are gone. Wrong bytes are read once more
        from the origin, with a new index of the pack. If they are wrong again, they are not read
        for a while.

        Raises: WrongChunk, which names the pack and the store; the errors of reading.
        """
        source = self._origin if from_origin else self._packs
        read = partial(source.read, pack_index, first, count, on_started)
        return self._checked(pack_index, range(first, first + count), source, read)

    def _checked(
        self,
        pack_index: PackIndexVersion,
        chunks: range,
        source: PackSource,
        read: Callable[[], Raws],
    ) -> Raws | list[Buffer]:
        """Returns the result of ``read``, which reads these chunks from the source. If they are
        wrong, reads them again, as the method ``read`` says."""
        pack_id = pack_index.index.pack_id
        first, end = chunks.start, chunks.stop
        try:
            if self._purged_chunks.are_in(pack_index.index, chunks):
                raise Changed(f"the index of pack {pack_id.hex()} is older than a purge")
            return read()
        except Changed:
            log.info("pack %s was rewritten: its index is read again", pack_id.hex())
        except Corrupt as error:
            if isinstance(error, KnownWrongChunk | SourceLost):
                raise
            self._counts.add(Counter.STORE_CORRUPT)
            log.warning("%s sent wrong bytes, which are read again: %s", source.url, error)
        try:
            return self._read_again(pack_id, first, len(chunks))
        except Corrupt as error:
            self._counts.add(Counter.STORE_CORRUPT)
            bad = error.number if isinstance(error, WrongChunk) else None
            twice = WrongChunk(f"{self._origin.url} sent wrong bytes twice: {error}", bad)
            bad_first, bad_end = (first, end) if bad is None else (bad, bad + 1)
            self._damaged_chunks.note(pack_id, twice, bad_first, bad_end)
            raise twice from error

    def _read_again(self, pack_id: PackId, first: int, count: int) -> list[Buffer]:
        """Reads from the origin, with its current index."""
        try:
            return self._origin.read(self._indexes.reload(pack_id), first, count)
        except Changed:  # it was rewritten once more just now
            return self._origin.read(self._indexes.reload(pack_id), first, count)


def _parts(destinations: Sequence[CacheTarget], first: int, end: int) -> list[_Part]:
    """Returns the parts of the chunks [first, end) that have destinations."""
    cut = ((one, max(one.first, first), min(one.end, end)) for one in destinations)
    return [_Part(*part) for part in cut if part[1] < part[2]]


def _coming(
    pack_index: PackIndexVersion, destination: CacheTarget, first: int, present: Sequence[bool]
) -> ReservationPart:
    """Returns the missing chunks from ``first`` on, each once."""
    index, shift = pack_index.index, destination.shift
    numbers: list[int] = []
    chunks: dict[bytes, ComingChunk] = {}  # a run may contain a chunk twice
    for n, is_present in enumerate(present, first):
        chunk_id = index.chunk_id(n)
        if not is_present and chunk_id not in chunks:
            numbers.append(n)
            offset = shift + index.raw_offsets[n]
            chunks[chunk_id] = ComingChunk(chunk_id, index.raw_sizes[n], offset)
    return ReservationPart(numbers, list(chunks.values()), destination.flat, shift)


def _note_landed(landing: WriteReservation, filled: FetchResult) -> None:
    """Notes where data processes have written chunks."""
    for part, stored in zip(landing.parts, landing.stored, strict=True):
        filled.fetched_bytes += sum(chunk.size_bytes for chunk in part.chunks)
        filled.runs.extend(_pack_runs(stored, part.shift))


def _new_chunks(
    pack_index: PackIndexVersion, shift: int, first: int, raws: list[Buffer], present: list[bool]
) -> list[NewChunk]:
    """Returns the missing chunks from ``first`` on, each once."""
    index = pack_index.index
    chunks: dict[bytes, NewChunk] = {}  # a run may contain a chunk twice
    for n, raw in enumerate(raws, first):
        if raw and not present[n - first]:
            chunk_id = index.chunk_id(n)
            chunks.setdefault(chunk_id, NewChunk(chunk_id, raw, shift + index.raw_offsets[n]))
    return list(chunks.values())


def _pack_runs(stored: Iterable[StoredRun], shift: int) -> list[Run]:
    """Returns where raw bytes of the pack lie, with neighbours joined."""
    runs: list[Run] = []
    for file, offset, chunks in stored:
        begin = end = -1
        at = offset  # the offset of the pack's byte ``begin``
        for chunk in chunks:
            start = chunk.offset - shift
            if start != end:
                if end > begin:
                    runs.append(Run(begin, end, file, at))
                    at += end - begin
                begin = end = start
            end += chunk.size_bytes
        runs.append(Run(begin, end, file, at))
    return runs


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
