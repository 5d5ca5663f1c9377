"""Fetching chunks that are damaged: what is whole, or whole elsewhere, is served."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.objects.interface import ObjectStore, Part
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.proxy.cache.chunk_cache import Cache
from lodefs.proxy.fetch.cache_fill import CacheFill, Unit
from lodefs.proxy.fetch.cache_write import CacheWrite, FetchResult
from lodefs.proxy.fetch.known_damage import DamagedChunks
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.fetch.pack_source import NOBODY, FillListener, StorePacks
from lodefs.proxy.metrics.counters import Counts
from lodefs.proxy.runtime.thread_pools import Pools
from lodefs.proxy.service.store_node import StoreNode
from tests.support.proxy.rig import MIB, Rig, read_path

CHUNK_SIZE_BYTES = 1000
NAMES = [b"a", b"b", b"c", b"d", b"e"]
FILES = {name: random.Random(name).randbytes(900) for name in NAMES}
BIG = random.Random(1).randbytes(2 * MIB)


def damage(rig: Rig, *bad: bytes) -> None:
    """Has the store send zeros instead of some bytes of its packs."""

    def answer(key: str, part: Part) -> Part:
        data = bytes(part.data)
        if key.startswith(keys.PACKS):
            for one in bad:
                data = data.replace(one, bytes(len(one)))
        return Part(data, part.object_size_bytes, part.etag)

    rig.objects.answer = answer


async def outcomes(node: StoreNode, names: list[bytes]) -> list[bytes | None]:
    """What files hold; None for those that are damaged."""
    found: list[bytes | None] = []
    for name in names:
        try:
            found.append(await read_path(node, name))
        except Corrupt:
            found.append(None)
    return found


@pytest.mark.parametrize("order", [NAMES, NAMES[::-1], [b"b", b"e", b"c", b"a", b"d"]])
@pytest.mark.parametrize("bad", [[b"b"], [b"a", b"d"], [b"a", b"b", b"d"]])
def test_damage_costs_no_neighbours(tmp_path: Path, order: list[bytes], bad: list[bytes]) -> None:
    """Of small files that come together, only those whose own bytes are wrong cannot be read,
    whatever is read first, also while the damage is remembered."""
    rig = Rig(tmp_path, FILES, chunk_size_bytes=CHUNK_SIZE_BYTES)
    damage(rig, *(FILES[name] for name in bad))

    async def run() -> None:
        async with rig.node() as node:
            wanted = [None if name in bad else FILES[name] for name in order]
            for _ in range(2):
                assert await outcomes(node, order) == wanted

    asyncio.run(run())


def test_damage_costs_no_readers_who_wait_together(tmp_path: Path) -> None:
    """Readers who wait for one fetch that fails by one of its chunks get what they asked for, but
    for the one who asked for that chunk; and the store is not asked for each of them."""
    files = {b"%03d" % n: random.Random(n).randbytes(900) for n in range(60)}
    rig = Rig(tmp_path, files, chunk_size_bytes=CHUNK_SIZE_BYTES)
    damage(rig, files[b"030"])

    async def run() -> None:
        async with rig.node() as node:
            await node.names.entry(await node.names.snapshot("data/set", "main"), b"000")
            rig.reset()
            found = await asyncio.gather(*(outcomes(node, [name]) for name in files))
            assert [one for (one,) in found] == [
                None if name == b"030" else content for name, content in files.items()
            ]
            assert len(rig.objects.ranges) <= 10

    asyncio.run(run())


def test_damage_costs_no_other_part_of_a_file(tmp_path: Path) -> None:
    """What lies before and after the wrong bytes of a large file can be read."""
    rig = Rig(tmp_path, {b"big": BIG}, chunk_size_bytes=20_000, pack_chunks=300)
    first = 50 * 20_000
    damage(rig, BIG[first : first + 20_000])

    async def run() -> None:
        async with rig.node() as node:
            end = first + 20_000
            assert await read_path(node, b"big", end, 1000) == BIG[end : end + 1000]
            assert await read_path(node, b"big", first - 1000, 1000) == BIG[first - 1000 : first]
            assert await read_path(node, b"big", 0, first) == BIG[:first]
            assert await read_path(node, b"big", end, len(BIG) - end) == BIG[end:]
            with pytest.raises(Corrupt, match="chunk"):
                await read_path(node, b"big", first, 1)

    asyncio.run(run())


def test_damage_costs_other_nodes_no_neighbours(tmp_path: Path) -> None:
    """A chunk that another node asks for is fetched, though one that came along is wrong."""
    rig = Rig(tmp_path, FILES, chunk_size_bytes=CHUNK_SIZE_BYTES)
    damage(rig, FILES[b"c"])
    ((pack, number), *_) = rig.maker._places.values()

    async def run() -> None:
        async with rig.node() as node:
            pack_index = await node.packs.index(pack, cached=False, from_origin=True)
            pieces = node.packs.chunks(pack_index, number, 2, more_bytes=MIB)
            data = b"".join([bytes(piece) async for piece in pieces])
            assert data == FILES[b"a"] + FILES[b"b"]

    asyncio.run(run())


class GoodPeers:
    """Other nodes that have what the store has damaged, and answer unless they are away."""

    def __init__(self, objects: ObjectStore, origin: StorePacks) -> None:
        self._whole = StorePacks(objects, Counts(), DamagedChunks())
        self._origin = origin
        self.is_away = False
        self.url = origin.url

    def _source(self) -> StorePacks:
        return self._origin if self.is_away else self._whole

    def waits_for_peers(self, pack_id: PackId) -> bool:
        """As of PackSource."""
        return True

    def reads_for_peers(self, pack_id: PackId) -> bool:
        """As of PackSource."""
        return False

    def index(self, pack_id: PackId, ahead: range = range(0)) -> PackIndexVersion:
        """As of PackSource."""
        return self._source().index(pack_id, ahead)

    def read(
        self,
        pack_index: PackIndexVersion,
        first: int,
        count: int,
        listener: FillListener = NOBODY,
        write: CacheWrite | None = None,
    ) -> FetchResult:
        """As of PackSource: never elsewhere."""
        return self._source().read(pack_index, first, count, listener)


@asynccontextmanager
async def owner(rig: Rig) -> AsyncIterator[tuple[CacheFill, PackIndexes, GoodPeers]]:
    """The fetching parts of a node that is a pack's owner, over the store of a rig."""
    counts, damaged, pools = Counts(), DamagedChunks(), Pools()
    cache = Cache(rig.settings().cache, counts)
    origin = StorePacks(rig.objects, counts, damaged)
    peers = GoodPeers(rig.objects.below, origin)
    indexes = PackIndexes(peers, origin, cache.kv, pools, deadline_s=60.0)
    try:
        yield CacheFill(cache, indexes, peers, origin, damaged), indexes, peers
    finally:
        await pools.close()
        cache.close()


def test_a_store_that_is_damaged_does_not_hide_peers(tmp_path: Path) -> None:
    """A node that found a chunk damaged in the store, for a peer, still reads it from other nodes;
    where these have nothing, it fails without a read of the store."""
    rig = Rig(tmp_path, FILES, chunk_size_bytes=CHUNK_SIZE_BYTES)
    ((pack, number), *_) = rig.maker._places.values()

    async def run() -> None:
        async with owner(rig) as (filler, indexes, peers):
            pack_index, unit = await indexes.get(pack), Unit(pack, number, 1)
            damage(rig, FILES[b"a"])
            with pytest.raises(Corrupt, match="wrong bytes twice"):
                filler.read(pack_index, replace(unit, from_origin=True))
            assert filler.read(pack_index, unit).memory == {number: FILES[b"a"]}
            peers.is_away, gets = True, rig.objects.gets
            for from_origin in (False, True):
                with pytest.raises(Corrupt, match="found a moment ago"):
                    filler.read(pack_index, replace(unit, from_origin=from_origin))
            assert rig.objects.gets == gets

    asyncio.run(run())


def test_an_index_that_is_damaged_does_not_hide_peers(tmp_path: Path) -> None:
    """A node that found a pack's index damaged in the store, for a peer, still reads it from other
    nodes; where these have nothing, it fails without a read of the store."""
    rig = Rig(tmp_path, FILES, chunk_size_bytes=CHUNK_SIZE_BYTES)
    ((pack, _), *_) = rig.maker._places.values()
    rig.objects.answer = lambda _key, part: Part(
        bytes(len(part.data)), part.object_size_bytes, part.etag
    )

    async def run() -> None:
        async with owner(rig) as (_filler, indexes, peers):
            with pytest.raises(Corrupt):
                await indexes.get(pack, from_origin=True)
            peers.is_away, gets = True, rig.objects.gets
            for from_origin in (False, True):
                with pytest.raises(Corrupt, match="found a moment ago"):
                    await indexes.get(pack, from_origin=from_origin)
            assert rig.objects.gets == gets
            peers.is_away = False
            assert len((await indexes.get(pack)).index) >= len(NAMES)

    asyncio.run(run())
