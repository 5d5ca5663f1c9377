"""Packs that are compacted while a node knows them from before: readers notice nothing."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Corrupt, Purged
from lodefs.chunkstore.format.journal import DeadChunks
from lodefs.chunkstore.format.pack import DROPPED, PURGED
from lodefs.chunkstore.maintenance.compact import drop_all
from lodefs.chunkstore.system.rate import Rate
from lodefs.proxy.data.processes import DataSettings
from lodefs.proxy.service.store_node import StoreNode
from tests.proxy.fetch.test_data_plane import FILES as MANY
from tests.proxy.fetch.test_data_plane import DiskRig
from tests.support.proxy.rig import REPO, Rig, read_path, run

NAMES = [b"a", b"b", b"c", b"d", b"e"]
FILES = {name: random.Random(name).randbytes(900) for name in NAMES}


def drop(rig: Rig, *names: bytes, codec: int = DROPPED) -> None:
    """Writes the packs of small files again without their chunks."""
    packs = rig.store.packs
    entries = dict(packs.walk(rig.store.commit(REPO, rig.commit).root))
    for name in names:
        [segment] = entries[name].segments
        dead = DeadChunks(segment.pack, ((1 << segment.count) - 1) << segment.first)
        with ThreadPoolExecutor(1) as executor:
            assert sum(drop_all(rig.objects, [dead], codec, executor, Rate(None))) > 0


def test_a_node_that_knows_the_pack_from_before(tmp_path: Path) -> None:
    """It meets the new object, reads its index, and goes on; what is gone is not read ahead for
    anybody, and a file that is gone itself is named as lost."""
    rig = Rig(tmp_path, FILES)

    async def work(node: StoreNode) -> None:
        assert await read_path(node, b"a") == FILES[b"a"]
        drop(rig, b"b", b"d")
        for name in (b"c", b"e", b"a"):
            assert await read_path(node, name) == FILES[name]
        for name in (b"b", b"d"):
            with pytest.raises(Corrupt, match="gc"):
                await read_path(node, name)

    run(rig, work)


@pytest.mark.parametrize("is_known", [True, False])
def test_what_was_purged_is_named_so(tmp_path: Path, *, is_known: bool) -> None:
    """Not as damage, by a node that knew the pack and by one that did not."""
    rig = Rig(tmp_path, FILES)

    async def work(node: StoreNode) -> None:
        if is_known:
            assert await read_path(node, b"a") == FILES[b"a"]
        drop(rig, b"c", codec=PURGED)
        with pytest.raises(Purged, match="purged"):
            await read_path(node, b"c")
        assert await read_path(node, b"d") == FILES[b"d"]

    run(rig, work)


@pytest.mark.parametrize("by_processes", [True, False])
def test_all_that_is_left_is_read_right(tmp_path: Path, *, by_processes: bool) -> None:
    """Large and small files around chunks that are gone are right, cold and warm, whoever fetches
    them."""
    rig = DiskRig(tmp_path)
    gone = [name for n, name in enumerate(sorted(MANY)) if name.startswith(b"small/") and n % 3]

    async def work() -> None:
        data = rig.data(DataSettings(1)) if by_processes else None
        async with rig.node(data=data) as node:
            await read_path(node, b"small/00", 0, 10)
            drop(rig, *gone)
            for _ in range(2):
                for name, content in MANY.items():
                    if name not in gone:
                        assert await read_path(node, name) == content

    asyncio.run(work())
