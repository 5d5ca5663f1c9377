"""Purged chunks that another node, cut off from the store, still sends."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lodefs.chunkstore.format.names import ChunkId
from lodefs.chunkstore.format.pack import PURGED, PackIndex
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.protocol.wire import Origin
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.proxy.cache.chunk_cache import Cache
from lodefs.proxy.fetch.cache_fill import CacheFill, Unit
from lodefs.proxy.fetch.cache_write import CacheWrite, FetchResult
from lodefs.proxy.fetch.known_damage import DamagedChunks
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.fetch.pack_source import NOBODY, FillListener, StorePacks
from lodefs.proxy.fetch.purged_chunks import PurgedChunks
from lodefs.proxy.metrics.counters import Counts
from lodefs.proxy.runtime.thread_pools import Pools
from tests.proxy.fetch.test_cache_fill import GoodPeers
from tests.proxy.fetch.test_compacted_packs import FILES, drop
from tests.support.proxy.rig import Rig


class CutOffPeers(GoodPeers):
    """Nodes with a pack as it was."""

    def __init__(self, rig: Rig, origin: StorePacks, pack_index: PackIndexVersion) -> None:
        super().__init__(rig.objects, origin)
        self._loaded = pack_index
        self._raws = origin.read(pack_index, 0, len(pack_index.index)).memory

    def read(
        self,
        pack_index: PackIndexVersion,
        first: int,
        count: int,
        listener: FillListener = NOBODY,
        write: CacheWrite | None = None,
    ) -> FetchResult:
        """As of PackSource."""
        assert pack_index.index.ids == self._loaded.index.ids
        raws = {n: self._raws[n] for n in range(first, first + count)}
        return FetchResult(memory=raws, origin=Origin.PEERS)


def test_they_are_not_taken(tmp_path: Path) -> None:
    """By a node that knows the purge and has an old index: it reads both from the store again,
    readers get no such bytes, nor does its cache; all else is there."""
    rig = Rig(tmp_path, FILES)
    ((pack, _), *_) = rig.maker._places.values()

    async def run() -> None:
        counts, damaged, pools, purged = Counts(), DamagedChunks(), Pools(), PurgedChunks()
        cache = Cache(rig.settings().cache, counts)
        origin = StorePacks(rig.objects, counts, damaged)
        pack_index = origin.index(pack)
        peers = CutOffPeers(rig, origin, pack_index)
        indexes = PackIndexes(peers, origin, cache.kv, pools, deadline_s=60.0)
        filler = CacheFill(cache, indexes, peers, origin, damaged, purged)
        count = len(pack_index.index)
        unit = Unit(pack, 0, count)
        before = filler.read(pack_index, unit).memory
        (number,) = [n for n, raw in before.items() if raw == FILES[b"c"]]
        drop(rig, b"c", codec=PURGED)
        purged.add([pack_index.index.chunk_id(number)])
        try:
            after = {n: raw for n, raw in before.items() if n != number}
            assert filler.read(pack_index, unit).memory == after
            filler.fill(pack_index, unit)
            places = cache.find(layout.chunk_keys(pack_index.index.ids, 0, count))
            assert [n for n, place in enumerate(places) if place is None] == [number]
            renewed = indexes.in_memory(pack)
            assert renewed is not None
            assert not purged.are_in(renewed.index, range(count))
        finally:
            await pools.close()
            cache.close()

    asyncio.run(run())


def test_what_is_remembered_is_bounded(tmp_path: Path) -> None:
    """The ids that were learned last stay."""
    rig = Rig(tmp_path, FILES)
    ((pack, _), *_) = rig.maker._places.values()
    index: PackIndex = StorePacks(rig.objects, Counts(), DamagedChunks()).index(pack).index
    purged = PurgedChunks(ids_max=2)
    assert not purged.are_in(index, range(len(index)))
    purged.add([index.chunk_id(0), ChunkId(bytes(32)), index.chunk_id(0), ChunkId(b"x" * 32)])
    assert purged.are_in(index, range(1))
    purged.add([ChunkId(b"y" * 32)])
    assert not purged.are_in(index, range(1))
