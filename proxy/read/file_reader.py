"""The read path: the bytes of dataset files, from the cache, or through it from the store."""

from __future__ import annotations

import collections
import logging
import time
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
from lodefs.proxy.cache.chunk_cache import Cache
from lodefs.proxy.cache.eviction_policy import Use
from lodefs.proxy.cache.reader import CacheReader
from lodefs.proxy.fetch.cache_fill import Unit
from lodefs.proxy.fetch.cache_write import Refusal
from lodefs.proxy.fetch.file_ranges import ChunkPosition, FileRanges, RangePart
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.metrics.counters import Counter
from lodefs.proxy.metrics.repository_reads import OF_ORIGIN, Source
from lodefs.proxy.node import Extent, Located, SnapshotFile
from lodefs.proxy.read.flat_completion import FlatCompletion
from lodefs.proxy.read.namespace import Namespace
from lodefs.proxy.read.readahead import ReadaheadScheduler, ReadFile
from lodefs.proxy.read.readahead_policy import MIB, Range
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
LOOP_SEGMENTS_BYTES_MAX = 64 * 1024  # of a file; larger ones are decoded in a thread


class FileStream:
    """The verified bytes [at, end) of a file, in pieces of at most 1 MiB. ``first`` is the first
    piece, already read; iteration yields the others. ``origin`` says where bytes were fetched from;
    None: all of them were in the cache. The caller must close it."""

    follower = None  # as a Demand

    def __init__(
        self,
        reader: FileReader,
        readahead: ReadaheadScheduler,
        file: SnapshotFile,
        known: ReadFile,
        at: int,
    ) -> None:
        self._reader: FileReader | None = reader
        self._readahead = readahead
        self._file = file
        self.known = known
        self.first: Buffer = b""
        self.origin: Origin | None = None
        self.at = self.begin = self.end = at
        self.owner = current_owner.get()
        self.is_wary = False  # its owner has many others that may not be read
        self.step = Range(at, at)  # the next piece is its beginning
        self.advanced = 0  # how far the read-ahead policy knows this read
        self.ahead: Range | None = None  # wanted read-ahead that has not begun
        self.unit_bytes = 0  # the unit size of a sequential read, otherwise 0
        self.counted = False  # whether this read was counted among reads

    def __aiter__(self) -> FileStream:
        return self

    async def __anext__(self) -> Buffer:
        if self.at >= self.end or self._reader is None:
            raise StopAsyncIteration
        try:
            return await self._reader.next_piece(self, self._file.snapshot.repo)
        except Corrupt as error:
            raise self._reader.corrupt(self._file, error) from error

    def unit(self, position: ChunkPosition) -> Unit:
        """Implements Demand."""
        return self._readahead.demand_unit(self.known, position, self.step, self.unit_bytes)

    def started(self) -> None:
        """Implements Demand."""
        if self.ahead is not None:
            self._readahead.start(self.known, self.ahead, self.unit_bytes)
            self.ahead = None

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
        ranges: FileRanges,
        indexes: PackIndexes,
        names: Namespace,
        pools: Pools,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._ranges = ranges
        self._names = names
        self._pools = pools
        self._counts = cache.counts
        self._files: OrderedDict[bytes, ReadFile] = OrderedDict()
        self._segments = 0  # segments of all known files
        self._readers = 0
        self._readers_of: collections.Counter[str] = collections.Counter()  # by owner
        self._readahead = ReadaheadScheduler(
            ranges, indexes, cache.prefetch_accuracy, clock_s=clock_s
        )
        self._completion = FlatCompletion(cache, reads, ranges, pools)

    # --- hits

    def hit(self, content_id: bytes, first: int, size_bytes: int) -> Extent | None:
        """Returns the extent of a range in the cache, if it is contiguous and known in memory."""
        known = self._files.get(content_id)
        found = self._ranges.known(known, first, size_bytes) if known is not None else None
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
            wanted = self._next(stream)
            part = await self._ranges.ensure(stream.known, wanted, stream.end, stream)
        except Corrupt as error:
            await stream.aclose()
            raise self.corrupt(file, error) from error
        except BaseException:
            await stream.aclose()
            raise
        repo = file.snapshot.repo
        if isinstance(part.found, bytes):
            stream.first = part.found
            self._deliver(stream, repo, len(part.found), part)
            return stream
        await stream.aclose()
        known, (cached, offset, known_bytes) = stream.known, part.found
        self._count(stream, repo, min(known_bytes, size_bytes), part)
        self._cache.touch(cached, Use.READ, min(known_bytes, size_bytes))
        known_bytes = min(known_bytes, PLACE_SIZE_BYTES_MAX)
        if first + known_bytes == known.size_bytes:
            self._completion.note(known)
        content = cached.content if cached.kind is FileKind.FLAT else b""
        coming_end = known.ahead.coming_end(first) if known.ahead is not None else 0
        place = CacheExtent(
            cached.number,
            content,
            offset,
            first,
            known_bytes,
            known.size_bytes,
            coming_end,
            self._cache.index,
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
        stream = FileStream(self, self._readahead, file, known, first)
        stream.end += size_bytes
        self._readers += 1
        self._readers_of[stream.owner] += 1
        is_many = self._readers_of[stream.owner] > OWNER_READERS_MANY
        stream.is_wary = is_many and is_remote(stream.owner)
        return stream

    async def next_piece(self, stream: FileStream, repo: str) -> Buffer:
        """Returns the next bytes of a stream. Raises: the errors of fetching."""
        wanted = self._next(stream)
        data, part = await self._ranges.read(stream.known, wanted, stream.end, stream)
        if part.fetched is None:
            self._counts.hit(len(data))
        self._deliver(stream, repo, len(data), part)
        return data

    def _next(self, stream: FileStream) -> range:
        """Returns the range of the next piece of a stream, and advances its read-ahead."""
        known, at = stream.known, stream.at
        stream.step = step = Range(at, min(at + PIECE_SIZE_BYTES, stream.end))
        many = self._readers > READERS_MANY
        piece_size_bytes = SMALL_PIECE_SIZE_BYTES if many else PIECE_SIZE_BYTES
        if stream.is_wary:
            taken_bytes = max(at - stream.begin, FIRST_PIECE_SIZE_BYTES)
            piece_size_bytes = min(piece_size_bytes, taken_bytes)
        if known.ahead is not None and step.end > stream.advanced:
            is_sure = self._cache.prefetch_accuracy.is_low
            stream.ahead, stream.unit_bytes = known.ahead.advance(
                at, step.end, stream.end, is_sure=is_sure
            )
            stream.advanced = step.end
        return range(at, min(step.end, at + piece_size_bytes))

    def _deliver(self, stream: FileStream, repo: str, size_bytes: int, part: RangePart) -> None:
        """Notes that a stream delivers its next bytes now."""
        self._count(stream, repo, size_bytes, part)
        stream.at += size_bytes
        if stream.at == stream.known.size_bytes:
            self._completion.note(stream.known)

    def _count(self, stream: FileStream, repo: str, size_bytes: int, part: RangePart) -> None:
        """Counts bytes of a stream by their source, and heeds how they were found."""
        source, known = Source.CACHE, stream.known
        if part.fetched is not None:
            self._counts.add(Counter.MISSES)
            stream.origin = part.fetched.origin or stream.origin
            source = OF_ORIGIN[stream.origin]
            if part.fetched.refusal is Refusal.NO_SPACE:
                self._readahead.pause()
            if known.flat is not None and self._cache.is_half_there(known.flat):
                self._completion.note(known)  # this may have been the last missing part
        elif isinstance(part.found, tuple) and part.found[0].kind is FileKind.SLAB:
            self._completion.note(known, tries=1)
        self._counts.reads.of(repo)[source].add(size_bytes, not stream.counted)
        stream.counted = True

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

    # --- known files

    def known(self, content_id: bytes) -> ReadFile | None:
        """Returns the file with a content id, if it was read before."""
        known = self._files.get(content_id)
        if known is not None:
            self._files.move_to_end(content_id)
        return known

    async def _add_file(self, file: SnapshotFile) -> ReadFile:
        row = file.row
        if len(row.segments) <= LOOP_SEGMENTS_BYTES_MAX:
            segments = name_rows.segments_of(row)
        else:
            segments = await self._pools.disk.run(name_rows.segments_of, row)
        return self.add(file.content_id, file.entry.size_bytes, segments)

    def add(self, content_id: bytes, size_bytes: int, segments: tuple[Segment, ...]) -> ReadFile:
        """Adds a file, unless it is known already."""
        known = self.known(content_id)  # it may have been added meanwhile
        if known is not None:
            return known
        known = self._files[content_id] = ReadFile(content_id, size_bytes, segments)
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
