"""The read path: the bytes of dataset files, from the cache, or through it from the store."""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from lodefs.chunkstore.errors import Corrupt, InvalidInput, LodefsError
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.format.tree import Segment
from lodefs.chunkstore.nodeapi.wire import Origin
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache import name_rows
from lodefs.chunkstore.nodecache.layout import FileKind
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.chunk_cache import Cache
from lodefs.proxy.cache.extents import PackExtents, Run
from lodefs.proxy.cache.reader import CacheReader
from lodefs.proxy.fetch.cache_fill import Filled, RawChunks, Unit, cut_units
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.fetch.readahead_policy import (
    MIB,
    UNIT_SIZE_BYTES_MAX,
    Range,
    SmallFiles,
)
from lodefs.proxy.fetch.single_flight import Fetcher
from lodefs.proxy.node import Extent, SnapshotFile
from lodefs.proxy.read.dataset_file import ChunkPosition, DatasetFile, position_of
from lodefs.proxy.read.flat_completion import FlatCompletion
from lodefs.proxy.read.namespace import Namespace
from lodefs.proxy.runtime.counters import Counter
from lodefs.proxy.runtime.thread_pools import Pools

log = logging.getLogger("lodefs.cache")

FILES_MAX = 16 * 1024
SEGMENTS_MAX = 512 * 1024  # of all files that are known; each takes 200 bytes
PIECE_SIZE_BYTES = MIB  # what a reader holds at once
SMALL_PIECE_SIZE_BYTES = 128 * 1024  # what each holds if there are many, who may all be slow
READERS_MANY = 64
LOOKUP_CHUNKS_MAX = 256  # of one lookup in the index
TRIES = 2  # through the cache, before the reader is served past it
UNCACHED_S = 5.0  # after there was no space, units stay small so long
AHEAD_TASKS_MAX = 64
LOOP_SEGMENTS_BYTES_MAX = 64 * 1024  # of a file; more of them are decoded in a thread


class FileStream:
    """The bytes [at, end) of a file, verified, in pieces of at most 1 MiB. ``first`` is the first
    piece, already read; iterating gives the others. ``origin``: where bytes were fetched from;
    None: all of them were in the cache. Must be closed."""

    def __init__(self, reader: FileReader, file: SnapshotFile, known: DatasetFile, at: int) -> None:
        self._reader: FileReader | None = reader
        self._file = file
        self.known = known
        self.first: Buffer = b""
        self.origin: Origin | None = None
        self.at = self.end = at
        self.tries = 0  # fetches since the last piece
        self.advanced = 0  # up to where the readahead policy knows of this read
        self.ahead: tuple[Range | None, int] = (None, 0)  # what it wants, not begun yet

    def __aiter__(self) -> FileStream:
        return self

    async def __anext__(self) -> Buffer:
        if self.at >= self.end or self._reader is None:
            raise StopAsyncIteration
        try:
            piece = await self._reader.next_piece(self)
        except Corrupt as error:
            raise self._reader.corrupt(self._file, error) from error
        self.at += len(piece)
        self.tries = 0
        return piece

    async def aclose(self) -> None:
        """Ends the read."""
        if self._reader is not None:
            self._reader.ended()
            self._reader = None


class FileReader:
    """Reads dataset files by content id. Used from the event loop alone."""

    def __init__(
        self,
        cache: Cache,
        reads: CacheReader,
        fetcher: Fetcher,
        indexes: PackIndexes,
        names: Namespace,
        pools: Pools,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._reads = reads
        self._fetcher = fetcher
        self._pack_extents: PackExtents = fetcher.extents
        self._indexes = indexes
        self._names = names
        self._pools = pools
        self._meter = cache.meter
        self._clock_s = clock_s
        self._files: OrderedDict[bytes, DatasetFile] = OrderedDict()
        self._segments = 0  # of all of them
        self._readers = 0
        self._small = SmallFiles()
        self._uncached_until_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._completion = FlatCompletion(cache, reads, indexes, pools)

    # --- hits

    def hit(self, content_id: bytes, first: int, size_bytes: int) -> Extent | None:
        """Where a range lies, if it lies together and that is known at once."""
        known = self._files.get(content_id)
        found = self._extent(known, first, size_bytes) if known is not None else None
        if known is not None and found is not None and found[2] >= size_bytes:
            if known.ahead is not None and known.ahead.is_due(first + size_bytes):
                return None  # ``open`` reads ahead
            file, offset, _ = found
        else:
            flat = self._cache.complete_flat(content_id)
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

    async def open(self, file: SnapshotFile, first: int, size_bytes: int) -> FileStream:
        """Begins to read the bytes [first, first + size_bytes); the first piece has been read.

        Raises: InvalidInput (outside the file), Corrupt, and the errors of fetching.
        """
        entry = file.entry
        if first < 0 or first + size_bytes > entry.size_bytes:
            raise InvalidInput(f"{entry.name!r} has no bytes {first} to {first + size_bytes}")
        try:
            known = self.known(file.content_id) or await self._add_file(file)
        except Corrupt as error:
            raise self.corrupt(file, error) from error
        stream = FileStream(self, file, known, first)
        stream.end += size_bytes
        self._readers += 1
        try:
            if size_bytes:
                stream.first = await anext(stream)
        except BaseException:
            await stream.aclose()
            raise
        return stream

    def ended(self) -> None:
        """A stream was closed."""
        self._readers -= 1

    def corrupt(self, file: SnapshotFile, error: Corrupt) -> Corrupt:
        """The error with the file's path, which is logged."""
        path = self._names.path(file.snapshot, file.entry)
        what = Spec(file.snapshot.repo, file.snapshot.commit, path)
        log.error("%s cannot be read: %s", what, error)
        return Corrupt(f"{what}: {error}")

    def known(self, content_id: bytes) -> DatasetFile | None:
        """The file with a content id, if it was read before."""
        known = self._files.get(content_id)
        if known is not None:
            self._files.move_to_end(content_id)
        return known

    async def _add_file(self, file: SnapshotFile) -> DatasetFile:
        row = file.row
        if len(row.segments) <= LOOP_SEGMENTS_BYTES_MAX:
            segments = name_rows.segments_of(row)
        else:
            segments = await self._pools.disk.run(name_rows.segments_of, row)
        return self.add(file.content_id, file.entry.size_bytes, segments)

    def add(self, content_id: bytes, size_bytes: int, segments: tuple[Segment, ...]) -> DatasetFile:
        """A file that is not known yet."""
        known = self.known(content_id)  # it may have been added meanwhile
        if known is not None:
            return known
        known = self._files[content_id] = DatasetFile(content_id, size_bytes, segments)
        self._segments += len(segments)
        while len(self._files) > FILES_MAX or (
            self._segments > SEGMENTS_MAX and len(self._files) > 1
        ):
            _, oldest = self._files.popitem(last=False)
            self._segments -= len(oldest.segments)
        flat = self._cache.complete_flat(content_id)
        if flat is not None:
            known.extents.add(0, size_bytes, flat, 0)
        return known

    async def next_piece(self, stream: FileStream) -> Buffer:
        """The next bytes of a stream. Errors of fetching."""
        known, at = stream.known, stream.at
        step = Range(at, min(at + PIECE_SIZE_BYTES, stream.end))
        many = self._readers > READERS_MANY
        piece_end = min(step.end, at + (SMALL_PIECE_SIZE_BYTES if many else PIECE_SIZE_BYTES))
        if known.ahead is not None and step.end > stream.advanced:
            stream.ahead = known.ahead.advance(at, step.end, stream.end)
            stream.advanced = step.end
        data: Buffer | None = None
        while not data:
            found = self._extent(known, at, piece_end - at)
            if found is None and not await self._lookup(known, at, stream.end):
                data = await self._fetch(stream, step, piece_end)
                stream.tries += 1
                continue
            self._start_wanted_readahead(stream)
            if found is None:
                continue
            file, offset, known_bytes = found
            data = await self._reads.read(file, offset, min(known_bytes, piece_end - at))
            if data is None:
                known.extents.clear()
            elif not stream.tries:  # else it was just fetched
                self._meter.hit(len(data))
        if at + len(data) == known.size_bytes:
            self._completion.note(known)
        return data

    def _start_wanted_readahead(self, stream: FileStream) -> None:
        wanted, unit_bytes = stream.ahead
        if wanted is not None:
            self._start_readahead(stream.known, wanted, unit_bytes)
            stream.ahead = (None, unit_bytes)

    # --- finding

    def _extent(
        self, known: DatasetFile, at: int, size_bytes: int = 1
    ) -> tuple[CacheFile, int, int] | None:
        """Cache file, offset there and size of what memory knows from a byte of the file on;
        ``size_bytes`` of it are wanted."""
        found = known.extents.find(at)
        if found is not None and found[2] >= size_bytes:
            return found
        if self._learn(known, at if found is None else at + found[2]):
            found = known.extents.find(at)
        return found

    def _learn(self, known: DatasetFile, at: int) -> bool:
        """Takes over what is known of the pack that holds a byte of the file, if that is here."""
        if at >= known.starts[-1]:
            return False
        n = known.segment_at(at)
        segment, start = known.segments[n], known.starts[n]
        loaded = self._indexes.in_memory(segment.pack)
        if loaded is None or segment.first + segment.count > len(loaded.index):
            return False
        raw_offsets = loaded.index.raw_offsets
        first, end = raw_offsets[segment.first], raw_offsets[segment.first + segment.count]
        run = self._pack_extents.run(segment.pack, first + at - start)
        if run is None or end - first != segment.size_bytes:
            return False
        low, high = max(run.start, first), min(run.end, end)
        place = run.offset + low - run.start
        known.extents.add(start + low - first, high - low, run.file, place)
        return True

    async def _lookup(self, known: DatasetFile, at: int, end: int) -> bool:
        """Looks up in the index where the chunks from ``at`` on lie; whether the first is here."""
        position = await position_of(self._indexes, known, at)
        index = position.loaded.index
        last = min(
            bisect_right(index.raw_offsets, end - 1 - position.shift, position.chunk),
            position.segment_end,
            position.chunk + LOOKUP_CHUNKS_MAX,
        )
        places = await self._reads.find(index, position.chunk, last - position.chunk)
        here = [(n, place) for n, place in enumerate(places, position.chunk) if place is not None]
        if here and here[0][1].file.kind is FileKind.SLAB:
            self._completion.note(known, tries=1)
        good = await self._reads.good([(place, index.chunk_id(n)) for n, place in here])
        offsets = index.raw_offsets
        self._pack_extents.add(
            index.pack_id,
            [Run(offsets[n], offsets[n + 1], file, offset) for n, (file, offset, _) in here[:good]],
        )
        return self._extent(known, at) is not None

    # --- fetching

    async def _fetch(self, stream: FileStream, step: Range, piece_end: int) -> bytes:
        """Has the chunk at the beginning of a step fetched into the cache, and what the policy
        wants with it. Gives bytes from there on, up to ``piece_end``, that are in memory anyhow."""
        self._meter.add(Counter.MISSES)
        known = stream.known
        position = await position_of(self._indexes, known, step.first)
        loaded, chunk = position.loaded, position.chunk
        if stream.tries >= TRIES:
            chunks = await self._fetcher.direct(loaded, self._unit(known, position, step))
            stream.origin = Origin.STORE
            return _joined(chunks, position, step.first, piece_end)
        flight = self._fetcher.join(loaded.index.pack_id, chunk)
        if flight is None:
            unit = self._wanted(known, position, step, stream.ahead[1])
            end = bisect_right(loaded.index.raw_offsets, piece_end - 1 - position.shift)
            flight = self._fetcher.demand(loaded, unit, chunk, min(end, position.segment_end))
        self._start_wanted_readahead(stream)
        chunks = await flight.verified_with(chunk)
        if chunks:  # the reader need not wait until they are stored
            flight.task.add_done_callback(partial(self._stored, known))
        else:
            flight = await self._fetcher.arrived(loaded, flight, chunk)
            chunks = (await flight.landed()).uncached_chunks
            self._stored(known, flight.task)
        if flight.origin is not None:
            stream.origin = flight.origin
        return _joined(chunks, position, step.first, piece_end)

    def _stored(self, known: DatasetFile, task: asyncio.Task[Filled]) -> None:
        """A flight that brought a part of the file has ended."""
        if task.cancelled() or task.exception() is not None:
            return
        if known.flat is not None and self._cache.is_half_there(known.flat):
            self._completion.note(known)  # it may be the last part that was missing
        if task.result().uncached_chunks:
            self._uncached_until_s = self._clock_s() + UNCACHED_S

    def _wanted(
        self, known: DatasetFile, position: ChunkPosition, step: Range, unit_bytes: int
    ) -> Unit:
        if self._clock_s() < self._uncached_until_s:
            return self._unit(known, position, step)
        if known.regions is None:
            return self._small_unit(known, position, step)
        if unit_bytes:
            end = min(max(step.end, step.first + unit_bytes), known.size_bytes)
            return self._unit(known, position, Range(step.first, end))
        return self._unit(known, position, known.regions.miss(*step))

    def _unit(self, known: DatasetFile, position: ChunkPosition, wanted: Range) -> Unit:
        """The chunks of a range around the position, as far as they lie in its segment."""
        raw_offsets, shift = position.loaded.index.raw_offsets, position.shift
        first = bisect_right(raw_offsets, max(wanted.first - shift, 0)) - 1
        first = min(max(first, position.segment_first), position.chunk)
        end = bisect_right(raw_offsets, wanted.end - 1 - shift)
        end = max(min(end, position.segment_end), position.chunk + 1)
        pack = position.loaded.index.pack_id
        return Unit(pack, first, end - first, known.flat, shift + raw_offsets[first])

    def _small_unit(self, known: DatasetFile, position: ChunkPosition, step: Range) -> Unit:
        """Chunks around a small file's, of any file."""
        index = position.loaded.index
        window, whole = self._small.miss(index.pack_id, self._clock_s())
        own = self._unit(known, position, step)
        if whole:
            self._start_rest_of_pack(position.loaded, own.first)
        low = index.raw_offsets[own.first] - window // 4
        first = bisect_right(index.raw_offsets, max(low, 0)) - 1
        end = bisect_right(index.raw_offsets, max(low, 0) + window) - 1
        first, end = min(first, own.first), max(min(end, len(index)), own.first + own.count)
        return Unit(index.pack_id, first, end - first)

    def _start_readahead(self, known: DatasetFile, wanted: Range, unit_bytes: int) -> None:
        if len(self._tasks) >= AHEAD_TASKS_MAX or self._clock_s() < self._uncached_until_s:
            self._refuse(known, wanted.first)
            return
        task = asyncio.create_task(self._fetch_ahead(known, wanted, unit_bytes))
        self._tasks.add(task)
        task.add_done_callback(self._readahead_ended)

    def _readahead_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("reading ahead stopped: %s", error)

    async def _fetch_ahead(self, known: DatasetFile, wanted: Range, unit_bytes: int) -> None:
        at = wanted.first
        while at < wanted.end:
            position = await position_of(self._indexes, known, at)
            whole = self._ahead_unit(known, position, Range(at, wanted.end), unit_bytes)
            for unit in cut_units(whole, position.loaded, unit_bytes or UNIT_SIZE_BYTES_MAX):
                if not self._fetcher.ahead(position.loaded, unit):
                    self._refuse(known, unit.offset)
                    return
            raw_offsets = position.loaded.index.raw_offsets
            at = whole.offset + raw_offsets[whole.first + whole.count] - raw_offsets[whole.first]
        if known.ahead is not None:
            known.ahead.extended(wanted.end, at)

    def _ahead_unit(
        self, known: DatasetFile, position: ChunkPosition, wanted: Range, unit_bytes: int
    ) -> Unit:
        """What of a range lies in the position's segment, and the rest of that if it is small."""
        unit = self._unit(known, position, wanted)
        raw_offsets = position.loaded.index.raw_offsets
        rest = raw_offsets[position.segment_end] - raw_offsets[unit.first + unit.count]
        if rest < min(unit_bytes, UNIT_SIZE_BYTES_MAX):
            unit = replace(unit, count=position.segment_end - unit.first)
        return unit

    def _refuse(self, known: DatasetFile, at: int) -> None:
        if known.ahead is not None:
            known.ahead.refused(at)

    def _start_rest_of_pack(self, loaded: PackIndexVersion, first: int) -> None:
        """Starts to fetch the rest of a pack; what stands before the chunk ``first`` comes last."""
        whole = Unit(loaded.index.pack_id, 0, len(loaded.index))
        units = cut_units(whole, loaded, UNIT_SIZE_BYTES_MAX)
        for unit in sorted(units, key=lambda unit: unit.first + unit.count <= first):
            if not self._fetcher.ahead(loaded, unit):
                return

    async def complete(self, repo: str, commit: str, inos: Sequence[int]) -> None:
        """Programs read these files by chunks, which lie anywhere in the cache: their flat files
        are completed if that needs no fetching."""
        snapshot = self._names.known_snapshot(repo, commit) if inos else None
        if snapshot is None:
            return
        for ino in inos:
            with suppress(LodefsError):  # a reader of the file is told
                file = await self._names.file_by_ino(snapshot, ino)
                if isinstance(file, SnapshotFile):
                    known = self.known(file.content_id) or await self._add_file(file)
                    self._completion.note(known, tries=1)

    async def close(self) -> None:
        """Stops reading ahead."""
        await self._completion.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _joined(chunks: RawChunks, position: ChunkPosition, first: int, end: int) -> bytes:
    """The bytes of a file from ``first`` on, up to ``end``, as far as chunks follow each other."""
    pieces: list[Buffer] = []
    chunk, start = position.chunk, position.start
    while start < end and chunk < position.segment_end and (raw := chunks.get(chunk)) is not None:
        pieces.append(memoryview(raw)[max(first - start, 0) : end - start])
        start += len(raw)
        chunk += 1
    return b"".join(pieces)
