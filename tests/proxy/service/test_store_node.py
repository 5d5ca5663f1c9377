"""StoreNode: the whole read path below HTTP."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import (
    Corrupt,
    InUse,
    InvalidInput,
    NotADirectory,
    NotFound,
    Unavailable,
)
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.objects.interface import Part
from lodefs.proxy.fetch.known_damage import KEPT_FOR_S
from lodefs.proxy.metrics.counters import Counter
from lodefs.proxy.node import SnapshotFile
from tests.support.chunkstore.handmade import Link, Program
from tests.support.proxy.rig import MIB, REPO, Rig, file_of, read_path

BIG = random.Random(1).randbytes(3 * MIB + 12345)
SMALL = {b"small/%03d" % n: random.Random(n).randbytes(100 + n * 37) for n in range(100)}
FILES: dict[bytes, bytes | Link | Program | None] = {
    b"big": BIG,
    b"empty": b"",
    b"link": Link(b"big"),
    b"one/two/three": b"deep",
    b"repeated": b"same bytes" * 10_000,
    **SMALL,
}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, FILES, chunk_size_bytes=10_000, pack_chunks=50)


def test_every_file_reads_back_cold_and_warm(rig: Rig) -> None:
    """All contents come back whole, over segments, packs, repeated chunks; the second time the
    store is not asked for bytes."""

    async def run() -> None:
        async with rig.node() as node:
            for path, content in FILES.items():
                if isinstance(content, bytes):
                    assert await read_path(node, path) == content
            rig.reset()
            for path, content in FILES.items():
                if isinstance(content, bytes):
                    assert await read_path(node, path) == content
            assert rig.objects.ranges == []

    asyncio.run(run())


def test_ranges_in_the_middle_of_chunks(rig: Rig) -> None:
    """Any range of a file is just those bytes, cold and warm."""

    async def run() -> None:
        rng = random.Random(7)
        async with rig.node() as node:
            for _ in range(60):
                first = rng.randrange(len(BIG))
                size = min(rng.choice([1, 100, 9_999, 10_001, 300_000]), len(BIG) - first)
                assert await read_path(node, b"big", first, size) == BIG[first : first + size]

    asyncio.run(run())


def test_a_range_outside_the_file_is_refused(rig: Rig) -> None:
    """Reading past the end, or of a directory, is the caller's mistake."""

    async def run() -> None:
        async with rig.node() as node:
            big = await file_of(node, b"big")
            for first, size in ((0, len(BIG) + 1), (-1, 1)):
                with pytest.raises(InvalidInput):
                    await node.files.open(big, first, size)
            snapshot = await node.names.snapshot(REPO, "main")
            assert not isinstance(await node.names.file(snapshot, b"small"), SnapshotFile)

    asyncio.run(run())


def test_hit_is_known_after_a_read(rig: Rig) -> None:
    """A complete flat file and a small file are hits at any range once read, with their bytes."""

    async def run() -> None:
        import os

        async with rig.node() as node:
            for path, content in ((b"big", BIG), (b"small/007", SMALL[b"small/007"])):
                file = await file_of(node, path)
                entry, name = file.entry, file.content_id
                assert node.files.hit(name, 0, entry.size_bytes) is None
                await read_path(node, path)
                first, size = 11, entry.size_bytes - 40
                extent = node.files.hit(name, first, size)
                assert extent is not None
                data = os.pread(extent.fd, extent.size_bytes, extent.offset)
                assert data == content[first : first + size]

    asyncio.run(run())


def test_a_complete_flat_file_is_the_dataset_file(rig: Rig, tmp_path: Path) -> None:
    """When all of a big file was read, one file of the cache has its bytes, read-only."""

    async def run() -> None:
        async with rig.node() as node:
            await read_path(node, b"big")

    asyncio.run(run())
    flats = [path for path in (tmp_path / "cache/flat").rglob("*") if path.is_file()]
    assert [path.read_bytes() for path in flats] == [BIG]
    assert flats[0].stat().st_mode & 0o777 == 0o444


def test_many_readers_of_one_cold_chunk_cost_one_get(rig: Rig) -> None:
    """Single flight: however many readers miss the same chunk at once, the store is asked once."""

    async def run() -> None:
        async with rig.node() as node:
            await node.names.entry(await node.names.snapshot(REPO, "main"), b"big")
            rig.reset()
            answers = await asyncio.gather(
                *(read_path(node, b"big", 20_000, 5_000) for _ in range(50))
            )
            assert set(answers) == {BIG[20_000:25_000]}
            assert len(rig.objects.ranges) == 1

    asyncio.run(run())


def test_a_restarted_node_needs_no_store(rig: Rig) -> None:
    """What was read once is answered by commit id while the store is down, also by inode."""

    async def run() -> None:
        commit = rig.commit.hex()
        async with rig.node() as node:
            await read_path(node, b"big")
            snapshot = await node.names.snapshot(REPO, "main")
            ino = (await node.names.entry(snapshot, b"one/two/three")).ino
        down = Unavailable("the store is down")

        def answer(_key: str, _part: Part) -> Part:
            raise down

        rig.objects.answer = answer
        async with rig.node() as node:
            assert await read_path(node, b"big", rev=commit) == BIG
            snapshot = await node.names.snapshot(REPO, commit)
            assert (await node.names.by_ino(snapshot, ino)).name == b"three"
            page = await node.names.children(snapshot, 1, limit=3)
            assert [child.name for child in page.nodes] == [b"big", b"empty", b"link"]
            with pytest.raises(Unavailable):
                await read_path(node, b"small/001", rev=commit)
            with pytest.raises(Unavailable):
                await node.names.snapshot(REPO, "main")

    asyncio.run(run())


def test_wrong_bytes_are_read_again(rig: Rig) -> None:
    """Bytes that do not match are counted and fetched once more; the reader sees good ones."""

    async def run() -> None:
        spoiled: list[str] = []

        def answer(key: str, part: Part) -> Part:
            if key.startswith("packs/") and len(part.data) == 10_000 and not spoiled:
                spoiled.append(key)
                return Part(bytes(10_000), part.object_size_bytes, part.etag)
            return part

        async with rig.node() as node:
            rig.objects.answer = answer
            assert await read_path(node, b"big", 0, 100) == BIG[:100]
            assert len(spoiled) == 1
            assert node.counts.values[Counter.STORE_CORRUPT] == 1

    asyncio.run(run())


def test_wrong_bytes_twice_are_an_error_that_names_all(rig: Rig) -> None:
    """Where no source has good bytes, the error names dataset, path, chunk and store, and nothing
    wrong is served or kept. For a few seconds it comes again without a read of the store."""
    now_s = 1000.0

    async def run() -> None:
        nonlocal now_s

        def answer(key: str, part: Part) -> Part:
            if key.startswith("packs/") and len(part.data) == 10_000:
                return Part(bytes(10_000), part.object_size_bytes, part.etag)
            return part

        rig.clock_s = lambda: now_s
        async with rig.node() as node:
            snapshot = await node.names.snapshot(REPO, "main")
            await node.names.entry(snapshot, b"big")
            rig.objects.answer = answer
            with pytest.raises(Corrupt, match=rf"{REPO}@.*:big.*memory:.*packs/.*`lodefs repair`"):
                await read_path(node, b"big", 0, 100)
            rig.objects.answer = lambda _key, part: part
            reads = len(rig.objects.ranges)  # an index of another pack may be loaded meanwhile
            with pytest.raises(Corrupt, match=rf"{REPO}@.*:big.*packs/.*found a moment ago"):
                await read_path(node, b"big", 0, 100)
            assert len(rig.objects.ranges) == reads
            now_s += KEPT_FOR_S
            assert await read_path(node, b"big", 0, 100) == BIG[:100]

    asyncio.run(run())


@pytest.mark.parametrize("cut", [0, 1, 9_999])
def test_half_a_body_is_no_answer(rig: Rig, cut: int) -> None:
    """A store that sends fewer bytes than asked for is read again, then an error."""

    async def run() -> None:
        def answer(key: str, part: Part) -> Part:
            if key.startswith("packs/") and len(part.data) == 10_000:
                return Part(bytes(part.data)[:cut], part.object_size_bytes, part.etag)
            return part

        async with rig.node() as node:
            snapshot = await node.names.snapshot(REPO, "main")
            await node.names.entry(snapshot, b"big")
            rig.objects.answer = answer
            with pytest.raises(Corrupt, match="truncated"):
                await read_path(node, b"big", 0, 100)

    asyncio.run(run())


def test_an_unavailable_store_is_unavailable(rig: Rig) -> None:
    """503 and the like reach the reader as Unavailable; the next read works again."""

    async def run() -> None:
        def answer(key: str, part: Part) -> Part:
            raise Unavailable("503 SlowDown", retry_after_s=1)

        async with rig.node() as node:
            snapshot = await node.names.snapshot(REPO, "main")
            await node.names.entry(snapshot, b"big")
            rig.objects.answer = answer
            with pytest.raises(Unavailable, match="503"):
                await read_path(node, b"big", 0, 100)
            rig.objects.answer = lambda _key, part: part
            assert await read_path(node, b"big", 0, 100) == BIG[:100]

    asyncio.run(run())


def test_a_missing_pack_is_damage_not_a_missing_file(rig: Rig) -> None:
    """A pack that is gone is Corrupt: the path does exist. For a few seconds the store is not
    asked again; when the pack is back after them, it is read."""
    now_s = 1000.0

    async def run() -> None:
        nonlocal now_s
        rig.clock_s = lambda: now_s
        async with rig.node() as node:
            snapshot = await node.names.snapshot(REPO, "main")
            await node.names.entry(snapshot, b"big")
            packs = {
                info.key: rig.objects.get(info.key, size=info.size_bytes).data
                for info in rig.objects.list("packs/")
            }
            for key in packs:
                rig.objects.delete(key)
            with pytest.raises(Corrupt, match="lacks a pack"):
                await read_path(node, b"big", 0, 100)
            for key, data in packs.items():
                rig.objects.put(key, [data])
            gets = rig.objects.gets
            with pytest.raises(Corrupt, match="lacks a pack"):
                await read_path(node, b"big", 0, 100)
            assert rig.objects.gets == gets
            now_s += KEPT_FOR_S
            assert await read_path(node, b"big", 0, 100) == BIG[:100]

    asyncio.run(run())


def test_a_store_that_is_gone_is_unavailable(rig: Rig) -> None:
    """Where nothing of the store is there, as with a file system that is not mounted, its packs
    are not damaged."""

    async def run() -> None:
        async with rig.node() as node:
            snapshot = await node.names.snapshot(REPO, "main")
            await node.names.entry(snapshot, b"big")
            for info in list(rig.objects.list("")):
                rig.objects.delete(info.key)
            with pytest.raises(Unavailable, match="gone at present"):
                await read_path(node, b"big", 0, 100)
            assert node.status()["store_corrupt_chunks"] == 0

    asyncio.run(run())


def test_a_rewritten_pack_is_found_again(rig: Rig) -> None:
    """A pack that was written anew under its id (other ETag) costs a look at its index alone."""

    async def run() -> None:
        changed: list[str] = []
        below = rig.objects.below.get

        async with rig.node() as node:
            await read_path(node, b"big", 0, 100)
            from lodefs.chunkstore.errors import Changed

            def get(key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:  # fmt: skip # noqa: E501
                if if_match is not None and key.startswith("packs/") and not changed:
                    changed.append(key)
                    raise Changed(key)
                return below(key, offset=offset, size=size, if_match=if_match)

            rig.objects.below.get = get  # type: ignore[method-assign]
            assert await read_path(node, b"big", 200_000, 100) == BIG[200_000:200_100]
            assert changed

    asyncio.run(run())


def test_names_and_errors(rig: Rig) -> None:
    """Entries by path, by name and by inode agree; what is not there is NotFound with its path."""

    async def run() -> None:
        async with rig.node() as node:
            snapshot = await node.names.snapshot(REPO, "main")
            entry = await node.names.entry(snapshot, b"one/two/three")
            two = await node.names.entry(snapshot, b"one/two")
            assert await node.names.lookup(snapshot, two.ino, b"three") == entry
            assert await node.names.by_ino(snapshot, entry.ino) == entry
            assert (await node.names.entry(snapshot, b"link")).target == b"big"
            assert (await node.names.entry(snapshot, b"")).kind == Kind.DIRECTORY
            with pytest.raises(NotFound, match=r"one/nothing does not exist"):
                await node.names.entry(snapshot, b"one/nothing/more")
            with pytest.raises(NotADirectory, match=r"big is not a directory"):
                await node.names.entry(snapshot, b"big/more")
            with pytest.raises(NotADirectory):
                await node.names.children(snapshot, entry.ino, limit=1)
            with pytest.raises(NotFound):
                await node.names.by_ino(snapshot, 12345)
            with pytest.raises(InvalidInput):
                await node.names.entry(snapshot, b"one/../big")
            with pytest.raises(NotFound, match="branch"):
                await node.names.snapshot(REPO, "nothing")

    asyncio.run(run())


def test_a_second_node_is_told_who_owns_the_cache(rig: Rig) -> None:
    """One cache directory has one owner; the other one learns its process id."""

    async def run() -> None:
        import os

        async with rig.node():
            with pytest.raises(InUse, match=rf"cache.*process {os.getpid()}"):
                async with rig.node():
                    pass
        async with rig.node():
            pass

    asyncio.run(run())
