"""Reads of a set that is larger than the cache, through a whole node."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path

import pytest

from lodefs.chunkstore.protocol.wire import UsageReport
from lodefs.proxy.cache.prefetch_accuracy import PrefetchAccuracy
from lodefs.proxy.fetch import kept_flights
from lodefs.proxy.metrics.counters import Counter
from lodefs.proxy.node import SnapshotFile
from lodefs.proxy.read import refault_tracker
from lodefs.proxy.service.store_node import StoreNode
from tests.support.proxy.rig import MIB, Rig, file_of, read_file

FILE_BYTES = 50_000
SMALL = [b"small/%03d" % n for n in range(480)]  # 24 MB, in packs of 2 MB
CACHE_BYTES = 8 * MIB


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    source = random.Random(1)
    files = {path: source.randbytes(FILE_BYTES) for path in SMALL}
    made = Rig(tmp_path_factory.mktemp("rig"), files, chunk_size_bytes=FILE_BYTES, pack_chunks=40)
    seconds = itertools.count(0, 10)  # no pause for lack of space lasts
    made.clock_s = lambda: float(next(seconds))
    return made


async def fetched_of_shuffled(node: StoreNode, rig: Rig, epochs: int) -> list[float]:
    """Bytes fetched for each byte asked, by epoch."""
    source = random.Random(2)
    files: dict[bytes, SnapshotFile] = {path: await file_of(node, path) for path in SMALL}
    ratios = []
    for _ in range(epochs):
        rig.reset()
        for path in source.sample(SMALL, len(SMALL)):
            assert (await read_file(node, files[path]))[0] == rig.files[path]
        fetched = sum(size for _, _, size in rig.objects.ranges)
        ratios.append(fetched / (FILE_BYTES * len(SMALL)))
    return ratios


def test_shuffled_files_of_a_set_of_three_caches_are_fetched_about_once(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the packs are known, an epoch fetches what it reads; before, and without the share of
    what was read, several times that."""
    # of a set as small as this one, most of it lies near to one of the last misses
    monkeypatch.setattr(refault_tracker, "FOLLOWS_SIZE_BYTES", 0)
    # what found no room is kept in memory, which has room for all of so small a set
    monkeypatch.setattr(kept_flights, "SIZE_BYTES_MAX", 0)

    async def ratios() -> tuple[list[float], int]:
        async with rig.node(rig.settings(CACHE_BYTES)) as node:
            return await fetched_of_shuffled(node, rig, 2), node.counts.values[
                Counter.EVICTED_UNREAD_BYTES
            ]

    rig.directory = tmp_path / "sparing"
    (_, later), unread_bytes = asyncio.run(ratios())
    assert later < 1.5
    monkeypatch.setattr(PrefetchAccuracy, "is_low", False)
    rig.directory = tmp_path / "before"
    (_, later), unread_before_bytes = asyncio.run(ratios())
    assert later > 3
    assert unread_bytes < unread_before_bytes / 3


def test_files_in_order_come_in_few_requests(rig: Rig, tmp_path: Path) -> None:
    """After a shuffled epoch has damaged the share, who reads in order still has few requests."""

    async def run() -> None:
        async with rig.node(rig.settings(CACHE_BYTES)) as node:
            await fetched_of_shuffled(node, rig, 1)
            assert node._cache.prefetch_accuracy.is_low
            rig.reset()
            for path in SMALL:
                file = await file_of(node, path)
                assert (await read_file(node, file))[0] == rig.files[path]
            assert len(rig.objects.ranges) < len(SMALL) // 4

    rig.directory = tmp_path
    asyncio.run(run())


def test_a_set_that_fits_never_comes_twice(rig: Rig, tmp_path: Path) -> None:
    """With room for all, a shuffled epoch takes few requests, and the next one none."""

    async def run() -> None:
        async with rig.node(rig.settings(64 * MIB)) as node:
            first, second = await fetched_of_shuffled(node, rig, 2)
            assert (first, second) == (pytest.approx(1.0, abs=0.05), 0.0)
            assert node.counts.values[Counter.EVICTED_UNREAD_BYTES] == 0

    rig.directory = tmp_path
    asyncio.run(run())


def test_what_mounts_read_counts_as_read(rig: Rig, tmp_path: Path) -> None:
    """A report spreads its bytes over its files; the rest of what is evicted is unread."""

    async def run() -> None:
        async with rig.node(rig.settings(64 * MIB)) as node:
            for path in SMALL[:10]:
                await read_file(node, await file_of(node, path))
            (slab,) = node._cache.files.values()
            unread_bytes = slab.unread_bytes
            assert 0 < unread_bytes < slab.present_bytes
            await node.used(UsageReport([slab.number], 1, 600, stored_bytes=400))
            assert slab.unread_bytes == unread_bytes - 1000
            node._cache.eviction.free(64 * MIB)
            assert node.counts.values[Counter.EVICTED_UNREAD_BYTES] == unread_bytes - 1000

    rig.directory = tmp_path
    asyncio.run(run())
