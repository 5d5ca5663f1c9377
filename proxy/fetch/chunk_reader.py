"""Returns chunks of packs by number, from the cache or through it: for peers, and for trees.

Reads of dataset files use file_reader.py instead. Here the files of the chunks are unknown, so
chunks go to slabs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncGenerator
from itertools import takewhile

from lodefs.chunkstore.errors import Corrupt, NotFound
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.cache.chunk_cache import ChunkLocation
from lodefs.proxy.cache.reader import CacheReader
from lodefs.proxy.fetch.cache_fill import RawChunks, Unit, cut_units
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.fetch.single_flight import Fetcher

PIECE_SIZE_BYTES = 1024 * 1024  # held by a reader at once
UNIT_SIZE_BYTES = 2 * 1024 * 1024  # smaller than for files, since the client gets units one by one
TRIES = 3  # for one chunk that is evicted as soon as it has come


class ChunkReader:
    """Packs as this node can serve them, for use on the event loop only."""

    def __init__(
        self,
        reads: CacheReader,
        fetcher: Fetcher,
        indexes: PackIndexes,
    ) -> None:
        self._reads = reads
        self._fetcher = fetcher
        self._indexes = indexes

    async def index(self, pack: PackId, *, cached: bool, from_origin: bool) -> PackIndexVersion:
        """Returns a pack's index. ``cached``: only if this node has it. ``from_origin``: a missing
        one comes from the store, without asking peers. Raises: NotFound if it is not cached; the
        errors of fetching."""
        if not cached:
            return await self._indexes.get(pack, from_origin=from_origin)
        found = await self._indexes.known(pack)
        if found is None:
            raise NotFound(f"this node does not know pack {pack.hex()}")
        return found

    async def is_here(self, pack_index: PackIndexVersion, first: int, count: int) -> bool:
        """Whether all these chunks are in the cache or on their way to it."""
        pack = pack_index.index.pack_id
        coming = [self._fetcher.is_coming(pack, n) for n in range(first, first + count)]
        # look only now, since chunks that were on their way may have arrived
        places = await self._reads.find(pack_index.index, first, count)
        return all(place is not None or comes for place, comes in zip(places, coming, strict=True))

    async def chunks(
        self,
        pack_index: PackIndexVersion,
        first: int,
        count: int,
        *,
        from_origin: bool,
        more_bytes: int = 0,
    ) -> AsyncGenerator[Buffer, None]:
        """Yields the verified raw bytes of chunks [first, first + count), in pieces of at most a
        MiB. If they are fetched, about ``more_bytes`` of the chunks after them are fetched, too.
        Raises: the errors of fetching."""
        at, end, tries = first, first + count, 0
        while at < end:
            run = await self._run(pack_index, at, end)
            if not run:
                if tries == TRIES:
                    raise Corrupt(
                        f"chunk {at} of pack {pack_index.index.pack_id.hex()} is not kept"
                    )
                tries += 1
                wanted = self._wanted(pack_index, at, end, more_bytes)
                kept = await self._fetch(pack_index, at, wanted, from_origin=from_origin)
                for n in takewhile(kept.__contains__, range(at, end)):
                    yield kept[n]
                    at += 1
                    tries = 0
                continue
            data = await self._reads.read(run[0].file, run[0].offset, _size(run))
            if data is not None:
                yield data
                at += len(run)
                tries = 0

    async def _run(self, pack_index: PackIndexVersion, at: int, end: int) -> list[ChunkLocation]:
        """Returns the chunks from ``at`` on that lie together in one file, up to one piece."""
        raw_offsets = pack_index.index.raw_offsets
        limit = raw_offsets[at] + PIECE_SIZE_BYTES
        last = next((n for n in range(at + 1, end) if raw_offsets[n + 1] > limit), end)
        run: list[ChunkLocation] = []
        for place in await self._reads.find(pack_index.index, at, last - at):
            if place is None:
                break
            if run and (
                place.file is not run[0].file or place.offset != run[-1].offset + run[-1].size_bytes
            ):
                break
            run.append(place)
        ids = map(pack_index.index.chunk_id, range(at, at + len(run)))
        return run[: await self._reads.good(list(zip(run, ids, strict=True)))]

    def _wanted(self, pack_index: PackIndexVersion, at: int, end: int, more_bytes: int) -> int:
        """Returns where to stop fetching for a reader of chunks [at, end)."""
        raw_offsets = pack_index.index.raw_offsets
        return max(end, bisect_right(raw_offsets, raw_offsets[at] + more_bytes) - 1)

    async def _fetch(
        self, pack_index: PackIndexVersion, at: int, end: int, *, from_origin: bool
    ) -> RawChunks:
        """Fetches the chunk ``at``, and starts to fetch the missing ones after it. Returns chunks
        that are not, or not yet, in the cache."""
        pack = pack_index.index.pack_id
        (self._indexes.in_memory(pack) or pack_index).index.check_there(at, 1)
        flight = self._fetcher.join(pack, at, for_peer=from_origin)
        if flight is None:
            places = await self._reads.find(pack_index.index, at, end - at)
            missing = sum(1 for _ in takewhile(lambda place: place is None, places))
            if not missing:  # it arrived meanwhile
                return {}
            # Another reader has begun it
            flight = self._fetcher.join(pack, at, for_peer=from_origin)
        if flight is None:
            whole = Unit(pack, at, missing, from_origin=from_origin)
            units = cut_units(whole, pack_index, UNIT_SIZE_BYTES)
            flight = self._fetcher.demand(pack_index, units[0], at)
            for unit in units[1:]:
                self._fetcher.ahead(pack_index, unit)
        flight = await self._fetcher.arrived(pack_index, flight, at, for_peer=from_origin)
        filled = await flight.readable()
        return filled.uncached_chunks or filled.held_chunks


def _size(run: list[ChunkLocation]) -> int:
    return sum(place.size_bytes for place in run)
