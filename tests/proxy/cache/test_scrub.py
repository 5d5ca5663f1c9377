"""Scrub: flipped bits are found in idle time, what was checked is remembered, others come first."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.layout import FileKind, FileRow, FileState
from lodefs.proxy.cache import durability
from lodefs.proxy.cache import scrub as scrubbing
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.chunk_cache import Cache, Flat
from lodefs.proxy.cache.scrub import DAY_S, Coverage, Scrub, ScrubSettings, coverage, due
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.metrics.counters import Counter, Counts
from lodefs.proxy.service.store_node import NodeSettings
from tests.proxy.cache.test_reader import no_descriptors
from tests.support.proxy.rig import MIB, Rig, chunk_of, read_path, until

NOW_S = 100 * DAY_S
FAST = 1 << 40
CONTENTS = [random.Random(n).randbytes(2 * MIB) for n in range(4)]


class Idle:
    """Nobody else wants the disk, until ``busy`` is set."""

    def __init__(self) -> None:
        self.busy = threading.Event()
        self.asked = threading.Semaphore(0)

    def mark(self) -> None:
        pass

    def is_busy(self) -> bool:
        self.asked.release()
        return self.busy.is_set()


class Life:
    """A process with a cache of four flat files, and the scrub of it."""

    def __init__(self, path: Path, *, now_s: float = NOW_S, rate: int = FAST) -> None:
        self.now_s = now_s
        self.counts = Counts()
        settings = CacheSettings(path, 64 * MIB, free_size_bytes_min=0)
        self.cache = Cache(settings, self.counts, now_s=lambda: self.now_s)
        if not self.cache.files:
            for content in CONTENTS:
                parts = [
                    chunk_of(part, first)
                    for first in range(0, len(content), MIB)
                    for part in [content[first : first + MIB]]
                ]
                assert self.cache.store(parts, Flat(digest_of(content), len(content)))
        self.load = Idle()
        self.scrub = Scrub(
            self.cache, ScrubSettings(rate), self.load, booted_s=0, look_every_s=0.001
        )

    @property
    def files(self) -> list[CacheFile]:
        return list(self.cache.files.values())

    @contextmanager
    def running(self) -> Iterator[None]:
        """The scrub at work in its thread."""
        thread = threading.Thread(target=self.scrub.run)
        thread.start()
        try:
            yield
        finally:
            self.scrub.stop()
            thread.join(60)
            assert not thread.is_alive()

    def check(self, file: CacheFile) -> None:
        """Checks one file as ``run`` does."""
        durability.check(self.cache, file, pace=self.scrub._pace)

    def later(self, days: float) -> None:
        self.now_s += days * DAY_S


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    made = Life(tmp_path / "cache")
    yield made
    made.cache.close()


def wait(condition: Callable[[], bool]) -> None:
    """Until a condition that another thread makes true."""

    async def look() -> None:
        await until(condition)

    asyncio.run(look())


def flip(path: Path, offset: int = 1_500_000) -> None:
    """One bit of a file on the disk."""
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 4]))


def file_of(number: int, checked_s: int, last_use_s: int, size_bytes: int = 10) -> CacheFile:
    row = FileRow(
        FileKind.SLAB, FileState.OPEN, bytes(16), bytes(32), size_bytes, size_bytes, last_use_s
    )
    file = CacheFile(number, row, Path("/nowhere"), Path("/nowhere"), lambda _file: None)
    file.checked_s = checked_s
    return file


def test_the_order() -> None:
    """What is in use since its last check comes first, then the least recently checked; what was
    checked lately does not come; a check in the future was none."""
    now_s, since_s = 1000.0 * DAY_S, 990.0 * DAY_S
    old, older, used, fresh, future, empty = (
        file_of(1, 980 * DAY_S, 0),
        file_of(2, 970 * DAY_S, 0),
        file_of(3, 985 * DAY_S, 986 * DAY_S),
        file_of(4, 995 * DAY_S, 999 * DAY_S),
        file_of(5, 1100 * DAY_S, 0),
        file_of(6, 0, 0, size_bytes=0),
    )
    files = [old, older, used, fresh, future, empty]
    assert due(files, since_s, now_s) == [used, older, old, future]


def test_coverage_counts_bytes() -> None:
    """Bytes by the time of the last check, and when the oldest was."""
    files = [file_of(1, 500, 0, 10), file_of(2, 700, 0, 20), file_of(3, 0, 0, 40)]
    assert coverage(files, 600, 1000) == Coverage(20, 10, 40, 500)
    assert coverage([], 600, 1000) == Coverage()


def test_a_flipped_bit_is_found(life: Life, caplog: pytest.LogCaptureFixture) -> None:
    """Of files that are due the damaged one is dropped, pinned or not, counted, and named in the
    log; the others are right and stay."""
    flip(life.files[1].path)
    bad = life.files[1]
    bad.pinned_until_s = int(life.now_s) + 1_000_000
    life.later(5)
    with caplog.at_level(logging.WARNING), life.running():
        wait(lambda: not bad.is_alive and all(f.checked_s == life.now_s for f in life.files))
    assert len(life.files) == 3
    assert not bad.path.exists()
    assert life.counts.values[Counter.CACHE_CORRUPT] == 1
    assert str(bad.path) in caplog.text
    assert "1048576: its bytes are wrong" in caplog.text
    assert life.counts.values[Counter.SCRUBBED_BYTES] == 8 * MIB
    assert life.cache.kv.get(layout.checked_key(bad.number)) is None


def test_what_was_written_lately_is_left_alone(life: Life) -> None:
    """Within half of the days nothing is read; status says that all is fresh."""
    life.later(3)
    life.scrub.look()
    assert life.scrub._due() == []
    assert life.scrub.status()["scrub_fresh_bytes"] == 8 * MIB
    assert life.scrub.status()["scrub_oldest_check_age_s"] == 3 * DAY_S
    life.later(5)
    life.scrub.look()
    assert len(life.scrub._due()) == 4
    assert life.scrub.status()["scrub_old_bytes"] == 8 * MIB
    assert all(file.is_stale for file in life.files)


def test_checks_survive_a_restart(tmp_path: Path) -> None:
    """The next process knows what was checked, and when; of files that no row is known of it says
    so, and they come first."""
    life = Life(tmp_path / "cache")
    numbers = [file.number for file in life.files]
    life.later(5)
    with life.running():
        wait(lambda: all(file.checked_s == life.now_s for file in life.files))
    life.cache.kv.write([(layout.checked_key(numbers[2]), None)])
    life.cache.kv.write(
        [(layout.checked_key(4711), layout.encode_checked(1))]
    )  # of a file that went
    life.cache.close()
    again = Life(tmp_path / "cache", now_s=life.now_s + DAY_S)
    found = {file.number: file.checked_s for file in again.files}
    assert found == dict.fromkeys(numbers, int(life.now_s)) | {numbers[2]: 0}
    assert again.scrub.status()["scrub_never_bytes"] == 2 * MIB
    assert [file.number for file in again.scrub._due()] == [numbers[2]]
    again.cache.close()


def test_an_eviction_takes_the_row_along(life: Life) -> None:
    """No row of a check is left of a file that has gone."""
    life.later(5)
    with life.running():
        wait(lambda: all(file.checked_s == life.now_s for file in life.files))
    assert len(list(life.cache.kv.scan(layout.CHECKED))) == 4
    life.cache.eviction.free(64 * MIB)
    assert list(life.cache.kv.scan(layout.CHECKED)) == []


def test_others_come_first(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """While others use the disk no more than a piece is read; afterwards it goes on."""
    monkeypatch.setattr(scrubbing, "BUSY_PAUSE_S_MAX", 3600.0)
    monkeypatch.setattr(scrubbing, "BUSY_LOOK_S", 0.001)
    life.load.busy.set()
    life.later(5)
    with life.running():
        for _ in range(20):
            assert life.load.asked.acquire(timeout=60)
        assert life.counts.values[Counter.SCRUBBED_BYTES] == scrubbing.PIECE_SIZE_BYTES
        life.load.busy.clear()
        wait(lambda: all(file.checked_s == life.now_s for file in life.files))


def test_a_node_that_is_always_busy_is_scrubbed_slowly(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause for others ends after a time."""
    monkeypatch.setattr(scrubbing, "BUSY_PAUSE_S_MAX", 0.01)
    monkeypatch.setattr(scrubbing, "BUSY_LOOK_S", 0.001)
    life.load.busy.set()
    life.later(5)
    with life.running():
        wait(lambda: all(file.checked_s == life.now_s for file in life.files))


def test_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses together are at least as long as the bytes take at the rate that is set."""
    life = Life(tmp_path / "cache", rate=4 * MIB)
    life.later(5)
    pauses: list[float] = []

    def note(timeout: float | None = None) -> bool:
        pauses.append(timeout or 0.0)
        return False

    with monkeypatch.context() as patched:
        patched.setattr(life.scrub._stop, "wait", note)
        for file in life.scrub._due():
            life.check(file)
    assert sum(pauses) == pytest.approx(8 / 4)
    life.cache.close()


def test_without_descriptors_nothing_is_damaged(life: Life) -> None:
    """Files that cannot be opened just now stay, unchecked."""
    life.later(5)
    for file in life.scrub._due():
        with no_descriptors(), pytest.raises(Exception, match="Too many open files"):
            life.check(file)
    assert len(life.files) == 4
    assert life.counts.values[Counter.CACHE_CORRUPT] == 0
    assert all(file.checked_s == NOW_S for file in life.files)


def test_a_file_that_goes_meanwhile_is_no_damage(life: Life) -> None:
    """An eviction during the check leaves no row, and nothing is counted."""
    life.later(5)
    file = life.scrub._due()[0]
    life.load.is_busy = lambda: life.cache.eviction.evict(file)  # type: ignore[method-assign]
    life.scrub._owed_bytes = scrubbing.PIECE_SIZE_BYTES
    life.check(file)
    assert not file.is_alive
    assert life.cache.kv.get(layout.checked_key(file.number)) is None
    assert life.counts.values[Counter.CACHE_CORRUPT] == 0


BIG = random.Random(8).randbytes(2 * MIB)
SMALL = random.Random(9).randbytes(50_000)


@pytest.mark.parametrize("scrubs", [False, True])
def test_old_files_are_checked_before_the_proxy_uses_them(tmp_path: Path, scrubs: bool) -> None:
    """After a reboot, or the days, bits that flipped in slabs or complete flat files do not reach
    those who read through the proxy, with or without the scrub."""
    rig = Rig(tmp_path, {b"big": BIG, b"small": SMALL}, chunk_size_bytes=20_000)
    cache = CacheSettings(tmp_path / "cache", 64 * MIB)
    off = NodeSettings(cache, scrub=ScrubSettings(0))

    async def fill() -> None:
        async with rig.node(off) as node:
            assert await read_path(node, b"big") == BIG
            assert await read_path(node, b"small") == SMALL

    asyncio.run(fill())
    for path in (tmp_path / "cache").glob("[fs]*/*/*"):
        flip(path, path.stat().st_blocks * 512 // 2)
    later_s = 10 * DAY_S

    def aged(settings: CacheSettings, counts: Counts) -> Cache:
        import time

        return Cache(settings, counts, now_s=lambda: time.time() + later_s)

    settings = NodeSettings(cache, scrub=ScrubSettings(FAST)) if scrubs else off

    async def read() -> None:
        async with rig.node(settings, cache=aged) as node:
            assert await read_path(node, b"big") == BIG
            assert await read_path(node, b"small") == SMALL
            assert await read_path(node, b"big") == BIG
            assert node.counts.values[Counter.CACHE_CORRUPT] == 2

    asyncio.run(read())


def test_a_node_scrubs_by_itself(tmp_path: Path) -> None:
    """A running node finds what flipped, and its status shows the coverage."""
    rig = Rig(tmp_path, {b"big": BIG}, chunk_size_bytes=20_000)
    settings = NodeSettings(
        CacheSettings(tmp_path / "cache", 64 * MIB), keep_every_s=0.01, scrub=ScrubSettings(FAST)
    )

    async def fill() -> None:
        async with rig.node(settings) as node:
            await read_path(node, b"big")
            await until(lambda: node.status()["scrub_fresh_bytes"] == 2 * MIB)

    asyncio.run(fill())
    (path,) = (tmp_path / "cache").glob("flat/*/*")
    number = layout.number_of(path)
    assert number is not None
    flip(path)

    def forgotten(settings: CacheSettings, counts: Counts) -> Cache:
        cache = Cache(settings, counts)
        cache.files[number].checked_s = 0
        return cache

    async def scrub() -> None:
        async with rig.node(settings, cache=forgotten) as node:
            await until(lambda: not path.exists())
            assert await read_path(node, b"big") == BIG

    asyncio.run(scrub())


def test_what_grows_old_while_it_is_known_is_checked(tmp_path: Path) -> None:
    """Files that the proxy has read are damaged and grow old while it runs on: it checks them
    before it uses them again, although it knows where their bytes lie."""
    rig = Rig(tmp_path, {b"big": BIG, b"small": SMALL}, chunk_size_bytes=20_000)
    late_s = [0.0]

    def aging(settings: CacheSettings, counts: Counts) -> Cache:
        return Cache(settings, counts, now_s=lambda: NOW_S + late_s[0])

    async def run() -> None:
        settings = NodeSettings(
            CacheSettings(tmp_path / "cache", 64 * MIB),
            keep_every_s=0.01,
            scrub=ScrubSettings(bytes_per_s_max=0),
        )
        async with rig.node(settings, cache=aging) as node:
            for path, content in ((b"big", BIG), (b"small", SMALL)):
                assert await read_path(node, path) == content
            for file in (tmp_path / "cache").glob("[fs]*/*/*"):
                flip(file, file.stat().st_blocks * 512 // 2)
            late_s[0] = 10 * DAY_S
            files = list(node._cache.files.values())
            await until(lambda: all(file.is_stale for file in files))
            for path, content in ((b"big", BIG), (b"small", SMALL)):
                assert await read_path(node, path) == content

    asyncio.run(run())


def test_a_clock_that_is_set_back_does_not_make_all_files_old(life: Life) -> None:
    """A proxy that was started with a clock in the future: once it is right, files that were
    checked since the boot are not due for ever."""
    life.later(3650)
    settings, load = ScrubSettings(FAST), Idle()
    scrub = Scrub(life.cache, settings, load, look_every_s=0.001)
    life.later(-3650)
    for file in life.files:
        file.mark_checked(int(life.now_s))
    scrub.look()
    assert not any(file.is_stale for file in life.files)
