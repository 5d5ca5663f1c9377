"""A scrub reads everything within so many runs, at its rate, and goes on finding what is
damaged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction

import pytest

from lodefs.chunkstore.errors import InvalidInput, Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.repair.packs import PackDamage
from lodefs.chunkstore.repair.scrub import (
    ScrubOptions,
    ScrubResult,
    SizedPack,
    examine_group,
    parse_share,
    scrub,
    scrub_share,
)
from lodefs.chunkstore.system.parallel_map import grouped
from lodefs.chunkstore.system.task_share import TaskShare
from tests.support.chunkstore.faulty_store import FaultyObjects, fail
from tests.support.chunkstore.handmade import Handmade, memory_store
from tests.support.chunkstore.memory_objects import MemoryObjects

RUNS = 5


@pytest.fixture
def memory() -> MemoryObjects:
    """A store of some dozen packs of one size."""
    made = Handmade(memory_store(), pack_chunks=1)
    files = {b"%02d" % n: bytes((n + i * i) % 256 for i in range(1000)) for n in range(30)}
    made.commit("r", files)
    assert isinstance(made.store.objects, MemoryObjects)
    return made.store.objects


def run(objects: FaultyObjects | MemoryObjects, share: str = f"1/{RUNS}") -> ScrubResult:
    """One run, on a day of its own."""
    return scrub(objects, ScrubOptions(parse_share(share), workers=2, clock=lambda: 1e9))


def rounds(result: ScrubResult) -> int:
    """The rounds that are over."""
    assert result.ledger is not None
    return result.ledger.rounds


def test_all_is_read_within_the_runs(memory: MemoryObjects) -> None:
    """So many runs of a share read each pack once, those with a damaged byte among them; the next
    round begins after the last, and packs that come in between have their turn."""
    packs = sorted(key for key in memory.objects if key.startswith(keys.PACKS))
    damaged = packs[len(packs) // 2]
    memory.objects[damaged] = b"\0" + memory.objects[damaged][1:]
    objects = FaultyObjects(memory)
    results: list[ScrubResult] = []
    while not results or rounds(results[-1]) == 0:
        results.append(run(objects))
    assert RUNS - 1 <= len(results) <= RUNS
    read = {call.key for call in objects.calls if call.operation == "get"} - {keys.SCRUB}
    assert sorted(read) == packs
    assert sum(result.packs for result in results) >= len(packs)
    assert [len(result.damaged) for result in results][-1] == 1
    assert results[-1].damaged[0].pack_id.hex() in damaged
    memory.objects[damaged] = memory.objects[packs[0]]  # still wrong
    assert len(run(objects).damaged) == 1
    del memory.objects[damaged]  # collected
    assert run(objects).damaged == []


def test_an_interrupted_run_counts(memory: MemoryObjects) -> None:
    """A store that fails half way: the next run goes on from there. A damaged ledger begins
    anew."""
    objects = FaultyObjects(memory)
    objects.add(fail(Unavailable("gone")), "get", keys.PACKS, first=9, times=1)
    with pytest.raises(Unavailable):
        run(objects, "1/1")
    objects.forget()
    again = run(objects, "1/1")
    assert rounds(again) == 1
    memory.objects[keys.SCRUB] = b"rubbish"
    assert rounds(run(objects)) == 0


def test_the_rate_is_kept(memory: MemoryObjects) -> None:
    """It waits before each pack for as long as the rate says."""
    now_s = [0.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    options = ScrubOptions(Fraction(1), 1000, 1, sleep=sleep, timer=lambda: now_s[0])
    result = scrub(memory, options)
    assert result.size_bytes / 1000 * 0.9 < now_s[0] <= result.size_bytes / 1000


def test_an_executor_gives_the_same_result(memory: MemoryObjects) -> None:
    """Whoever examines the packs: the result, and the ledger in the store, are the same."""
    for key in sorted(key for key in memory.objects if key.startswith(keys.PACKS))[::5]:
        memory.objects[key] = b"\0" + memory.objects[key][1:]
    plain, other = MemoryObjects(), MemoryObjects()
    plain.objects, other.objects = dict(memory.objects), dict(memory.objects)
    options = ScrubOptions(Fraction(1, 3), workers=2, clock=lambda: 1e9)

    def by_groups(packs: Iterable[SizedPack]) -> Iterator[PackDamage | None]:
        for group in grouped(packs, lambda one: one[1], 2000, 3):
            yield from examine_group(other, [pack for pack, _ in group], 2)

    for _ in range(4):
        mine = scrub(other, options, examine_packs=by_groups)
        assert mine == scrub(plain, options)
        assert mine.damaged
    assert other.objects == plain.objects


@pytest.mark.parametrize("tasks", [1, 2, 7, 100])
def test_parts_together_are_a_scrub(memory: MemoryObjects, tasks: int) -> None:
    """Each pack is in one part, and nothing is written."""
    for key in sorted(key for key in memory.objects if key.startswith(keys.PACKS))[::5]:
        memory.objects[key] = b"\0" + memory.objects[key][1:]
    before = dict(memory.objects)
    options = ScrubOptions(Fraction(1), workers=2)
    parts = [scrub_share(memory, TaskShare(n, tasks), options) for n in range(1, tasks + 1)]
    assert memory.objects == before
    whole = scrub(memory, options)
    assert sum(part.packs for part in parts) == whole.packs > 30
    assert sum(part.store_bytes for part in parts) == whole.size_bytes
    assert [damage for part in parts for damage in part.damaged] == whole.damaged != []


def test_an_empty_pack_is_read(memory: MemoryObjects) -> None:
    """A pack that was cut off to nothing has no bytes to count, and is found all the same."""
    last = max(key for key in memory.objects if key.startswith(keys.PACKS))
    memory.objects[last] = b""
    assert len(run(memory, "1/1").damaged) == 1


def test_an_empty_store() -> None:
    """There is nothing to read."""
    store = memory_store()
    assert isinstance(store.objects, MemoryObjects)
    assert run(store.objects).packs == 0


@pytest.mark.parametrize("words", ["", "30", "0/30", "31/30", "1/0", "-1/3", "1/30 "])
def test_shares_that_are_none(words: str) -> None:
    """They are refused."""
    with pytest.raises(InvalidInput, match="1/30"):
        parse_share(words)
