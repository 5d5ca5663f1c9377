"""Contents: reads under eviction, no space, damage on disk, shared chunks and awkward segments."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.format.names import PackId, digest_of
from lodefs.chunkstore.format.tree import Kind, Segment, TreeEntry
from lodefs.chunkstore.repo.pack_reader import read_index
from lodefs.proxy.cache.chunk_cache import Cache
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.fetch.cache_fill import Unit, cut_units
from lodefs.proxy.fetch.cache_write import CacheTarget
from lodefs.proxy.metrics.counters import Counter, Counts
from lodefs.proxy.read.file_reader import SEGMENTS_MAX
from lodefs.proxy.service.store_node import NodeSettings
from tests.support.chunkstore.packs import pack_id_of
from tests.support.proxy.rig import MIB, REPO, Rig, file_of, read_path, until

BIGS = {b"big/%d" % n: random.Random(n).randbytes(MIB + n * 300_000) for n in range(4)}
SMALLS = {b"small/%d" % n: random.Random(50 + n).randbytes(3_000 * n) for n in range(60)}
FILES = {**BIGS, **SMALLS}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, FILES, chunk_size_bytes=20_000, pack_chunks=40)


@pytest.mark.parametrize("size_bytes_max", [MIB, 3 * MIB])
def test_random_reads_under_eviction_are_right(rig: Rig, size_bytes_max: int) -> None:
    """Many readers of more than the cache holds: always the right bytes, never over the limit."""

    async def reader(node: object, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(40):
            path, content = rng.choice(list(FILES.items()))
            first = rng.randrange(len(content) + 1)
            size = min(rng.choice([1, 5_000, 200_000, MIB]), len(content) - first)
            got = await read_path(node, path, first, size)  # type: ignore[arg-type]
            assert got == content[first : first + size]

    async def run() -> None:
        async with rig.node(rig.settings(size_bytes_max)) as node:
            await asyncio.gather(*(reader(node, seed) for seed in range(6)))
            assert node.counts.values[Counter.EVICTED_FILES] > 0
            used = node.status()["cache_used_bytes"]
            assert isinstance(used, int)
            assert used <= size_bytes_max

    asyncio.run(run())


def test_a_file_evicted_while_it_is_read_goes_on(rig: Rig) -> None:
    """A reader in the middle of a file whose cache file goes gets the rest, and all of it right."""

    async def run() -> None:
        async with rig.node() as node:
            await read_path(node, b"big/3")
            file = await file_of(node, b"big/3")
            stream = await node.files.open(file, 0, file.entry.size_bytes)
            pieces = [bytes(stream.first)]
            node._cache.eviction.free(100 * MIB)
            node._cache.trim()
            async for piece in stream:
                pieces.append(bytes(piece))
                node._cache.eviction.free(100 * MIB)
                node._cache.trim()
            await stream.aclose()
            assert b"".join(pieces) == BIGS[b"big/3"]
            assert len(pieces) > 1

    asyncio.run(run())


@pytest.mark.parametrize("where", ["create", "data", "rows"])
def test_a_full_disk_never_reaches_a_reader(rig: Rig, where: str) -> None:
    """Where nothing can be kept, everything is served all the same, big and small."""

    def step(name: str) -> None:
        if name == where:
            raise OSError(errno.ENOSPC, "No space left on device")

    def cache(settings: CacheSettings, counts: Counts) -> Cache:
        return Cache(settings, counts, step=step)

    async def run() -> None:
        async with rig.node(cache=cache) as node:
            for path, content in FILES.items():
                assert await read_path(node, path) == content
            assert node.status()["cache_used_bytes"] == 0
            assert node.counts.values[Counter.UNCACHED_BYTES] >= sum(map(len, BIGS.values()))

    asyncio.run(run())


@pytest.mark.parametrize("harm", ["unlink", "truncate"])
def test_a_cache_file_that_was_tampered_with_is_fetched_again(rig: Rig, harm: str) -> None:
    """Files that were removed or cut behind the proxy's back are noticed and replaced."""

    async def run() -> None:
        async with rig.node() as node:
            for path in (b"big/0", b"small/9"):
                await read_path(node, path)
        for file in (rig.directory / "cache").glob("[fs]*/*/*"):
            file.unlink() if harm == "unlink" else file.write_bytes(b"")
        async with rig.node() as node:
            for path in (b"big/0", b"small/9"):
                assert await read_path(node, path) == FILES[path]
                assert await read_path(node, path) == FILES[path]
            assert node.counts.values[Counter.CACHE_CORRUPT] == 2

    asyncio.run(run())


def test_bits_flipped_by_a_power_cut_reach_nobody(rig: Rig) -> None:
    """After a reboot, chunks of files that were not synced are checked before they are served."""

    def in_boot(boot: bytes) -> Callable[[CacheSettings, Counts], Cache]:
        return lambda settings, counts: Cache(settings, counts, boot=boot)

    async def run() -> None:
        async with rig.node(cache=in_boot(b"one.............")) as node:
            for path in (b"big/1", b"small/9"):
                await read_path(node, path)
            rows = list(node._cache.kv.scan(b"f"))
        for file in (rig.directory / "cache").glob("[fs]*/*/*"):
            data = bytearray(file.read_bytes())
            data[1000] ^= 4
            file.chmod(0o644)
            file.write_bytes(data)
        cache = Cache(rig.settings().cache, Counts())
        cache.kv.write(rows)  # as before the clean end: not known to be on disk
        cache.close()
        async with rig.node(
            cache=in_boot(b"two............."),
        ) as node:
            for path in (b"big/1", b"small/9"):
                assert await read_path(node, path) == FILES[path]
            assert node.counts.values[Counter.CACHE_CORRUPT] == 2

    asyncio.run(run())


def test_a_second_version_reads_shared_chunks_from_the_first(rig: Rig) -> None:
    """Of a changed big file only the changed chunk is fetched; the others are read where they
    are, and nothing is stored twice."""
    old = BIGS[b"big/2"]
    new = old[:40_000] + random.Random(99).randbytes(20_000) + old[60_000:]

    async def run() -> None:
        async with rig.node() as node:
            await read_path(node, b"big/2")
            used = node.status()["cache_used_bytes"]
            rig.maker.commit(REPO, {b"big/2": new}, branch="two")
            await node.names.entry(await node.names.snapshot(REPO, "two"), b"big/2")
            rig.reset()
            assert await read_path(node, b"big/2", rev="two") == new
            assert sum(size for _, _, size in rig.objects.ranges) == 20_000
            assert node.status()["cache_used_bytes"] == used + 20_000  # type: ignore[operator]

    asyncio.run(run())


def test_small_files_come_with_their_neighbours(rig: Rig) -> None:
    """Reading many cold small files takes far fewer requests than files."""

    async def run() -> None:
        async with rig.node() as node:
            await node.names.entry(await node.names.snapshot(REPO, "main"), b"small/1")
            rig.reset()
            order = list(SMALLS)
            random.Random(8).shuffle(order)
            for path in order:
                assert await read_path(node, path) == SMALLS[path]
            assert len(rig.objects.ranges) < len(SMALLS)

    asyncio.run(run())


def test_sequential_reads_come_in_large_requests(rig: Rig) -> None:
    """A file read in small steps costs few requests, and no byte comes twice."""
    content = BIGS[b"big/3"]

    async def run() -> None:
        async with rig.node() as node:
            await node.names.entry(await node.names.snapshot(REPO, "main"), b"big/3")
            rig.reset()
            for first in range(0, len(content), 10_000):
                size = min(10_000, len(content) - first)
                got = await read_path(node, b"big/3", first, size)
                assert got == content[first : first + size]
            assert sum(size for _, _, size in rig.objects.ranges) == len(content)
            assert len(rig.objects.ranges) < 20

    asyncio.run(run())


def test_what_has_come_is_a_hit_without_a_look_at_the_index(rig: Rig) -> None:
    """A big file's bytes are known by their place as soon as they land, those read ahead too; the
    next readers need not ask where they lie."""
    content = BIGS[b"big/3"]

    async def run() -> None:
        async with rig.node() as node:
            file = await file_of(node, b"big/3")
            assert await read_path(node, b"big/3", 0, 50_000) == content[:50_000]
            assert await read_path(node, b"big/3", 50_000, 50_000) == content[50_000:100_000]
            await until(lambda: node.files.hit(file.content_id, 100_000, 1) is not None)
            known = node.files.known(file.content_id) or pytest.fail("it went")
            cache_file, offset, size_bytes = known.extents.find(100_000) or pytest.fail("it went")
            with cache_file.in_use() as fd:
                assert os.pread(fd, size_bytes, offset) == content[100_000:][:size_bytes]

    asyncio.run(run())


def test_repeated_chunks_land_once(tmp_path: Path) -> None:
    """A file that repeats a chunk is right at each of its places, cold and again."""
    chunk = random.Random(4).randbytes(1000)
    content = b"".join([chunk * 3, BIGS[b"big/3"][:MIB], chunk * 2, bytes(50_000)])
    rig = Rig(tmp_path, {b"again": content}, pack_chunks=200)

    async def run() -> None:
        async with rig.node() as node:
            for _ in range(2):
                for first in (0, 1000, 2500, MIB + 3000, MIB + 4500, MIB + 20_000):
                    assert await read_path(node, b"again", first, 2000) == content[first:][:2000]
            assert await read_path(node, b"again") == content

    asyncio.run(run())


def test_hits_do_not_hide_who_reads_on(tmp_path: Path) -> None:
    """Where a reader is served from what is known, and has used up half of its window, it is no
    hit: so that more is fetched before the end."""
    content = random.Random(5).randbytes(4 * MIB)
    rig = Rig(tmp_path, {b"big": content}, chunk_size_bytes=10_000, pack_chunks=500)

    async def run() -> None:
        async with rig.node() as node:
            file = await file_of(node, b"big")
            for first in range(0, 300_000, 100_000):
                await read_path(node, b"big", first, 100_000)
            known = node.files.known(file.content_id) or pytest.fail("it went")

            def end_from(first: int) -> int:
                found = node.files._ranges.known(known, first, len(content))
                return first + (found[2] if found else 0)

            await until(lambda: end_from(300_000) >= 400_000)
            await until(lambda: not node.status()["in_flight_bytes"])
            end = end_from(300_000)
            is_hit = [
                node.files.hit(file.content_id, first, 10_000) is not None
                for first in range(300_000, end - 10_000, 10_000)
            ]
            assert is_hit == sorted(is_hit, reverse=True)
            assert True in is_hit
            assert False in is_hit
            await read_path(node, b"big", end - 20_000, 10_000)
            await until(lambda: end_from(300_000) > end)

    asyncio.run(run())


@pytest.mark.parametrize("size_bytes", [1, 5_000, 30_000, 100_000, 10**9])
def test_units_are_cut_evenly(tmp_path: Path, size_bytes: int) -> None:
    """All chunks once and in order, each unit at its place, none much larger or smaller than the
    others."""
    rig = Rig(tmp_path, {b"big": BIGS[b"big/0"]}, pack_chunks=500)
    segment = rig.maker.entry(b"big", BIGS[b"big/0"]).segments[0]
    pack_index = read_index(rig.objects, segment.pack)
    whole = Unit(segment.pack, 3, segment.count - 3, (CacheTarget(3, segment.count, None, 7000),))
    units = cut_units(whole, pack_index, size_bytes)
    offsets = pack_index.index.raw_offsets
    assert [unit.first for unit in units] == [3, *(u.first + u.count for u in units[:-1])]
    assert units[-1].first + units[-1].count == segment.count
    for unit in units:
        assert unit.count > 0
        assert unit.destinations == whole.destinations
    sizes = [offsets[unit.first + unit.count] - offsets[unit.first] for unit in units]
    assert max(sizes) <= size_bytes * 9 // 8 + 1000
    assert max(sizes) - min(sizes) <= 2000


@pytest.mark.parametrize("fault", ["too few", "too many", "no pack"])
def test_segments_that_do_not_fit_are_corrupt(rig: Rig, fault: str) -> None:
    """A tree that names chunks that are not there, or too few of them, is an error for its reader
    and for nobody else."""
    entry = rig.maker.entry(b"f", BIGS[b"big/0"])
    first = entry.segments[0]
    segments = {
        "too few": (first._replace(size_bytes=entry.size_bytes),),
        "too many": (Segment(first.pack, first.first, 10_000, entry.size_bytes),),
        "no pack": (Segment(pack_id_of([]), 0, 1, entry.size_bytes),),
    }[fault]
    bad = TreeEntry(b"f", Kind.FILE, False, entry.size_bytes, digest_of(b"?"), segments)
    rig.maker.commit_root(REPO, rig.maker.tree(b"", [bad]), branch="bad")

    async def run() -> None:
        async with rig.node() as node:
            with pytest.raises(Corrupt, match=rf"{REPO}@.*:f"):
                await read_path(node, b"f", rev="bad")
            assert await read_path(node, b"big/0") == BIGS[b"big/0"]

    asyncio.run(run())


def test_a_byte_far_into_a_file_needs_one_index(rig: Rig) -> None:
    """Where a byte lies is known from the tree: of the file's packs one index is read."""
    content = b"".join(BIGS.values())
    rig.maker.commit(REPO, {b"f": content}, branch="far")
    assert len({segment.pack for segment in rig.maker.entry(b"f", content).segments}) > 1

    async def run() -> None:
        async with rig.node() as node:
            await node.names.entry(await node.names.snapshot(REPO, "far"), b"f")
            rig.reset()
            assert await read_path(node, b"f", len(content) - 10, 10, rev="far") == content[-10:]
            packs = {key for key, _, _ in rig.objects.ranges}
            assert len(packs) == 1
            assert rig.objects.gets - len(rig.objects.ranges) <= 2

    asyncio.run(run())


def test_a_small_limit_of_settings_is_kept(tmp_path: Path) -> None:
    """Slabs are parts of the limit, between 1 and 64 MiB."""
    sizes = [CacheSettings(tmp_path, limit).slab_size_bytes for limit in (1, 160 * MIB, 1 << 40)]
    assert sizes == [MIB, 10 * MIB, 64 * MIB]
    assert NodeSettings(CacheSettings(tmp_path, 1)).fetch_deadline_s > 0


def test_files_of_many_parts_are_not_remembered_without_end(tmp_path: Path) -> None:
    """What is known of files is bounded by their segments, also if a hostile tree gives each so
    many that a few thousand files would take all memory."""
    rig = Rig(tmp_path, {b"a": b"x"})
    segments = tuple(Segment(PackId(bytes(32)), n, 1, 1) for n in range(SEGMENTS_MAX // 4))

    async def run() -> None:
        async with rig.node() as node:
            contents = node.files
            for number in range(40):
                contents.add(b"%032d" % number, len(segments), segments)
            assert len(contents._files) == 4
            assert contents.known(b"%032d" % 39) is not None
            assert contents.known(b"%032d" % 0) is None

    asyncio.run(run())
