"""Large files become whole in the cache, whatever was read before; nothing is fetched for it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.nodecache import layout
from lodefs.chunkstore.protocol.wire import UsageReport
from lodefs.proxy.cache.chunk_cache import Cache, Flat
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.read import flat_completion
from lodefs.proxy.service.store_node import StoreNode
from tests.support.proxy.rig import MIB, REPO, Rig, chunk_of, file_of, read_path, run, until

BIG = random.Random(1).randbytes(2 * MIB)
REPEATED = BIG[: MIB // 2] * 4
CHUNK_SIZE_BYTES = 1 << 14
BLOWN = BIG[:CHUNK_SIZE_BYTES] * 128


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Completion does not wait for more to come."""
    monkeypatch.setattr(flat_completion, "PAUSE_S", 0.001)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    files = {b"big": BIG, b"repeated": REPEATED, b"blown": BLOWN}
    return Rig(tmp_path, files, chunk_size_bytes=CHUNK_SIZE_BYTES, pack_chunks=1000)


async def is_complete(node: StoreNode, path: bytes) -> bool:
    """Whether the cache has the file whole, when all work for it is done."""
    await until(lambda: not node.status()["in_flight_bytes"])
    await until(lambda: node.files._completion._task is None)
    file = await file_of(node, path)
    return node._cache.complete_flat(file.content_id) is not None


async def scatter(node: StoreNode, path: bytes, first: int = 0, count: int | None = None) -> None:
    """Has chunks of a file lie in slabs."""
    file = await file_of(node, path)
    known = await node.files._add_file(file)
    for segment in known.segments:
        pack_index = await node.packs.index(segment.pack, cached=False, from_origin=False)
        at, wanted = segment.first + first, segment.count - first if count is None else count
        async for _ in node.packs.chunks(pack_index, at, wanted):
            pass


async def report(node: StoreNode, path: bytes) -> None:
    """A mount tells that it read a file by chunks."""
    file = await file_of(node, path)
    commit = file.snapshot.commit
    await node.used(UsageReport([], 1, 1, REPO, commit, [file.entry.ino]))


def test_a_file_read_whole_becomes_whole(rig: Rig) -> None:
    """Though parts of it lie in slabs, since they came with other files."""

    async def work(node: StoreNode) -> None:
        await scatter(node, b"big", 10, 20)
        await scatter(node, b"big", 100, 3)
        assert await read_path(node, b"big", 50_000, 10) == BIG[50_000:50_010]
        assert await read_path(node, b"big") == BIG
        assert await is_complete(node, b"big")
        assert await read_path(node, b"big") == BIG

    run(rig, work)


def test_a_file_that_lies_in_slabs_becomes_whole_when_it_is_read(rig: Rig) -> None:
    """A mount that reads it by chunks tells the proxy, which copies it without asking the store."""

    async def work(node: StoreNode) -> None:
        await scatter(node, b"big")
        assert not await is_complete(node, b"big")
        rig.reset()
        await report(node, b"big")
        assert await is_complete(node, b"big")
        assert not rig.objects.ranges
        assert await read_path(node, b"big") == BIG

    run(rig, work)


def test_a_file_of_repeated_chunks_becomes_whole(rig: Rig) -> None:
    """A chunk that stands in a file several times is written to all its places."""

    async def work(node: StoreNode) -> None:
        assert await read_path(node, b"repeated") == REPEATED
        assert await is_complete(node, b"repeated")
        assert await read_path(node, b"repeated") == REPEATED

    run(rig, work)


def test_nothing_is_fetched_to_complete_a_file(rig: Rig) -> None:
    """A file of which the cache lacks a chunk stays as it is."""

    async def work(node: StoreNode) -> None:
        await scatter(node, b"big", 0, 100)
        rig.reset()
        await report(node, b"big")
        assert not await is_complete(node, b"big")
        assert not rig.objects.ranges

    run(rig, work)


def test_nothing_is_evicted_to_complete_a_file(rig: Rig) -> None:
    """A cache that is full enough keeps what it has."""

    async def work(node: StoreNode) -> None:
        await scatter(node, b"big")
        node._cache.settings = CacheSettings(node._cache.settings.path, 3 * MIB)
        await report(node, b"big")
        assert not await is_complete(node, b"big")
        assert not node._cache.flats

    run(rig, work)


def test_wrong_bytes_are_not_copied(rig: Rig) -> None:
    """A slab that somebody wrote to completes no file; reads still give the right bytes."""

    async def work(node: StoreNode) -> None:
        await scatter(node, b"big")
        (slab,) = node._cache.files.values()
        with slab.path.open("r+b") as file:
            file.seek(MIB)
            file.write(os.urandom(100))
        await report(node, b"big")
        assert not await is_complete(node, b"big")

    run(rig, work)


def test_reports_of_nonsense_are_harmless(rig: Rig) -> None:
    """Unknown repositories, commits and numbers complete nothing."""

    async def work(node: StoreNode) -> None:
        file = await file_of(node, b"big")
        for repo, commit, ino in (
            ("no/such", file.snapshot.commit, 1),
            (REPO, "zz", 1),
            (REPO, file.snapshot.commit, 1),
            (REPO, file.snapshot.commit, 4711),
        ):
            await node.used(UsageReport([], 0, 0, repo, commit, [ino]))
        assert not node._cache.files

    run(rig, work)


def test_a_chunk_that_is_named_very_often_fills_no_cache(rig: Rig) -> None:
    """Who reads a byte of such a file has not a hundred times as much written as was fetched."""

    async def work(node: StoreNode) -> None:
        await read_path(node, b"blown", len(BLOWN) - 1, 1)
        await report(node, b"blown")
        assert not await is_complete(node, b"blown")
        assert node._cache.used_bytes < len(BLOWN) / 2
        assert await read_path(node, b"blown") == BLOWN

    run(rig, work)


def test_chunks_are_found_where_they_were(rig: Rig) -> None:
    """A completed file that is evicted takes nothing with it: what lay in slabs lies there yet."""

    async def work(node: StoreNode) -> None:
        await scatter(node, b"big")
        await report(node, b"big")
        assert await is_complete(node, b"big")
        (flat,) = node._cache.flats.values()
        node._cache.eviction.drop(flat, "a test")
        rig.reset()
        assert await read_path(node, b"big") == BIG
        assert not rig.objects.ranges

    run(rig, work)


def test_a_missing_chunk_costs_no_further_look(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the cache lacks the chunk that it lacked before, its parts are not looked through."""
    looks = []
    gaps = Cache.gaps
    monkeypatch.setattr(Cache, "gaps", lambda *given: looks.append(1) or gaps(*given))

    async def work(node: StoreNode) -> None:
        await scatter(node, b"big", 0, 100)
        for _ in range(3):
            await report(node, b"big")
            assert not await is_complete(node, b"big")
        assert len(looks) == 1
        await scatter(node, b"big", 100)
        await report(node, b"big")
        assert await is_complete(node, b"big")

    run(rig, work)


def test_a_chunk_that_comes_again_takes_no_check_from_others(rig: Rig) -> None:
    """The row of a run, by which its bytes are checked, is not replaced by that of a shorter one;
    a longer one takes its place."""
    starts = range(0, 5 * CHUNK_SIZE_BYTES, CHUNK_SIZE_BYTES)
    raws = [BIG[start : start + CHUNK_SIZE_BYTES] for start in starts]
    chunks = [chunk_of(raw, at) for raw, at in zip(raws, starts, strict=True)]

    async def work(node: StoreNode) -> None:
        cache = node._cache
        for count, covered in ((3, 3), (1, 3), (5, 5)):
            assert cache.store(chunks[:count], Flat(digest_of(BIG), len(BIG)))
            (file,) = cache.flats.values()
            rows = list(cache.kv.scan(layout.run_prefix(file.number)))
            assert [len(layout.decode_run_row(value)[1]) for _, value in rows] == [covered]

    run(rig, work)
