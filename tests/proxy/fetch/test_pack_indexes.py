"""Loads of packs' indexes at once: which of them are one."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import cast

from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.proxy.cache.chunk_cache import Cache
from lodefs.proxy.fetch.known_damage import DamagedChunks
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.fetch.pack_source import PackSource, StorePacks
from lodefs.proxy.metrics.counters import Counts
from lodefs.proxy.runtime.thread_pools import Pools
from tests.support.proxy.rig import Rig, until


class SilentOwner:
    """Another node, which owns every pack, and answers once it ``may_answer``."""

    def __init__(self, origin: StorePacks) -> None:
        self._origin = origin
        self.may_answer = threading.Event()
        self.asked: list[range] = []

    def waits_for_peers(self, _pack_id: PackId) -> bool:
        return True

    def reads_for_peers(self, _pack_id: PackId) -> bool:
        return False

    def index(self, pack_id: PackId, ahead: range = range(0)) -> PackIndexVersion:
        self.asked.append(ahead)
        assert self.may_answer.wait(60)
        return self._origin.index(pack_id)


def test_an_owner_gets_each_announcement(tmp_path: Path) -> None:
    """Also one of the same pack that is made while another waits for the answer; a reader's load
    waits for none of them. A load for another node waits for no node."""
    rig = Rig(tmp_path, {b"a": b"data"})
    ((pack, _), *_) = rig.maker._places.values()

    async def run() -> None:
        counts, pools = Counts(), Pools()
        cache = Cache(rig.settings().cache, counts)
        origin = StorePacks(rig.objects, counts, DamagedChunks())
        owner = SilentOwner(origin)
        packs = cast("PackSource", owner)
        indexes = PackIndexes(packs, origin, cache.kv, pools, deadline_s=60.0)
        try:
            ahead = [range(3), range(3, 6), range(3)]
            async with asyncio.TaskGroup() as tasks:
                for one in ahead:
                    tasks.create_task(indexes.announce(pack, one))
                reads = [tasks.create_task(indexes.get(pack)) for _ in range(2)]
                await until(lambda: len(owner.asked) == 3)
                assert sorted(map(len, owner.asked)) == [0, 3, 3]
                assert len(set(owner.asked)) == 3
                assert (await indexes.get(pack, from_origin=True)).index.pack_id == pack
                assert not any(read.done() for read in reads)
                owner.may_answer.set()
        finally:
            owner.may_answer.set()
            await pools.close()
            cache.close()

    asyncio.run(run())
