"""Reads of the cache's files that fail: what is damage, and what says nothing about the file."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.reader import CacheReader
from lodefs.proxy.metrics.counters import Counter
from lodefs.proxy.service.store_node import StoreNode
from tests.support.proxy.rig import MIB, Rig, file_of, read_path, until

BIG = random.Random(1).randbytes(2 * MIB)
SMALL = random.Random(2).randbytes(50_000)
PATHS = {b"big": BIG, b"small": SMALL}


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Nothing more can be opened; what is open can be used."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def close_files(node: StoreNode) -> None:
    """As if the files had not been used for long."""
    await until(lambda: not node.status()["in_flight_bytes"])  # readers do not wait for writes
    for file in list(node._cache.files.values()):
        await until(file.close_if_idle)


OTHER_KINDS: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "symlink": lambda path: path.symlink_to(path.with_suffix(".was")),
    "loop": lambda path: path.symlink_to(path),
    "directory": Path.mkdir,
}


async def check_nothing_was_lost(rig: Rig, node: StoreNode, numbers: set[int]) -> None:
    """All files are there and right, none was counted as damaged, the store is not asked."""
    rig.reset()
    assert set(node._cache.files) == numbers
    assert node.counts.values[Counter.CACHE_CORRUPT] == 0
    for path, content in PATHS.items():
        assert await read_path(node, path) == content
    assert rig.objects.ranges == []


def test_a_cold_read_waits_for_no_thread_of_the_disk(tmp_path: Path) -> None:
    """Memory tells that neither the pack's index nor its chunks are here."""
    rig = Rig(tmp_path, {b"small": SMALL}, chunk_size_bytes=20_000)

    async def run() -> None:
        async with rig.node() as node:
            await file_of(node, b"small")  # loads the tree
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(node._pools.disk, "run", refused)
                assert await read_path(node, b"small") == SMALL

    async def refused(*_: object) -> None:
        raise AssertionError("the disk was asked")

    asyncio.run(run())


def test_no_descriptors_left_costs_no_cache(tmp_path: Path) -> None:
    """While no file can be opened (EMFILE, really), reads are Unavailable and no file is dropped;
    afterwards all is read from the cache."""
    rig = Rig(tmp_path, PATHS, chunk_size_bytes=20_000)

    async def run() -> None:
        async with rig.node() as node:
            for path, content in PATHS.items():
                assert await read_path(node, path) == content
            numbers = set(node._cache.files)
            await close_files(node)
            for path in PATHS:
                with no_descriptors(), pytest.raises(Unavailable, match="Too many open files"):
                    await read_path(node, path)
            await check_nothing_was_lost(rig, node, numbers)

    asyncio.run(run())


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_what_says_nothing_about_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Chunks that are to be checked before their use, and cannot be read now, are not damaged."""
    rig = Rig(tmp_path, PATHS, chunk_size_bytes=20_000)

    def refuse(_file: CacheFile) -> int:
        raise OSError(number, "refused")

    async def run() -> None:
        async with rig.node() as node:
            for path in PATHS:
                await read_path(node, path)
            await until(lambda: not node.status()["in_flight_bytes"])
            numbers = set(node._cache.files)
            node.files._files.clear()  # nothing is known of where bytes lie
            for file in node._cache.files.values():
                file.is_stale = True
            with monkeypatch.context() as patched:
                patched.setattr(CacheFile, "open", refuse)
                for path in PATHS:
                    with pytest.raises(Unavailable, match="cannot be read now: refused"):
                        await read_path(node, path)
            await check_nothing_was_lost(rig, node, numbers)

    asyncio.run(run())


def test_chunks_are_checked_up_to_the_first_wrong_one(tmp_path: Path) -> None:
    """Of a run of chunks of a file that was not checked for long, those before the wrong one can
    be used, and the file goes."""
    rig = Rig(tmp_path, PATHS, chunk_size_bytes=20_000)

    async def run() -> None:
        async with rig.node() as node:
            await read_path(node, b"small")
            await until(lambda: not node.status()["in_flight_bytes"])
            (file,) = node._cache.files.values()
            starts = range(0, 60_000, 20_000)
            ids = [digest_of(SMALL[start : start + 20_000]) for start in starts]
            places = node._cache.find([layout.chunk_key(chunk_id) for chunk_id in ids])
            chunks = [(place, one) for place, one in zip(places, ids, strict=True) if place]
            assert len(chunks) == 3
            reads = CacheReader(node._cache, node._pools)
            with file.path.open("r+b") as damaged:
                damaged.seek(chunks[1][0].offset)
                damaged.write(b"\0\0\0\0")
            assert await reads.good(chunks) == 3  # not looked at
            file.is_stale = True
            assert await reads.good(chunks[:1]) == 1
            assert file.is_alive
            assert await reads.good(chunks) == 1
            assert not file.is_alive

    asyncio.run(run())


@pytest.mark.parametrize(
    "number",
    [errno.ENOENT, errno.EIO, errno.ESTALE, errno.EUCLEAN, errno.EACCES, errno.EPERM],
)
def test_what_is_damage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    """A file that has gone, that may not be read, or that the disk cannot read, is dropped, named
    once in the log, and fetched again."""
    rig = Rig(tmp_path, PATHS, chunk_size_bytes=20_000)
    broken: set[int] = set()
    opened = CacheFile.open

    def fail(file: CacheFile) -> int:
        if file.number in broken:
            raise OSError(number, "broken")
        return opened(file)

    async def run() -> None:
        async with rig.node() as node:
            await read_path(node, b"big")
            await close_files(node)
            broken.update(node._cache.files)
            monkeypatch.setattr(CacheFile, "open", fail)
            assert await read_path(node, b"big") == BIG
            assert node.counts.values[Counter.CACHE_CORRUPT] == len(broken) == 1
            assert not broken & set(node._cache.files)
            assert await read_path(node, b"big") == BIG
            (line,) = [text for text in caplog.messages if "dropped the cache file" in text]
            assert "broken" in line

    asyncio.run(run())


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_another_kind_of_file_in_its_place_is_damage(tmp_path: Path, kind: str) -> None:
    """Something else has the names of the cache's files, among it a symlink to other bytes and a
    FIFO, which would keep the event loop waiting: nothing is read there, and all is fetched
    again."""
    rig = Rig(tmp_path, PATHS, chunk_size_bytes=20_000)

    async def run() -> None:
        async with rig.node() as node:
            for path in PATHS:
                await read_path(node, path)
            await close_files(node)
            replaced = list(node._cache.files.values())
            for file in replaced:
                was = file.path.rename(file.path.with_suffix(".was"))
                was.chmod(0o644)
                was.write_bytes(was.read_bytes()[::-1])
                OTHER_KINDS[kind](file.path)
            for path, content in PATHS.items():
                assert await read_path(node, path) == content
            assert node.counts.values[Counter.CACHE_CORRUPT] == len(replaced)

    asyncio.run(run())


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_nothing_is_written_to_another_kind_of_file(tmp_path: Path, kind: str) -> None:
    """The slab that the next chunks would go to was replaced: they go to another one."""
    rig = Rig(
        tmp_path, {b"one": SMALL, b"two": SMALL[::-1]}, chunk_size_bytes=50_000, pack_chunks=1
    )

    async def run() -> None:
        async with rig.node() as node:
            await read_path(node, b"one")
            await close_files(node)
            (slab,) = node._cache.files.values()
            slab.path.rename(slab.path.with_suffix(".was"))
            OTHER_KINDS[kind](slab.path)
            assert await read_path(node, b"two") == SMALL[::-1]
            await until(lambda: not node.status()["in_flight_bytes"])
            assert not slab.is_alive
            assert await read_path(node, b"one") == SMALL

    asyncio.run(run())
