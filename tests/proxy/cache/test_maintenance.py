"""Maintenance: its tasks do not wait for each other, and no failure ends them."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.nodecache.damage_reports import report_damage, reported_files
from lodefs.chunkstore.nodecache.verify import CacheCheck, check_file
from lodefs.proxy.cache import durability, recovery
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.chunk_cache import Cache
from lodefs.proxy.cache.scrub import ScrubSettings
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.metrics.counters import Counts
from lodefs.proxy.runtime.thread_pools import Pool
from lodefs.proxy.service.store_node import NodeSettings
from tests.support.proxy.rig import MIB, Rig, read_path, until

FILES = {b"big%d" % n: random.Random(n).randbytes(2 * MIB) for n in range(3)}


def settings_of(rig: Rig) -> NodeSettings:
    """A node that looks after its cache all the time, and scrubs nothing."""
    cache = CacheSettings(rig.directory / "cache", 64 * MIB)
    return NodeSettings(cache, keep_every_s=0.01, scrub=ScrubSettings(0))


def after_a_power_cut(rig: Rig) -> None:
    """Leaves a cache whose files were written during another boot."""

    def another_boot(settings: CacheSettings, counts: Counts) -> Cache:
        return Cache(settings, counts, boot=b"another boot....")

    async def fill() -> None:
        async with rig.node(settings_of(rig), cache=another_boot) as node:
            for path in FILES:
                await read_path(node, path)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(durability, "sync", lambda _cache: None)
        asyncio.run(fill())


def test_recovery_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While recovery is at work, which may take hours, reports of damage are looked at; status
    shows how far it is; then it goes on to its end."""
    rig = Rig(tmp_path, FILES, chunk_size_bytes=20_000)
    after_a_power_cut(rig)
    go_on = threading.Event()
    check = durability.check_and_sync

    def wait(*file: Any, **how: Any) -> None:
        assert go_on.wait(60)
        check(*file, **how)

    monkeypatch.setattr(durability, "check_and_sync", wait)

    async def run() -> None:
        async with rig.node(settings_of(rig)) as node:
            try:
                await until(lambda: node.status()["recovery_files"] == 3)
                assert node.status()["recovery_bytes"] == 6 * MIB
                report_damage(tmp_path / "cache", [4711])
                await until(lambda: not reported_files(tmp_path / "cache"))
                assert node.status()["recovery_bytes_done"] == 0
            finally:
                go_on.set()
            await until(lambda: node.status()["recovery_bytes_done"] == 6 * MIB)
            boot = node._cache.boot
            await until(lambda: all(file.is_recovered(boot) for file in node._cache.files.values()))

    asyncio.run(run())


def test_a_node_that_ends_does_not_wait_for_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery ends within a file when the node does, with the file neither dropped nor trusted."""
    rig = Rig(tmp_path, FILES, chunk_size_bytes=20_000)
    after_a_power_cut(rig)
    begun, go_on = threading.Event(), threading.Event()
    looked: list[int] = []

    def slow(*file: Any, pace: Callable[[int], None], **how: Any) -> CacheCheck:
        def slow_pace(size_bytes: int) -> None:
            begun.set()
            assert go_on.wait(60)
            looked.append(size_bytes)
            pace(size_bytes)

        return check_file(*file, pace=slow_pace, **how)

    monkeypatch.setattr(durability, "check_file", slow)

    async def run() -> None:
        async with rig.node(settings_of(rig)) as node:
            await asyncio.to_thread(begun.wait, 60)
            node._keeper.cancel()
            maintenance = node._maintenance
            await until(lambda: maintenance._stopping)
            go_on.set()
        assert len(looked) <= 2
        assert len(node._cache.files) == 3

    asyncio.run(run())


@pytest.mark.parametrize("error", [Unavailable("4096 calls wait"), ValueError("a mistake")])
def test_a_failure_does_not_end_the_upkeep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Whatever fails once, counting pinned files or any other step, all is done the next time."""
    rig = Rig(tmp_path, FILES, chunk_size_bytes=20_000)
    failures = 0

    def fail() -> int:
        nonlocal failures
        failures += 1
        raise error

    def fail_of(_cache: Cache) -> None:
        fail()

    async def run() -> None:
        async with rig.node(settings_of(rig)) as node:
            with monkeypatch.context() as patched:
                patched.setattr(node._cache.pins, "pinned_bytes", fail)
                patched.setattr(node._cache.pins, "expire", fail)
                patched.setattr(durability, "sync", fail_of)
                await until(lambda: failures >= 6)
                report_damage(tmp_path / "cache", [4711])
                await until(lambda: not reported_files(tmp_path / "cache"))
            await read_path(node, b"big1")
            boot = node._cache.boot
            await until(lambda: all(file.boot != boot for file in node._cache.files.values()))
            assert not node._keeper.done()

    asyncio.run(run())


def test_recovery_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that cannot be read at first, for lack of descriptors, are checked later."""
    rig = Rig(tmp_path, FILES, chunk_size_bytes=20_000)
    after_a_power_cut(rig)
    opened = CacheFile.open
    refused: list[int] = []

    def refuse_once(file: CacheFile) -> int:
        if file.number not in refused:
            refused.append(file.number)
            raise OSError(24, "Too many open files")
        return opened(file)

    monkeypatch.setattr(CacheFile, "open", refuse_once)

    async def run() -> None:
        async with rig.node(settings_of(rig)) as node:
            boot = node._cache.boot
            await until(lambda: all(file.is_recovered(boot) for file in node._cache.files.values()))
            assert len(node._cache.files) == len(refused) == 3

    asyncio.run(run())


@pytest.mark.parametrize(
    ("module", "name"),
    [(recovery, "clean"), (recovery, "check_reported")],
    ids=["clean", "reports"],
)
def test_nothing_goes_on_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str
) -> None:
    """What looks at files when the node ends, and takes longer to hear of it than anybody waits
    for other calls, finds the cache open to its end; and it takes no thread from reads."""
    monkeypatch.setattr(Pool.close, "__defaults__", (0.001,))  # to give up others soon
    rig = Rig(tmp_path, FILES)
    begun, closed = threading.Event(), threading.Event()
    found: list[bool] = []

    def slow(_cache: Cache, *, stopping: Callable[[], bool], **_: object) -> int:
        begun.set()
        while not stopping():
            closed.wait(0.001)
        found.append(closed.wait(0.3))  # it must not come
        assert threading.current_thread().name.startswith("lodefs-maintenance")
        found.append(False)
        return 0

    monkeypatch.setattr(module, name, slow)

    async def run() -> None:
        async with rig.node(settings_of(rig)):
            assert await asyncio.to_thread(begun.wait, 60)
        closed.set()
        assert found == [False, False]

    asyncio.run(run())
