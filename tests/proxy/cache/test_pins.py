"""Pins: what they hold stays, through evictions, restarts and other pins' ends."""

from __future__ import annotations

import logging
import random
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lodefs.chunkstore.errors import NoSpace
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.layout import PinRow
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.chunk_cache import Cache, Flat
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.metrics.counters import Counter, Counts
from tests.support.proxy.rig import at_once, chunk_of

MIB = 1024 * 1024
COMMIT = "ab" * 32
PIN, OTHER = b"12345678", b"abcdefgh"


def row(until_s: int, *, path: bytes = b"") -> PinRow:
    """A pin's row."""
    return PinRow("data/set", COMMIT, path, path, until_s, 1000, is_complete=True)


class Rig:
    """A cache with its pins, and a clock that a test moves."""

    def __init__(self, directory: Path, *, size_bytes_max: int = 8 * MIB) -> None:
        self.settings = CacheSettings(directory, size_bytes_max, free_size_bytes_min=0)
        self.now_s = 1000
        self.counts = Counts()
        self.open()

    def open(self) -> None:
        """The next process."""
        self.cache = Cache(self.settings, self.counts, now_s=lambda: self.now_s, call_soon=at_once)
        self.pins = self.cache.pins

    def restart(self) -> None:
        """kill -9, and the next process."""
        self.cache.close()
        self.open()

    def is_pinned(self, file: CacheFile) -> bool:
        """Whether a file, perhaps of an earlier process, is pinned now."""
        return self.cache.files[file.number].pinned_until_s > self.now_s

    def store(self, seed: int, size_bytes: int = MIB) -> CacheFile | None:
        """Another file of the cache: a flat one."""
        raw = random.Random(seed).randbytes(size_bytes)
        chunk = chunk_of(raw)
        stored = self.cache.store([chunk], Flat(digest_of(raw), size_bytes))
        return stored[0].file if stored else None


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "cache")


def test_pinned_files_are_not_evicted(rig: Rig) -> None:
    """Eviction takes everything but what a pin holds, and that too when the pin is over."""
    kept, gone = rig.store(1), rig.store(2)
    assert kept and gone
    rig.pins.put(PIN, row(2000))
    assert rig.pins.hold(PIN, [kept])
    rig.cache.eviction.free(100 * MIB)
    assert list(rig.cache.files) == [kept.number]
    assert not rig.cache.eviction.evict(kept)
    rig.now_s = 2000
    rig.cache.eviction.free(100 * MIB)
    assert not rig.cache.files


def test_pins_outlive_the_process(rig: Rig) -> None:
    """After a restart the pin holds the same files, until the same time."""
    kept = rig.store(1)
    assert kept
    rig.store(2)
    rig.pins.put(PIN, row(2000))
    rig.pins.hold(PIN, [kept])
    rig.restart()
    assert rig.pins.listed()[PIN].row == row(2000)
    rig.cache.eviction.free(100 * MIB)
    assert list(rig.cache.files) == [kept.number]
    assert rig.pins.pinned_bytes() == MIB
    assert rig.pins.pinned_bytes(but=PIN) == 0


def test_the_longer_of_two_pins_counts(rig: Rig) -> None:
    """A file that two pins hold stays until both are over or removed."""
    kept = rig.store(1)
    assert kept
    for pin_id, until_s in ((PIN, 2000), (OTHER, 3000)):
        rig.pins.put(pin_id, row(until_s))
        assert rig.pins.hold(pin_id, [kept])
    rig.pins.remove([OTHER])
    assert rig.is_pinned(kept)
    rig.pins.put(OTHER, row(3000))
    rig.pins.hold(OTHER, [kept])
    rig.now_s = 2500
    assert rig.is_pinned(kept)
    rig.now_s = 3000
    assert not rig.is_pinned(kept)


def test_a_pin_is_prolonged_and_never_shortened(rig: Rig) -> None:
    """Asking for the same again moves its end to the later of both."""
    kept = rig.store(1)
    assert kept
    assert rig.pins.put(PIN, row(2000))
    rig.pins.hold(PIN, [kept])
    assert not rig.pins.put(PIN, row(3000))
    assert not rig.pins.put(PIN, row(1500))
    assert rig.pins.listed()[PIN].row.until_s == 3000
    rig.now_s = 2500
    assert rig.is_pinned(kept)


def test_owners_outlive_the_process(rig: Rig) -> None:
    """Each owner's end is known to the next process; who lets go of nothing changes nothing."""
    kept = rig.store(1)
    assert kept
    rig.pins.put(PIN, row(2000))
    rig.pins.put(PIN, msgspec.structs.replace(row(3000), owners={"docker": 3000}))
    assert rig.pins.hold(PIN, [kept])
    rig.restart()
    rig.pins.release([PIN, OTHER], "nobody")
    assert rig.pins.listed()[PIN].row.owners == {"": 2000, "docker": 3000}
    rig.pins.release([PIN], "docker")
    rig.restart()
    assert rig.pins.listed()[PIN].row == row(2000)
    assert rig.is_pinned(kept)
    rig.now_s = 2000
    assert not rig.is_pinned(kept)
    rig.pins.release([PIN], "")
    assert rig.pins.listed() == {}
    assert list(rig.cache.kv.scan(layout.HELD)) == []


def test_a_file_that_has_gone_cannot_be_held(rig: Rig) -> None:
    """Whoever comes after the eviction is told so, and nothing is held by halves."""
    first, second = rig.store(1), rig.store(2)
    assert first and second
    rig.pins.put(PIN, row(2000))
    rig.cache.eviction.evict(second)
    assert not rig.pins.hold(PIN, [first, second])
    assert not rig.is_pinned(first)
    assert not rig.pins.hold(OTHER, [first])


def test_a_damaged_file_goes_although_it_is_pinned(rig: Rig) -> None:
    """Wrong bytes are dropped, whoever holds them."""
    kept = rig.store(1)
    assert kept
    rig.pins.put(PIN, row(2000))
    rig.pins.hold(PIN, [kept])
    rig.cache.eviction.drop(kept, "wrong bytes")
    assert not rig.cache.files
    assert rig.pins.pinned_bytes() == 0


def test_no_rows_stay_behind(rig: Rig) -> None:
    """When a pin is removed or over, the index holds no trace of it; others keep theirs."""
    kept = rig.store(1)
    assert kept
    for pin_id, until_s in ((PIN, 2000), (OTHER, 3000), (b"third...", 4000)):
        rig.pins.put(pin_id, row(until_s))
        rig.pins.hold(pin_id, [kept])
    rig.cache.kv.write([(layout.held_key(b"orphan..", 9), b"")])  # of a kill between two writes
    rig.now_s = 2500
    rig.pins.expire()
    rig.pins.remove([b"third..."])
    assert [key for key, _ in rig.cache.kv.scan(layout.PINS)] == [layout.pin_key(OTHER)]
    held = [key for key, _ in rig.cache.kv.scan(layout.HELD)]
    assert held == [layout.held_key(OTHER, kept.number)]
    rig.restart()
    assert list(rig.pins.listed()) == [OTHER]


def test_a_damaged_row_costs_its_pin_alone(rig: Rig) -> None:
    """A pin whose row cannot be read is forgotten, and the cache opens."""
    rig.pins.put(OTHER, row(3000))
    rig.cache.kv.write([(layout.pin_key(PIN), b"\xc1")])
    rig.restart()
    assert list(rig.pins.listed()) == [OTHER]
    assert [key for key, _ in rig.cache.kv.scan(layout.PINS)] == [layout.pin_key(OTHER)]


def test_a_pin_whose_files_cannot_be_noted_holds_none(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the index is full, nothing is held that the next process would not hold."""
    kept = rig.store(1)
    assert kept
    rig.pins.put(PIN, row(2000))

    def full(*_: object, **__: object) -> None:
        raise NoSpace("the index is full")

    with monkeypatch.context() as patched:
        patched.setattr(rig.cache.kv, "write", full)
        with pytest.raises(NoSpace):
            rig.pins.hold(PIN, [kept])
    assert not rig.is_pinned(kept)
    assert rig.pins.hold(PIN, [kept])
    rig.restart()
    assert rig.is_pinned(kept)


def test_a_cache_full_of_pins_serves_without_keeping(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """What does not fit beside pinned data is not kept; that is counted each time, and said
    once."""
    rig.pins.put(PIN, row(2000))
    files = [rig.store(seed) for seed in range(7)]
    assert rig.pins.hold(PIN, [file for file in files if file])
    with caplog.at_level(logging.WARNING, "lodefs.cache"):
        assert [rig.store(seed, 2 * MIB) for seed in range(10, 13)] == [None] * 3
    assert rig.counts.values[Counter.PINNED_FULL] == 3
    assert sum("full of pinned data" in record.message for record in caplog.records) == 1
    assert rig.cache.used_bytes == 7 * MIB
    rig.pins.remove([PIN])
    assert rig.store(20, 2 * MIB) is not None


def test_a_pin_that_cannot_be_written_is_none(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the index is full the caller hears of it, and nothing looks pinned."""

    def full(*_: object, **__: object) -> None:
        raise NoSpace("the index is full")

    monkeypatch.setattr(rig.cache.kv, "write", full)
    with pytest.raises(NoSpace):
        rig.pins.put(PIN, row(2000))
    assert rig.pins.listed() == {}


class PinsAndEvictions(RuleBasedStateMachine):
    """Any order of filling, pinning, evicting, time passing, kills."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.rig = Rig(Path(self.folder.name) / "cache")
        self.held: dict[int, int] = {}  # number to when the last pin ends
        self.pins: dict[bytes, int] = {}
        self.by_pin: dict[bytes, set[int]] = {}

    @rule(seed=st.integers(0, 30), size_bytes=st.sampled_from([MIB, MIB + 77, 2 * MIB]))
    def store(self, seed: int, size_bytes: int) -> None:
        self.rig.store(seed * 3 + size_bytes % 3, size_bytes)

    @rule(seed=st.integers(100, 120))
    def store_small(self, seed: int) -> None:
        raw = random.Random(seed).randbytes(200_000)
        self.rig.cache.store([chunk_of(raw)], None)

    @rule(pin_id=st.sampled_from([PIN, OTHER]), for_s=st.integers(1, 50))
    def pin(self, pin_id: bytes, for_s: int) -> None:
        until_s = self.rig.now_s + for_s
        self.rig.pins.put(pin_id, row(until_s))
        if self.pins.get(pin_id, 0) <= self.rig.now_s:  # over until now: some of it may be gone
            self.by_pin[pin_id] = self.by_pin.get(pin_id, set()) & set(self.rig.cache.files)
        self.pins[pin_id] = max(until_s, self.pins.get(pin_id, 0))
        self.by_pin.setdefault(pin_id, set())

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        files = list(self.rig.cache.files.values())
        pin_id = data.draw(st.sampled_from(sorted(self.pins)))
        if files:
            file = data.draw(st.sampled_from(files))
            assert self.rig.pins.hold(pin_id, [file])
            self.by_pin[pin_id].add(file.number)

    @rule(size_bytes=st.integers(1, 10 * MIB))
    def free(self, size_bytes: int) -> None:
        self.rig.cache.eviction.free(size_bytes)

    @rule(seconds=st.integers(1, 30))
    def wait(self, seconds: int) -> None:
        self.rig.now_s += seconds

    @rule()
    def expire(self) -> None:
        self.rig.pins.expire()
        for pin_id in [one for one, until_s in self.pins.items() if until_s <= self.rig.now_s]:
            del self.pins[pin_id], self.by_pin[pin_id]

    @rule(pin_id=st.sampled_from([PIN, OTHER]))
    def remove(self, pin_id: bytes) -> None:
        self.rig.pins.remove([pin_id])
        self.pins.pop(pin_id, None)
        self.by_pin.pop(pin_id, None)

    @rule()
    def restart(self) -> None:
        self.rig.restart()

    @invariant()
    def what_is_pinned_is_there(self) -> None:
        for pin_id, until_s in self.pins.items():
            if until_s > self.rig.now_s:
                assert self.by_pin[pin_id] <= set(self.rig.cache.files)

    @invariant()
    def the_limit_holds(self) -> None:
        assert self.rig.cache.used_bytes <= self.rig.settings.size_bytes_max

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.rig.cache.close()
            self.folder.cleanup()


@pytest.mark.slow
def test_pins_against_evictions() -> None:
    """Whatever happens in whatever order: what is pinned stays, and the limit holds."""
    run_state_machine_as_test(
        PinsAndEvictions,
        settings=hypothesis_settings(max_examples=40, stateful_step_count=25, deadline=None),
    )
