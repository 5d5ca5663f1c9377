"""Policy of chunks that were here before: what recorded patterns of misses fetch."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.proxy.read.readahead_policy import (
    KIB,
    MIB,
    STREAMS_MAX,
    UNIT_SIZE_BYTES_MAX,
    ReadAhead,
)
from lodefs.proxy.read.refault_tracker import MISSES_KEPT, PACKS_MAX, RefaultTracker

PACK_BYTES = 64 * MIB
FILE_BYTES = 100 * KIB
FILES = PACK_BYTES // FILE_BYTES


def pack(number: int) -> bytes:
    """The id of a pack."""
    return number.to_bytes(32, "big")


def test_chunks_are_known_that_were_fetched() -> None:
    """Those of each note, and no others, also of other packs."""
    refetches = RefaultTracker()
    refetches.note(pack(1), 10, 5)
    refetches.note(pack(1), 100, 1)
    known = [n for n in range(200) if refetches.was_fetched(pack(1), n)]
    assert known == [10, 11, 12, 13, 14, 100]
    assert not refetches.was_fetched(pack(2), 10)


def test_only_what_was_never_fetched_comes_along() -> None:
    """The neighbours of a new chunk up to those that were here before, or the unit's ends."""
    refetches = RefaultTracker()
    refetches.note(pack(1), 10, 5)
    refetches.note(pack(1), 40, 1)
    assert refetches.new_around(pack(1), 0, 100, range(20, 22)) == range(15, 40)
    assert refetches.new_around(pack(1), 18, 30, range(20, 22)) == range(18, 30)
    assert refetches.new_around(pack(1), 0, 100, range(60, 61)) == range(41, 100)


@given(
    known=st.sets(st.integers(0, 63)),
    bounds=st.lists(st.integers(0, 64), min_size=4, max_size=4).map(sorted),
)
def test_it_reaches_to_the_next_known_chunk(known: set[int], bounds: list[int]) -> None:
    """On each side all that comes along is new, and the next is known or beyond the bounds."""
    first, start, stop, end = bounds
    refetches = RefaultTracker()
    for chunk in known:
        refetches.note(pack(1), chunk, 1)
    found = refetches.new_around(pack(1), first, end, range(start, stop))
    assert first <= found.start <= start <= stop <= found.stop <= end
    assert known.isdisjoint({*range(found.start, start), *range(stop, found.stop)})
    assert found.start == first or found.start - 1 in known
    assert found.stop == end or found.stop in known


def test_packs_used_long_ago_are_forgotten() -> None:
    """Memory is bounded, whatever is read."""
    refetches = RefaultTracker()
    for number in range(PACKS_MAX + 1):
        refetches.note(pack(number), 0, 1)
    assert not refetches.was_fetched(pack(0), 0)
    assert refetches.was_fetched(pack(1), 0)


def test_shuffled_files_come_alone() -> None:
    """Files of a hundred packs at random: hardly more is fetched than is read."""
    refetches, source, fetched_for = RefaultTracker(), random.Random(1), 0
    for _ in range(5_000):
        first = source.randrange(FILES) * FILE_BYTES
        got = refetches.miss(pack(source.randrange(100)), first, first + FILE_BYTES)
        fetched_for += got.end - got.first
    assert fetched_for < 1.05 * 5_000 * FILE_BYTES


def test_files_in_order_come_in_large_units() -> None:
    """Who reads a pack's files one after the other has few misses, also beside random ones."""
    refetches, source, misses, reach = RefaultTracker(), random.Random(2), 0, 0
    for at in range(0, PACK_BYTES, FILE_BYTES):
        other = source.randrange(FILES) * FILE_BYTES
        refetches.miss(pack(source.randrange(1, 100)), other, other + FILE_BYTES)
        if at + FILE_BYTES > reach:
            got = refetches.miss(pack(0), at, at + FILE_BYTES)
            assert got.first == at
            assert got.end - at <= UNIT_SIZE_BYTES_MAX
            reach, misses = got.end, misses + 1
    assert misses < FILES // 10


def test_files_of_one_folder_come_together() -> None:
    """Files that are shuffled within 12 MiB of a pack: fewer misses than files, a bounded waste."""
    refetches, source = RefaultTracker(), random.Random(3)
    files = [n * FILE_BYTES for n in range(200, 320)]
    here: set[int] = set()
    misses = fetched_for = 0
    for first in source.sample(files, len(files)):
        if first in here:
            continue
        got = refetches.miss(pack(0), first, first + FILE_BYTES)
        fetched_for += got.end - got.first
        here.update(range(got.first // FILE_BYTES * FILE_BYTES, got.end, FILE_BYTES))
        misses += 1
    assert misses < len(files) // 2
    assert fetched_for < 3 * len(files) * FILE_BYTES


def test_misses_of_long_ago_say_nothing() -> None:
    """As many misses elsewhere as are remembered, and a miss beside earlier ones is a first one."""
    refetches = RefaultTracker()
    for n in range(10):
        refetches.miss(pack(0), n * MIB // 4, n * MIB // 4 + FILE_BYTES)
    for number in range(1, MISSES_KEPT + 1):
        refetches.miss(pack(number), 0, FILE_BYTES)
    assert refetches.miss(pack(0), MIB, MIB + FILE_BYTES) == (MIB, MIB + FILE_BYTES)


def blocks_ahead(size_bytes: int, *, is_sure: bool) -> float:
    """Bytes read ahead for each byte of shuffled blocks of a file of such a size."""
    ahead, source = ReadAhead(size_bytes), random.Random(4)
    block = 64 * KIB
    places = range(0, size_bytes, block)
    wanted = 0
    for at in [at for _ in range(4) for at in source.sample(places, len(places))]:
        fetched_for, _ = ahead.advance(at, at + block, at + block, is_sure=is_sure)
        wanted += 0 if fetched_for is None else fetched_for.end - fetched_for.first
        if fetched_for is not None:
            ahead.refused(
                fetched_for.first
            )  # evicted before it is read: it will be asked for again
    return wanted / (4 * size_bytes)


def test_shuffled_blocks_are_not_taken_for_reading_on() -> None:
    """Where what is fetched is evicted unread, random reads of a file fetch little ahead."""
    assert blocks_ahead(256 * MIB, is_sure=True) < 0.3


def test_who_is_sure_sees_readers_read_on() -> None:
    """Steps one after the other still double the window, with reads elsewhere in between, and if
    only those steps are seen that reach beyond what was fetched."""
    ahead, source = ReadAhead(4096 * MIB), random.Random(5)
    reach, units = 0, []
    for at in range(0, 400 * MIB, 256 * KIB):
        if at % (4 * MIB) == 0:
            elsewhere = source.randrange(1024 * MIB, 4000 * MIB)
            ahead.advance(elsewhere, elsewhere + 4096, elsewhere + 4096, is_sure=True)
        if at + 256 * KIB <= reach:
            continue
        wanted, unit = ahead.advance(at, at + 256 * KIB, at + 256 * KIB, is_sure=True)
        reach = wanted.end if wanted is not None else at + 256 * KIB
        units.append(unit)
    assert units[-1] == UNIT_SIZE_BYTES_MAX
    assert len(units) < 30


def misses_in_turn(ahead: ReadAhead, readers: int, random_reads: int) -> tuple[int, int]:
    """Steps of sequential readers of one file, each after those of all others, that fetched nothing
    ahead of their reader before they were made; and all steps. Between two rounds others read here
    and there, out of their way."""
    part, step, source = 16 * MIB, 256 * KIB, random.Random(6)
    reach, misses = [0] * readers, 0
    for at in range(0, part, step):
        for reader in range(readers):
            first = reader * part + at
            wanted, _ = ahead.advance(first, first + step, first + step, is_sure=True)
            misses += first + step > reach[reader]
            reach[reader] = max(reach[reader], first + step if wanted is None else wanted.end)
        for _ in range(random_reads):
            elsewhere = source.randrange(readers * part // step, 16_000) * step
            ahead.advance(elsewhere, elsewhere + step, elsewhere + step, is_sure=True)
    return misses, readers * part // step


@pytest.mark.parametrize(("readers", "random_reads"), [(16, 0), (17, 0), (64, 0), (32, 16)])
def test_who_is_sure_knows_many_readers(readers: int, random_reads: int) -> None:
    """Each of as many readers as are told apart keeps his window, also beside others at random."""
    misses, steps = misses_in_turn(ReadAhead(4096 * MIB), readers, random_reads)
    assert misses <= 3 * readers < steps / 10


def test_readers_by_chance_are_forgotten() -> None:
    """Many windows that nobody uses any more do not keep new readers out."""
    ahead = ReadAhead(4096 * MIB)
    misses_in_turn(ahead, 64, 0)
    for at in range(2048 * MIB, 3072 * MIB, MIB):
        ahead.advance(at, at + 4096, at + 4096, is_sure=True)
    units = [
        ahead.advance(at, at + MIB, at + MIB, is_sure=True)[1]
        for at in range(3072 * MIB, 3136 * MIB, MIB)
    ]
    assert units[-1] == UNIT_SIZE_BYTES_MAX
    assert sum(stream.window > 0 for stream in ahead._streams) < STREAMS_MAX // 4
