"""Files that somebody found damaged: the proxy looks itself, drops what is, and goes on."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Denied
from lodefs.chunkstore.nodecache.damage_reports import report_damage, reported_files, resolve_report
from lodefs.proxy.cache.recovery import check_reported
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.metrics.counters import Counter
from lodefs.proxy.service.store_node import NodeSettings
from tests.support.chunkstore.directories import as_nobody, open_directory
from tests.support.proxy.rig import MIB, Rig, read_path, until

BIG = random.Random(1).randbytes(2 * MIB)
SMALL = random.Random(2).randbytes(50_000)


def damage(rig: Rig) -> Path:
    """Turns a bit of the one flat file around."""
    (path,) = (rig.directory / "cache").glob("flat/*/*")
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    return path


def test_only_what_is_damaged_is_dropped(tmp_path: Path) -> None:
    """Of two suspected files the damaged one goes; reads are right again, also through a node
    that knew the place before; numbers that are no files do not matter."""
    rig = Rig(tmp_path, {b"big": BIG, b"small": SMALL}, chunk_size_bytes=20_000)
    cache_dir = tmp_path / "cache"

    async def run() -> None:
        async with rig.node() as node:
            assert await read_path(node, b"big") == BIG
            assert await read_path(node, b"small") == SMALL
            path = damage(rig)
            assert await read_path(node, b"big") != BIG  # what bit rot does without a check
            numbers = sorted(node._cache.files)
            report_damage(cache_dir, [*numbers, 4711])
            (cache_dir / "suspects" / "note.txt").touch()
            assert reported_files(cache_dir) == [*numbers, 4711]
            dropped = check_reported(node._cache, stopping=lambda: False)
            assert len(dropped) == 1
            assert reported_files(cache_dir) == []
            assert not path.exists()
            assert await read_path(node, b"big") == BIG
            assert node.counts.values[Counter.CACHE_CORRUPT] == 1
            assert set(numbers) - set(dropped) <= set(node._cache.files)

    asyncio.run(run())


def test_a_running_node_looks_by_itself(tmp_path: Path) -> None:
    """A suspected file is dropped while the node serves, without being told otherwise."""
    rig = Rig(tmp_path, {b"big": BIG}, chunk_size_bytes=20_000)
    cache_dir = tmp_path / "cache"
    settings = NodeSettings(CacheSettings(cache_dir, 64 * MIB), keep_every_s=0.01)

    async def run() -> None:
        async with rig.node(settings) as node:
            await read_path(node, b"big")
            damage(rig)
            report_damage(cache_dir, list(node._cache.files))
            await until(lambda: not reported_files(cache_dir))
            assert await read_path(node, b"big") == BIG

    asyncio.run(run())


def test_a_node_that_stops_leaves_the_rest(tmp_path: Path) -> None:
    """What was not looked at before the end stays on the list."""
    rig = Rig(tmp_path, {b"big": BIG}, chunk_size_bytes=20_000)

    async def run() -> None:
        async with rig.node() as node:
            report_damage(tmp_path / "cache", [5, 6])
            assert check_reported(node._cache, stopping=lambda: True) == []

    asyncio.run(run())
    assert reported_files(tmp_path / "cache") == [5, 6]
    resolve_report(tmp_path / "cache", 5)
    resolve_report(tmp_path / "cache", 5)
    assert reported_files(tmp_path / "cache") == [6]


def test_a_stop_is_heard_within_a_file(tmp_path: Path) -> None:
    """A node that stops does not read a large file to its end; the file stays suspected, and is
    looked at the next time."""
    rig = Rig(tmp_path, {b"big": BIG}, chunk_size_bytes=20_000)
    cache_dir = tmp_path / "cache"

    async def run() -> None:
        async with rig.node() as node:
            await read_path(node, b"big")
            numbers = sorted(node._cache.files)
            report_damage(cache_dir, numbers)
            asked = 0

            def stopping() -> bool:
                nonlocal asked
                asked += 1
                return asked > 3

            assert check_reported(node._cache, stopping=stopping) == []
            assert (asked, reported_files(cache_dir)) == (4, numbers)
            assert check_reported(node._cache, stopping=lambda: False) == []
            assert reported_files(cache_dir) == []

    asyncio.run(run())


def test_others_may_not_suspect() -> None:
    """Who may not write the cache may not ask for repairs."""
    with open_directory() as folder:
        folder.chmod(0o755)
        with as_nobody(), pytest.raises(Denied, match="proxy's user"):
            report_damage(folder, [1])
