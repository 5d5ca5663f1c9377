"""A cache whose disk stands still or is slow: readers get their bytes from memory, and what waits
for the disk is bounded."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from lodefs.chunkstore.protocol.cache_control import WarmRequest
from lodefs.proxy.cache.chunk_cache import Cache
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.metrics.counters import Counter, Counts
from lodefs.proxy.service.store_node import StoreNode
from tests.support.proxy.rig import MIB, REPO, Rig, ended, read_path, until

LARGE = random.Random(1).randbytes(24 * MIB)
SMALL = {b"small/%02d" % n: random.Random(n).randbytes(60_000) for n in range(60)}
FILES = {b"large": LARGE, **SMALL}


class Disk:
    """The disk of a cache: whoever writes data waits while it stands still."""

    def __init__(self) -> None:
        self.moves = threading.Event()
        self.moves.set()

    def cache(self, settings: CacheSettings, counts: Counts) -> Cache:
        """A cache on it that lets at most 2 MiB wait."""
        settings = replace(settings, unwritten_size_bytes_max=2 * MIB)
        return Cache(settings, counts, step=self._step)

    def _step(self, name: str) -> None:
        if name == "data":
            assert self.moves.wait(60)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, FILES, chunk_size_bytes=90_000, pack_chunks=512)


async def read_all(node: StoreNode) -> None:
    """Every file, the small ones by readers at the same time."""
    assert await read_path(node, b"large") == LARGE
    found = await asyncio.gather(*(read_path(node, name) for name in SMALL))
    assert dict(zip(SMALL, found, strict=True)) == SMALL


def test_a_disk_that_stands_still_holds_up_nobody(rig: Rig, disk: Disk) -> None:
    """All is read right while not one write ends; little waits for the disk, the rest is counted as
    left out; what is read in pieces and ahead comes from the store about once. When the disk moves
    again, everything is cached as ever."""

    async def run() -> None:
        async with rig.node(cache=disk.cache) as node:
            disk.moves.clear()
            try:
                await read_all(node)
                status = node.status()
                assert 0 < int(str(status["unwritten_bytes"])) <= 8 * MIB
                assert node.counts.values[Counter.LEFT_OUT_BYTES] > 8 * MIB
                fetched_bytes = sum(size for _, _, size in rig.objects.ranges)
                assert fetched_bytes < 1.5 * sum(map(len, FILES.values()))
            finally:
                disk.moves.set()
            await until(lambda: not node._cache.gate.unwritten_bytes)
            for _ in range(3):  # what is left in memory of the time before goes by and by
                node._fetcher._kept.clear()
                await read_all(node)
            flat = next(iter(node._cache.flats.values()))
            assert flat.path.read_bytes() == LARGE

    asyncio.run(run())


def test_memory_of_what_is_left_out_is_bounded(rig: Rig, disk: Disk) -> None:
    """What is kept in memory in place of the cache goes after a while, and is never more than a few
    units."""

    async def run() -> None:
        async with rig.node(cache=disk.cache) as node:
            disk.moves.clear()
            try:
                assert await read_path(node, b"large") == LARGE
                kept = node._fetcher._kept
                assert 0 < kept.size_bytes <= 64 * MIB
                kept.clear()
                assert (kept.size_bytes, kept.unread_bytes) == (0, 0)
                assert await read_path(node, b"large", 20 * MIB, 1000) == LARGE[20 * MIB :][:1000]
            finally:
                disk.moves.set()

    asyncio.run(run())


def test_a_warm_job_waits_for_the_disk(rig: Rig, disk: Disk) -> None:
    """A job that is to fetch a dataset to the disk leaves nothing out: it goes on when the disk
    does."""

    async def run() -> None:
        async with rig.node(cache=disk.cache) as node:
            disk.moves.clear()
            job = await node.cache_control.warm(WarmRequest(REPO, "main"))
            await until(node._cache.gate.is_slow)
            disk.moves.set()
            status = await ended(node, job)
            assert (status.state, status.errors) == ("done", [])
            asked = len(rig.objects.ranges)
            for name, content in FILES.items():
                assert await read_path(node, name) == content
            assert len(rig.objects.ranges) == asked

    asyncio.run(run())
