"""The read path: the bytes of dataset files, from the cache, or through it from the store."""

from __future__ import annotations

import collections
import logging
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress

from lodefs.chunkstore.errors import Corrupt, InvalidInput, LodefsError
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.format.tree import Segment
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache import name_rows
from lodefs.chunkstore.nodecache.layout import FileKind
from lodefs.chunkstore.protocol.wire import CacheExtent, Origin
from lodefs.chunkstore.repo.pack_reader import damaged
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.chunk_cache import Cache
from lodefs.proxy.cache.eviction_policy import Use
from lodefs.proxy.cache.extents import PackExtents, Run
from lodefs.proxy.cache.reader import CacheReader
from lodefs.proxy.fetch.cache_fill import RawChunks
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.fetch.single_flight import Fetcher
from lodefs.proxy.node import Extent, Located, SnapshotFile
from lodefs.proxy.read.dataset_file import ChunkPosition, DatasetFile, position_of
from lodefs.proxy.read.flat_completion import FlatCompletion
from lodefs.proxy.read.namespace import Namespace
from lodefs.proxy.read.readahead import ReadaheadScheduler, unit_around
from lodefs.proxy.read.readahead_policy import MIB, Range
from lodefs.proxy.runtime.counters import Counter
from lodefs.proxy.runtime.repository_reads import OF_ORIGIN, Source
from lodefs.proxy.runtime.thread_pools import Pools, current_owner, is_remote

log = logging.getLogger("lodefs.cache")

FILES_MAX = 16 * 1024
SEGMENTS_MAX = 512 * 1024  # for all known files; each takes 200 bytes
PIECE_SIZE_BYTES = MIB  # held by a reader at once
# Limit for the extents in one answer to a reader of the cache's files
PLACE_SIZE_BYTES_MAX = 8 * MIB
SMALL_PIECE_SIZE_BYTES = 128 * 1024  # held by each reader if many may be slow
READERS_MANY = 64
OWNER_READERS_MANY = 8  # readers of one owner on TCP; further ones begin with small pieces
FIRST_PIECE_SIZE_BYTES = 16 * 1024  # of these further readers
LOOKUP_CHUNKS_MAX = 256  # in one index lookup
TRIES = 2  # through the cache, before the reader is served without it
LOOP_SEGMENTS_BYTES_MAX = 64 * 1024  # of a file; larger ones are decoded in a thread


class FileStream:
    """The verified bytes [at, end) of a file, in pieces of at most 1 MiB. ``first`` is the first
    piece, already read; iteration yields the others. ``origin`` says where bytes were fetched from;
    None: all of them were in the cache. The caller must close it."""

    def __init__(self, reader: FileReader, file: SnapshotFile, known: DatasetFile, at: int) -> None:
        self._reader: FileReader | None = reader
        self._file = file
        self.known = known
        self.first: Buffer = b""
        self.origin: Origin | None = None
        self.at = self.begin = self.end = at
        self.owner = current_owner.get()
        self.is_wary = False  # its owner has many others that may not be read
        self.tries = 0  # fetches since the last piece
        self.advanced = 0  # how far the read-ahead policy knows this read
        self.ahead: tuple[Range | None, int] = (None, 0)  # wanted read-ahead that has not begun
        self.counted = False  # whether this read was counted among reads

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
        self._reader.count(self, self._file.snapshot.repo, len(piece))
        self.tries = 0
        return piece

    async def aclose(self) -> None:
        if self._reader is not None:
            self._reader.ended(self.owner)
            self._reader = None


class FileReader:
    """Reads dataset files by content id. For use on the event loop only."""

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
        self._counts = cache.counts
        self._files: OrderedDict[bytes, DatasetFile] = OrderedDict()
        self._segments = 0  # segments of all known files
        self._readers = 0
        self._readers_of: collections.Counter[str] = collections.Counter()  # by owner
        self._readahead = ReadaheadScheduler(
            fetcher, indexes, cache.prefetch_accuracy, clock_s=clock_s
        )
        self._completion = FlatCompletion(cache, reads, indexes, pools)

    # --- hits

    def hit(self, content_id: bytes, first: int, size_bytes: int) -> Extent | None:
        """Returns the extent of a range in the cache, if it is contiguous and known in memory."""
        known = self._files.get(content_id)
        found = self._extent(known, first, size_bytes) if known is not None else None
        if known is not None and found is not None and found[2] >= size_bytes:
            if known.ahead is not None and known.ahead.is_due(first + size_bytes):
                return None  # leave it to ``open``, which reads ahead
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
        self._cache.touch(file, Use.READ, size_bytes)
        self._counts.hit(size_bytes)
        return Extent(fd, offset, size_bytes)

    # --- reads

    async def open(self, file: SnapshotFile, first: int, size_bytes: int) -> FileStream:
        """Opens a stream of the bytes [first, first + size_bytes), with its first piece read.
        Raises: InvalidInput for a range outside of the file; Corrupt; the errors of fetching."""
        stream = await self._stream(file, first, size_bytes)
        try:
            if size_bytes:
                stream.first = await anext(stream)
        except BaseException:
            await stream.aclose()
            raise
        return stream

    async def locate(self, file: SnapshotFile, first: int, size_bytes: int) -> Located | FileStream:
        """Implements Files: returns where the range's beginning lies, and what follows it in the
        same file, at most a few MiB, so that later reads stay visible. Raises what ``open``
        raises."""
        stream = await self._stream(file, first, size_bytes)
        try:
            if not size_bytes:
                return stream
            found, _ = await self._find(stream)
            if isinstance(found, bytes):
                stream.first = found
                stream.at = first + len(found)
                self.count(stream, file.snapshot.repo, len(found))
                stream.tries = 0
                return stream
        except Corrupt as error:
            await stream.aclose()
            raise self.corrupt(file, error) from error
        except BaseException:
            await stream.aclose()
            raise
        await stream.aclose()
        self.count(stream, file.snapshot.repo, min(found[2], size_bytes))
        known, (cache_file, offset, known_bytes) = stream.known, found
        self._cache.touch(cache_file, Use.READ, min(known_bytes, size_bytes))
        known_bytes = min(known_bytes, PLACE_SIZE_BYTES_MAX)
        if first + known_bytes == known.size_bytes:
            self._completion.note(known)
        content = cache_file.content if cache_file.kind is FileKind.FLAT else b""
        place = CacheExtent(
            cache_file.number, content, offset, first, known_bytes, known.size_bytes
        )
        return Located(place, stream.origin)

    async def _stream(self, file: SnapshotFile, first: int, size_bytes: int) -> FileStream:
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
        self._readers_of[stream.owner] += 1
        is_many = self._readers_of[stream.owner] > OWNER_READERS_MANY
        stream.is_wary = is_many and is_remote(stream.owner)
        return stream

    async def next_piece(self, stream: FileStream) -> Buffer:
        """Returns the next bytes of a stream. Raises: the errors of fetching."""
        known, at = stream.known, stream.at
        data: Buffer | None = None
        while not data:
            found, piece_end = await self._find(stream)
            if isinstance(found, bytes):
                data = found
                continue
            file, offset, known_bytes = found
            data = await self._reads.read(file, offset, min(known_bytes, piece_end - at))
            if data is None:
                known.extents.clear()
            elif not stream.tries:  # otherwise it was just fetched
                self._counts.hit(len(data))
        if at + len(data) == known.size_bytes:
            self._completion.note(known)
        return data

    async def _find(self, stream: FileStream) -> tuple[tuple[CacheFile, int, int] | bytes, int]:
        """Returns where the next bytes of a stream lie, or the bytes themselves, which it may
        fetch; and the end of the next piece."""
        known, at = stream.known, stream.at
        step = Range(at, min(at + PIECE_SIZE_BYTES, stream.end))
        many = self._readers > READERS_MANY
        piece_size_bytes = SMALL_PIECE_SIZE_BYTES if many else PIECE_SIZE_BYTES
        if stream.is_wary:
            taken_bytes = max(at - stream.begin, FIRST_PIECE_SIZE_BYTES)
            piece_size_bytes = min(piece_size_bytes, taken_bytes)
        piece_end = min(step.end, at + piece_size_bytes)
        if known.ahead is not None and step.end > stream.advanced:
            is_sure = self._cache.prefetch_accuracy.is_low
            stream.ahead = known.ahead.advance(at, step.end, stream.end, is_sure=is_sure)
            stream.advanced = step.end
        while True:
            found = self._extent(known, at, piece_end - at)
            if found is None and not await self._lookup(known, at, stream.end):
                data = await self._fetch(stream, step, piece_end)
                stream.tries += 1
                if data:
                    return data, piece_end
                continue
            self._start_wanted_readahead(stream)
            if found is not None:
                return found, piece_end

    async def _fetch(self, stream: FileStream, step: Range, piece_end: int) -> bytes:
        """Fetches the unit at the beginning of a step into the cache. Returns bytes from there on,
        up to ``piece_end``, as far as they are in memory."""
        self._counts.add(Counter.MISSES)
        known = stream.known
        position = await position_of(self._indexes, known, step.first)
        pack_index, chunk = position.pack_index, position.chunk
        pack_index.index.check_there(chunk, 1)
        if stream.tries >= TRIES:
            chunks = await self._fetcher.direct(pack_index, unit_around(known, position, step))
            stream.origin = Origin.STORE
            return _joined(chunks, position, step.first, piece_end)
        flight = self._fetcher.join(pack_index.index.pack_id, chunk)
        if flight is None:
            unit = self._readahead.demand_unit(known, position, step, stream.ahead[1])
            end = bisect_right(pack_index.index.raw_offsets, piece_end - 1 - position.shift)
            flight = self._fetcher.demand(pack_index, unit, chunk, min(end, position.segment_end))
        self._start_wanted_readahead(stream)
        flight = await self._fetcher.arrived(pack_index, flight, chunk)
        filled = await flight.readable()
        if flight.origin is not None:
            stream.origin = flight.origin
        if known.flat is not None and self._cache.is_half_there(known.flat):
            self._completion.note(known)  # this may have been the last missing part
        if filled.uncached_chunks and not filled.left_out:
            self._readahead.pause()
        chunks = filled.uncached_chunks or filled.held_chunks
        return _joined(chunks, position, step.first, piece_end)

    def _start_wanted_readahead(self, stream: FileStream) -> None:
        wanted, unit_bytes = stream.ahead
        if wanted is not None:
            self._readahead.start(stream.known, wanted, unit_bytes)
            stream.ahead = (None, unit_bytes)

    # --- lookups

    def _extent(
        self, known: DatasetFile, at: int, size_bytes: int = 1
    ) -> tuple[CacheFile, int, int] | None:
        """Returns cache file, offset and size of the extent that memory has from a byte of the file
        on; ``size_bytes`` of it are wanted."""
        found = known.extents.find(at)
        if found is not None and found[2] >= size_bytes:
            return found
        if self._learn(known, at if found is None else at + found[2]):
            found = known.extents.find(at)
        return found

    def _learn(self, known: DatasetFile, at: int) -> bool:
        """Adds the known extent of a byte in its pack. Returns False if there is none."""
        if at >= known.starts[-1]:
            return False
        n = known.segment_at(at)
        segment, start = known.segments[n], known.starts[n]
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
        known.extents.add(start + low - first, high - low, run.file, place)
        return True

    async def _lookup(self, known: DatasetFile, at: int, end: int) -> bool:
        """Looks up in the index where the chunks from ``at`` on lie. Returns whether the first is
        here."""
        position = await position_of(self._indexes, known, at)
        index = position.pack_index.index
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

    def count(self, stream: FileStream, repo: str, size_bytes: int) -> None:
        """Counts bytes that a stream delivers now, by their source."""
        source = OF_ORIGIN[stream.origin] if stream.tries else Source.CACHE
        self._counts.reads.of(repo)[source].add(size_bytes, not stream.counted)
        stream.counted = True

    # --- known files

    def ended(self, owner: str) -> None:
        """Notes that a stream of an owner was closed."""
        self._readers -= 1
        self._readers_of[owner] -= 1
        if not self._readers_of[owner]:
            del self._readers_of[owner]

    def corrupt(self, file: SnapshotFile, error: Corrupt) -> Corrupt:
        """Logs an error. Returns it with the file's path and the way out."""
        path = self._names.path(file.snapshot, file.entry)
        what = Spec(file.snapshot.repo, file.snapshot.commit, path)
        log.error("%s cannot be read: %s", what, error)
        return damaged(what, error)

    def known(self, content_id: bytes) -> DatasetFile | None:
        """Returns the file with a content id, if it was read before."""
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
        """Adds a file, unless it is known already."""
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

    async def complete(self, repo: str, commit: str, inos: Sequence[int]) -> None:
        """Completes the flat files of files that programs read by chunks from other places of the
        cache, if that needs no fetching."""
        snapshot = self._names.known_snapshot(repo, commit) if inos else None
        if snapshot is None:
            return
        for ino in inos:
            with suppress(LodefsError):  # a reader of the file gets the error
                file = await self._names.file_by_ino(snapshot, ino)
                if isinstance(file, SnapshotFile):
                    known = self.known(file.content_id) or await self._add_file(file)
                    self._completion.note(known, tries=1)

    async def close(self) -> None:
        await self._completion.close()
        await self._readahead.close()


def _joined(chunks: RawChunks, position: ChunkPosition, first: int, end: int) -> bytes:
    """Returns the bytes [first, end) of a file, as far as chunks are consecutive."""
    pieces: list[Buffer] = []
    chunk, start = position.chunk, position.start
    while start < end and chunk < position.segment_end and (raw := chunks.get(chunk)) is not None:
        pieces.append(memoryview(raw)[max(first - start, 0) : end - start])
        start += len(raw)
        chunk += 1
    return b"".join(pieces)
