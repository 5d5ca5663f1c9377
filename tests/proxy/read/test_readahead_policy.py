"""Policy: what recorded access patterns cost, and who is evicted."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.tree import Segment
from lodefs.proxy.fetch.file_ranges import DatasetFile
from lodefs.proxy.read.readahead_policy import (
    KIB,
    MIB,
    PACK_MEMORY_S,
    REACH_FACTOR,
    REACH_SIZE_BYTES_MAX,
    UNIT_SIZE_BYTES_MAX,
    WINDOW_SIZE_BYTES_MAX,
    RandomReadWindow,
    ReadAhead,
    SmallFiles,
    unit_size,
)

GIB = 1024 * MIB
CHUNK = 64 * KIB


def test_the_first_read_fetches_nothing_ahead() -> None:
    """Latency first: what was asked for, alone."""
    assert ReadAhead(GIB).advance(5 * MIB, 5 * MIB + 4096, 5 * MIB + 4096) == (None, 0)


def test_sequential_small_reads_double_the_window_as_they_use_it() -> None:
    """4 KiB steps: little is ahead at first, the full window later, and never a gap or repeat."""
    ahead = ReadAhead(GIB)
    reach = 4096
    sizes = []
    for at in range(0, 200 * MIB, 4096):
        wanted, unit = ahead.advance(at, at + 4096, at + 4096)
        if wanted is None:
            reach = max(reach, at + 4096)
            continue
        assert wanted.first == max(reach, at + 4096)
        assert wanted.end - (at + 4096) <= WINDOW_SIZE_BYTES_MAX
        assert wanted.end <= 64 * (at + 4096) + MIB  # no more than a multiple of what was read
        reach = wanted.end
        sizes.append(unit)
    assert sizes == sorted(sizes)
    assert sizes[-1] == UNIT_SIZE_BYTES_MAX


def test_one_long_read_is_sequential_from_the_start() -> None:
    """A request for a whole file streams: its later parts are fetched while the first are sent."""
    wanted, unit = ReadAhead(GIB).advance(0, MIB, GIB)
    assert wanted == (MIB, 3 * MIB)
    assert unit == 512 * KIB


def test_nothing_is_fetched_past_the_end() -> None:
    """The last window ends with the file."""
    ahead = ReadAhead(3 * MIB)
    assert ahead.advance(0, MIB, 3 * MIB)[0] == (MIB, 3 * MIB)
    assert ahead.advance(MIB, 2 * MIB, 3 * MIB)[0] is None


def test_random_access_starts_anew() -> None:
    """A jump is a first read again, and readers at far places do not disturb each other."""
    ahead = ReadAhead(GIB)
    for step in range(4):
        ahead.advance(step * MIB, (step + 1) * MIB, (step + 1) * MIB)
    assert ahead.advance(700 * MIB, 700 * MIB + 4096, 700 * MIB + 4096) == (None, 0)
    assert ahead.advance(4 * MIB, 5 * MIB, 5 * MIB)[1] > 0


def test_a_reader_learns_how_far_bytes_are_on_their_way() -> None:
    """From its second read on, it learns the end of what was fetched ahead, and nowhere else."""
    ahead = ReadAhead(GIB)
    ahead.advance(0, MIB, MIB)
    assert ahead.coming_end(0) == 0
    fetched, _ = ahead.advance(MIB, 2 * MIB, 2 * MIB)
    assert fetched is not None
    assert ahead.coming_end(MIB) == ahead.coming_end(fetched.end) == fetched.end
    assert ahead.coming_end(fetched.end + 1) == 0
    ahead.refused(fetched.first)
    assert ahead.coming_end(MIB) == fetched.first


def test_refused_bytes_are_asked_for_again() -> None:
    """What was not fetched for lack of room is part of the next window."""
    ahead = ReadAhead(GIB)
    ahead.advance(0, MIB, GIB)
    ahead.refused(2 * MIB)
    wanted, _ = ahead.advance(MIB, 2 * MIB, GIB)
    assert wanted is not None
    assert wanted.first == 2 * MIB


def test_units_grow_to_the_best_size() -> None:
    """Small windows come in small units, so that several are under way at once."""
    assert unit_size(0) == 0
    assert unit_size(256 * KIB) == 256 * KIB
    assert unit_size(WINDOW_SIZE_BYTES_MAX) == UNIT_SIZE_BYTES_MAX


def amplification(file_bytes: int, reads: int, seed: int) -> float:
    """Chunks fetched for each distinct chunk that random 4 KiB reads of a file want."""
    rng = random.Random(seed)
    ahead, regions = ReadAhead(file_bytes), RandomReadWindow(file_bytes)
    here: set[int] = set()
    wanted: set[int] = set()
    for _ in range(reads):
        at = rng.randrange(file_bytes // 4096) * 4096
        wanted.add(at // CHUNK)
        more, _ = ahead.advance(at, at + 4096, at + 4096)
        if more is not None:
            here |= set(range(more.first // CHUNK, -(-more.end // CHUNK)))
        if at // CHUNK not in here:
            fetched_for = regions.miss(at, at + 4096)
            here |= set(range(fetched_for.first // CHUNK, -(-fetched_for.end // CHUNK)))
    return len(here) / len(wanted)


def test_sparse_random_reads_of_huge_files_fetch_little_more_than_they_want() -> None:
    """The price of guessing: under 1.2 for sparse reads, never above 3."""
    assert amplification(64 * GIB, 2000, seed=1) < 1.2
    for reads in (200, 1000, 3000, 10_000):
        assert amplification(GIB, reads, seed=2) < 3


def test_a_region_that_is_read_a_lot_is_fetched_whole() -> None:
    """The second miss nearby fetches more, the fifth all of the region's MiB."""
    regions = RandomReadWindow(GIB)
    sizes = []
    for n in range(6):
        at = 10 * MIB + n * 100 * KIB
        fetched_for = regions.miss(at, at + 4096)
        assert fetched_for.first <= at < at + 4096 <= fetched_for.end
        assert fetched_for.first >= 10 * MIB or fetched_for.first == at
        sizes.append(fetched_for.end - fetched_for.first)
    assert sizes == [4096, 128 * KIB, 256 * KIB, 512 * KIB, MIB, MIB]


@given(first=st.integers(0, 5 * MIB), size=st.integers(1, MIB), misses=st.integers(1, 9))
def test_a_region_contains_what_was_asked(first: int, size: int, misses: int) -> None:
    """Whatever is fetched includes the miss and lies in the file."""
    file_bytes = 6 * MIB + 1
    regions = RandomReadWindow(file_bytes)
    for _ in range(misses):
        fetched_for = regions.miss(first, first + size)
    assert 0 <= fetched_for.first <= first
    assert first + size <= fetched_for.end <= file_bytes


def small_files_cost(order: list[int], packs: int, files_in_pack: int) -> int:
    """Requests to the store for reading small files of 10 KiB, one chunk each, in an order."""
    small = SmallFiles()
    here: set[int] = set()
    requests = 0
    size = 10 * KIB
    for n, number in enumerate(order):
        if number in here:
            continue
        requests += 1
        pack = number // files_in_pack
        window, whole = small.miss(b"%d" % pack, n / 1000)
        low, high = pack * files_in_pack, (pack + 1) * files_in_pack
        first = max(low, number - window // 4 // size)
        here |= {number, *range(first, min(high, first + window // size))}
        if whole:
            requests += files_in_pack * size // UNIT_SIZE_BYTES_MAX
            here |= set(range(low, high))
    assert set(order) <= here
    return requests


def test_small_files_do_not_cost_a_request_each() -> None:
    """In order or shuffled, a whole dataset of small files takes a handful of requests a pack."""
    packs, files = 8, 6000
    order = list(range(packs * files))
    assert small_files_cost(order, packs, files) < 20 * packs
    random.Random(3).shuffle(order)
    assert small_files_cost(order, packs, files) < 20 * packs


def test_a_few_small_files_of_many_packs_fetch_themselves_alone() -> None:
    """One miss a pack, or misses that lie far apart in time, fetch no neighbours."""
    small = SmallFiles()
    for n in range(1000):
        assert small.miss(b"%d" % n, 0) == (0, False)
    for n in range(5):
        assert small.miss(b"slow", n * 2 * PACK_MEMORY_S) == (0, False)


def test_a_reader_reaches_as_far_as_a_multiple_of_what_it_has_read() -> None:
    """What is announced for it grows with what it has read, up to a limit; it is announced once,
    and never past the end of the file."""
    ahead, announced = ReadAhead(GIB), 0
    for at in range(100 * MIB, GIB, MIB):
        if ahead.advance(at, at + MIB, at + MIB)[0] is None:
            continue
        first, end = ahead.reach()
        assert first >= announced
        read = at + MIB - 100 * MIB
        assert end <= at + MIB + min(REACH_FACTOR * read, REACH_SIZE_BYTES_MAX)
        announced = end
    assert announced == GIB


@given(st.lists(st.integers(1, 9), max_size=8), st.integers(0, 70), st.integers(0, 70))
def test_segments_are_announced_once(sizes: list[int], after: int, end: int) -> None:
    """Those that end after one place and not after another, so that each is in one range."""
    pack = PackId(bytes(32))
    known = DatasetFile(tuple(Segment(pack, 0, 1, size) for size in sizes))
    ends = known.starts[1:]
    wanted = [n for n, at in enumerate(ends) if after < at <= end]
    assert list(known.segments_ending(after, end)) == wanted
