"""Completes flat files: copies chunks of a large file from other places of the cache.

Chunks of a large file lie in slabs if they were fetched with small files beside them, and in
another version's flat file if versions share them. Until its own flat file is complete, reads of
the file look up each chunk, and the kernel cannot read it by itself. So a file that is read is
completed if all of its missing chunks are in the cache; nothing is fetched for it.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.system.lru import Lru
from lodefs.proxy.cache.chunk_cache import Cache, ChunkLocation, Flat
from lodefs.proxy.cache.reader import CacheReader, read_chunk
from lodefs.proxy.cache.reservation import Chunk
from lodefs.proxy.fetch.file_ranges import DatasetFile, FileRanges
from lodefs.proxy.runtime.thread_pools import Pools

PAUSE_S = 0.5  # chunks that arrive meanwhile are handled at once
NOTED_MAX = 256
TRIES = 20  # while chunks of the file are missing, since they may be on their way
BATCH_CHUNKS = 64  # copied at once: some 4 MiB
SEGMENTS_MAX = 4096  # in a file that is completed, since it is in memory until then
REPEATS_MAX = 8  # bytes written for each fetched one, in a file of repeated chunks
SOURCES_MAX = 64 * 1024

log = logging.getLogger("lodefs.cache")

_Copy = tuple[
    ChunkLocation, bytes, int
]  # a chunk's place in the cache, its id, its offset in the dataset file


class FlatCompletion:
    """Completes flat files of one cache. For use on the event loop only."""

    def __init__(self, cache: Cache, reads: CacheReader, ranges: FileRanges, pools: Pools) -> None:
        self._cache = cache
        self._reads = reads
        self._ranges = ranges
        self._pools = pools
        self._noted: dict[bytes, tuple[DatasetFile, int]] = {}  # with the number of tries left
        # The chunk that each file lacked last: while it is missing, no other try can succeed
        self._missing: Lru[bytes, bytes] = Lru(NOTED_MAX)
        self._task: asyncio.Task[None] | None = None

    def note(self, known: DatasetFile, tries: int = TRIES) -> None:
        """Notes a large file that is read, and may be complete in the cache, but not in its flat
        file."""
        flat = known.flat
        if flat is None or len(known.segments) > SEGMENTS_MAX:
            return
        if self._cache.complete_flat(flat.content) is not None:
            return
        if len(self._noted) < NOTED_MAX:
            self._noted.setdefault(flat.content, (known, tries))
            if self._task is None:
                self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._noted:
                await asyncio.sleep(PAUSE_S)
                noted, self._noted = self._noted, {}
                for known, tries in noted.values():
                    if not await self._try(known) and tries > 1:
                        self.note(known, tries - 1)
        finally:
            self._task = None

    async def _try(self, known: DatasetFile) -> bool:
        """Tries to complete a file. Returns whether there is nothing more to do."""
        flat = known.flat
        assert flat is not None
        missing = self._missing.get(flat.content)
        if missing is not None and self._cache.lacks([missing]):
            return False
        try:
            gaps = await self._pools.disk.run(self._cache.gaps, flat)
            size_bytes = sum(end - first for first, end in gaps)
            if not gaps or not self._cache.has_room(size_bytes):
                return True
            async for copies in self._copies(known, gaps):
                if isinstance(copies, bytes):
                    self._missing.put(flat.content, copies)
                    return False
            await self._copy_all(known, flat, gaps)
        except LodefsError as error:
            log.info("completing a flat file failed: %s", error)
        return True

    async def _copy_all(
        self, known: DatasetFile, flat: Flat, gaps: Sequence[tuple[int, int]]
    ) -> None:
        sources: set[bytes] = set()  # ids of chunks; only the last ones if there are many
        source_bytes = copied_bytes = 0
        async for copies in self._copies(known, gaps):
            if isinstance(copies, bytes) or self._cache.complete_flat(flat.content) is not None:
                return
            for place, chunk_id, _ in copies:
                copied_bytes += place.size_bytes
                if chunk_id not in sources:
                    sources.add(chunk_id)
                    source_bytes += place.size_bytes
            if copied_bytes > REPEATS_MAX * source_bytes:
                return  # little was fetched, and much would be written
            if len(sources) > SOURCES_MAX:
                sources.clear()
            if not await self._pools.disk.run(self._copy, flat, copies):
                return

    async def _copies(
        self, known: DatasetFile, gaps: Sequence[tuple[int, int]]
    ) -> AsyncIterator[list[_Copy] | bytes]:
        """Yields the chunks of all gaps, some at a time, up to the first one that the cache lacks,
        of which it yields the key."""
        for first, end in gaps:
            at = first
            while at < end:
                position = await self._ranges.position(known, at)
                index, chunk, shift = position.pack_index.index, position.chunk, position.shift
                last = bisect_left(index.raw_offsets, end - shift, chunk)
                last = min(max(last, chunk + 1), position.segment_end, chunk + BATCH_CHUNKS)
                copies: list[_Copy] = []
                places = await self._reads.find(index, chunk, last - chunk)
                for n, place in enumerate(places, chunk):
                    if place is None:
                        yield layout.chunk_key(index.chunk_id(n))
                        return
                    copies.append((place, index.chunk_id(n), shift + index.raw_offsets[n]))
                yield copies
                at = shift + index.raw_offsets[last]

    def _copy(self, flat: Flat, copies: list[_Copy]) -> bool:
        """Verifies the chunks and stores them in the flat file. Returns False if that fails: a
        reader of the file will get the error."""
        chunks: list[tuple[Chunk, bytes]] = []
        for place, chunk_id, offset in copies:
            raw = read_chunk(place, chunk_id)
            if raw is None:
                return False
            chunks.append((Chunk(chunk_id, len(raw), offset), raw))
        return bool(self._cache.store(chunks, flat, are_copies=True))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
