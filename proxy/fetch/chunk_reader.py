"""Returns chunks of packs by number, from the cache or through it: for peers, and for trees.

The files of the chunks are unknown here, so chunks go to slabs.
"""

from __future__ import annotations

import asyncio
import math
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.tree import Segment
from lodefs.chunkstore.protocol.wire import PARENT_WAIT_S
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.chunkstore.system.lru import Lru
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.cache.prefetch_accuracy import PrefetchAccuracy
from lodefs.proxy.cache.reader import CacheReader
from lodefs.proxy.fetch.cache_fill import Unit, cut_units
from lodefs.proxy.fetch.file_ranges import ChunkPosition, DatasetFile, FileRanges
from lodefs.proxy.fetch.flight import Follower
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.fetch.single_flight import Fetcher

PIECE_SIZE_BYTES = 1024 * 1024  # held by a reader at once
UNIT_SIZE_BYTES = 2 * 1024 * 1024  # smaller than for files, since the client gets units one by one
WAITING_MAX = 256  # nodes that wait for chunks of this node at once
ANNOUNCED_MAX = 1024  # announcements that are remembered
ANNOUNCED_S = 60.0  # the same announcement of another node says nothing new for this long


class ChunkReader:
    """Packs as this node can serve them, for use on the event loop only."""

    def __init__(
        self,
        ranges: FileRanges,
        reads: CacheReader,
        fetcher: Fetcher,
        indexes: PackIndexes,
        accuracy: PrefetchAccuracy,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ranges = ranges
        self._reads = reads
        self._fetcher = fetcher
        self._indexes = indexes
        self._accuracy = accuracy
        self._clock_s = clock_s
        self._waiting = 0
        self._announced: Lru[tuple[PackId, int, int], float] = Lru(ANNOUNCED_MAX)

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

    async def will_be_here(
        self, pack_index: PackIndexVersion, first: int, count: int, follower: Follower
    ) -> bool:
        """Whether ``is_here`` is true, now or in a moment. At most WAITING_MAX callers wait for
        that; others get the answer of now."""
        if self._waiting >= WAITING_MAX:
            return await self.is_here(pack_index, first, count, follower)
        self._waiting += 1
        try:
            async with asyncio.timeout(PARENT_WAIT_S):
                while True:
                    begins = self._fetcher.beginning(pack_index.index.pack_id)
                    if await self.is_here(pack_index, first, count, follower):
                        return True
                    await begins.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1

    async def is_here(
        self, pack_index: PackIndexVersion, first: int, count: int, follower: Follower
    ) -> bool:
        """Whether all these chunks are in the cache or on their way to it, and not from the node
        that asks."""
        pack = pack_index.index.pack_id
        coming = [self._fetcher.is_coming(pack, n, follower) for n in range(first, first + count)]
        # look only now, since chunks that were on their way may have arrived
        places = await self._reads.find(pack_index.index, first, count)
        return all(place is not None or comes for place, comes in zip(places, coming, strict=True))

    async def fetch_ahead(self, pack_index: PackIndexVersion, first: int, count: int) -> None:
        """Starts to fetch chunks from the store that another node has announced, as far as they
        exist and there is room: once, however many nodes announce them."""
        index = pack_index.index
        end = min(first + count, len(index))
        key, now_s = (index.pack_id, first, end), self._clock_s()
        is_known = now_s - (self._announced.get(key) or -math.inf) < ANNOUNCED_S
        if is_known or first >= end or self._accuracy.is_low:
            return
        self._announced.put(key, now_s)
        places = await self._reads.find(index, first, end - first)
        lacks = [place is None for place in places]
        whole = Unit(index.pack_id, first, end - first, from_origin=True, is_announced=True)
        for unit in cut_units(whole, pack_index, UNIT_SIZE_BYTES):
            if any(lacks[unit.first - first : unit.end - first]):
                self._ranges.ahead(pack_index, unit)

    async def chunks(
        self,
        pack_index: PackIndexVersion,
        first: int,
        count: int,
        follower: Follower | None = None,
        *,
        more_bytes: int = 0,
    ) -> AsyncGenerator[Buffer, None]:
        """Yields the verified raw bytes of chunks [first, first + count), in pieces of at most a
        MiB; to another node, which ``follower`` describes, as they come. If they are fetched, about
        ``more_bytes`` of the chunks after them are fetched, too. Raises: the errors of fetching;
        NotFound if the chunks were on their way to this node and do not come."""
        size_bytes = pack_index.index.raw_size(first, first + count)
        segment = Segment(pack_index.index.pack_id, first, count, size_bytes)
        file = DatasetFile((segment,))
        demand = _Demand(self._ranges, follower, more_bytes)
        at = 0
        try:
            while at < size_bytes:
                wanted = range(at, min(at + PIECE_SIZE_BYTES, size_bytes))
                piece, _ = await self._ranges.read(file, wanted, size_bytes, demand)
                at += len(piece)
                if follower is not None:
                    follower.got_bytes = at
                yield piece
        finally:
            if follower is not None:
                follower.has_left = True


class _Demand:
    """Fetches all that a reader of chunks wants, unit by unit."""

    def __init__(self, ranges: FileRanges, follower: Follower | None, more_bytes: int) -> None:
        self.follower = follower
        self._ranges = ranges
        self._more_bytes = more_bytes
        self._ahead: list[tuple[PackIndexVersion, Unit]] = []

    def unit(self, position: ChunkPosition) -> Unit:
        """Implements Demand."""
        pack_index, raw_offsets = position.pack_index, position.pack_index.index.raw_offsets
        more = bisect_right(raw_offsets, raw_offsets[position.chunk] + self._more_bytes) - 1
        count = max(position.segment_end, more) - position.chunk
        whole = Unit(position.pack, position.chunk, count, from_origin=self.follower is not None)
        unit, *ahead = cut_units(whole, pack_index, UNIT_SIZE_BYTES)
        self._ahead = [(pack_index, one) for one in ahead]
        return unit

    def started(self) -> None:
        """Implements Demand."""
        for pack_index, unit in self._ahead:
            self._ranges.ahead(pack_index, unit)
        self._ahead = []
