"""`lodefs bench-store`: what it measures, what it advises, and that nothing stays behind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from lodefs import bench_store
from lodefs.bench_store import CONCURRENCIES, Measured, Plan, Rate, advice, measure
from lodefs.chunkstore.errors import Denied, InvalidInput, Unavailable
from lodefs.chunkstore.objects.interface import Part
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.types import Buffer
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import Lodefs

PLAN = Plan(seconds=0.05, bytes_max=64 << 20, write=True)
KEYS = {"store", "first_byte_s", "first_byte_worst_s", "reads", "ranges", "list_keys_per_s",
        "listed_keys", "writes", "read_bytes", "written_bytes", "recommended"}  # fmt: skip


@pytest.fixture(autouse=True)
def small_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is small here."""
    monkeypatch.setattr(bench_store, "OBJECT_BYTES", 1 << 16)


def measured(rates: dict[int, float], *, failed: int | None = None, **more: float) -> Measured:
    """A run with these rates by concurrency; from ``failed`` at once on, requests failed."""
    busy = more.pop("cpu_share", 0.1)
    reads = [
        Rate(n, 8 << 20, rate, 9, int(failed is not None and n >= failed), busy)
        for n, rate in rates.items()
    ]
    ranges = [Rate(16, 1 << 20, 10.0, 9, 0, 0.1), Rate(16, 8 << 20, 100.0, 9, 0, 0.1)]
    return Measured("s3://b", more.pop("first_byte_s", 0.01), 0.1, reads, ranges, None, 0, None,
                    0, 0)  # fmt: skip


def test_advice_follows_the_figures() -> None:
    """What more requests gain, what throttling forbids, what a slow answer needs."""
    grows = advice(measured({1: 1.0, 4: 4.0, 16: 16.0, 64: 64.0}))
    assert grows.fetch_concurrency == 64
    assert "still grows" in grows.reasons[0]
    flat = advice(measured({1: 50.0, 4: 98.0, 16: 99.0, 64: 100.0}))
    assert flat.fetch_concurrency == 32
    assert flat.reasons[0].startswith("4 in parallel reach 90 %")
    throttled = advice(measured({1: 1.0, 4: 4.0, 16: 16.0, 64: 64.0}, failed=16))
    assert throttled.fetch_concurrency == 8
    far = advice(measured({1: 50.0, 4: 98.0, 16: 99.0, 64: 100.0}, first_byte_s=0.3))
    assert far.fetch_concurrency == 64
    busy = advice(measured({1: 1.0, 4: 4.0}, cpu_share=0.99))
    assert any("data_processes" in reason for reason in busy.reasons)
    assert any("8 MiB, which lodefs reads, suit" in reason for reason in busy.reasons)


def test_measures_and_cleans_up() -> None:
    """All steps are measured within the bytes, what was written is gone, and so are leftovers of a
    run that was killed an hour ago; others' stay."""
    objects = MemoryObjects()
    old, young = (f"probe/bench-{int(time.time()) - ago}-ab-0" for ago in (9000, 5))
    kept = {young: b"x", "probe/other": b"x", "store.json": b"x"}
    objects.objects = {old: b"x", **kept}
    progress = Progress()
    found = measure(objects, PLAN, progress)
    assert objects.objects == kept
    assert [one.concurrency for one in found.reads] == list(CONCURRENCIES)
    assert all(one.bytes_per_s > 0 for one in (*found.reads, *found.ranges))
    assert 0 < found.read_bytes <= PLAN.bytes_max
    assert found.writes is not None and found.writes.small_s > 0


class Failing(MemoryObjects):
    """Fails in one way after some calls."""

    def __init__(self, puts: int, gets: int) -> None:
        super().__init__()
        self.puts, self.gets = puts, gets

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        self.puts -= 1
        if self.puts < 0:
            raise Denied("no writes")
        return super().put(key, data, if_absent=if_absent)

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        self.gets -= 1
        if self.gets < 0:
            raise Unavailable("SlowDown")
        return super().get(key, offset=offset, size=size, if_match=if_match)


@pytest.mark.parametrize(
    ("puts", "gets", "error"), [(3, 0, Denied), (99, 0, Unavailable), (99, 30, Unavailable)]
)
def test_cleans_up_after_failures(puts: int, gets: int, error: type[Exception]) -> None:
    """A store that fails while it is written or read keeps nothing of it, and its error is told."""
    objects = Failing(puts, gets)
    with pytest.raises(error):
        measure(objects, PLAN, Progress())
    assert objects.objects == {}


def test_empty_store() -> None:
    """There is nothing to read from an empty store, and the way out is named."""
    with pytest.raises(InvalidInput, match="--write"):
        measure(MemoryObjects(), PLAN._replace(write=False), Progress())


def test_command(lodefs: Lodefs, tmp_path: Path) -> None:
    """The command writes what is documented, for scripts and for people."""
    store = tmp_path / "store"
    store.mkdir()
    options = ("--write", "--seconds", "0.05", "--bytes-max", "32MiB")
    found = lodefs("bench-store", str(store), *options, "--json")
    assert set(found.json) == KEYS
    assert list(store.rglob("bench-*")) == []
    shown = lodefs("bench-store", *options, LODEFS_STORE=str(store))
    assert shown.code == 0
    assert "recommended fetch_concurrency = " in shown.out


def test_mistakes(lodefs: Lodefs, tmp_path: Path) -> None:
    """A mistyped directory is not made, and a bad size is refused."""
    missing = tmp_path / "missing"
    ran = lodefs("bench-store", "--write", str(missing))
    assert (ran.code, missing.exists()) == (3, False)
    assert lodefs("bench-store", "--bytes-max", "x", str(tmp_path)).code == 2
