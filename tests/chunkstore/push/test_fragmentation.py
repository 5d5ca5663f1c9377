"""Which chunks are stored again so that files stay in long runs."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.tree import Segment
from lodefs.chunkstore.push.fragmentation import (
    RUN_CHUNKS_MIN,
    UNKNOWN,
    Layout,
    Run,
    chunks_to_store,
    join,
    join_runs,
    longest_runs,
    place_all,
)

FRESH = 1 << 40
# Runs of old chunks and stretches of new ones: (place of the first or UNKNOWN, length)
stretches = st.lists(
    st.tuples(st.one_of(st.just(UNKNOWN), st.integers(0, 10_000)), st.integers(1, 40)), max_size=12
)
parts = st.lists(stretches, min_size=1, max_size=4)


def places_of(runs: list[tuple[int, int]]) -> list[int]:
    return [
        UNKNOWN if place == UNKNOWN else place + n for place, length in runs for n in range(length)
    ]


def sizes_of(part: list[int]) -> list[int]:
    return [1 + n % 7 for n in range(len(part))]


def lay(files: list[list[int]]) -> tuple[list[int], list[bool], Layout]:
    """The parts of one file, one after the other: places, flags, and the layout at the end."""
    layout, fresh = Layout(), FRESH
    places: list[int] = []
    flags: list[bool] = []
    for part in files:
        wanted = chunks_to_store(part, layout, fresh)
        runs, layout = place_all(part, sizes_of(part), wanted, fresh, layout)
        for run in runs:
            places.extend(range(run.place, run.end))
        assert sum(run.size_bytes for run in runs) == sum(sizes_of(part))
        fresh += sum(wanted)
        flags += wanted
    return places, flags, layout


@given(parts)
def test_every_chunk_has_its_old_place_or_a_new_one(file: list[list[tuple[int, int]]]) -> None:
    """Reused chunks lie where they were, wanted ones are numbered on, and no new one is left."""
    known = [places_of(part) for part in file]
    places, flags, _ = lay(known)
    flat = [place for part in known for place in part]
    assert len(places) == len(flags) == len(flat)
    fresh = FRESH
    for old, place, wanted in zip(flat, places, flags, strict=True):
        assert wanted or old != UNKNOWN
        assert place == (fresh if wanted else old)
        fresh += wanted


@given(parts)
def test_files_stay_in_long_runs(file: list[list[tuple[int, int]]]) -> None:
    """A file has at most one break for 8 chunks, but for what lies between its parts."""
    places, _, layout = lay([places_of(part) for part in file])
    breaks = sum(b != a + 1 for a, b in pairwise(places))
    assert layout.chunks == len(places)
    assert layout.breaks == breaks
    assert breaks <= len(places) // RUN_CHUNKS_MIN + len(file) - 1


@given(st.integers(0, 1000), st.integers(1, 300))
def test_a_file_that_is_one_run_is_reused(place: int, chunks: int) -> None:
    """Content that lies in one run somewhere is never stored again, however small it is."""
    places = list(range(place, place + chunks))
    assert not any(chunks_to_store(places, Layout(), FRESH))
    runs, _ = place_all(places, [2] * chunks, [False] * chunks, FRESH, Layout())
    assert runs == [Run(place, chunks, 2 * chunks)]


def test_new_content_is_stored() -> None:
    """Where nothing is known all is wanted, as one run."""
    assert chunks_to_store([UNKNOWN] * 3, Layout(), FRESH) == [True] * 3
    runs, layout = place_all([UNKNOWN] * 3, [4, 5, 6], [True] * 3, FRESH, Layout())
    assert runs == [Run(FRESH, 3, 15)]
    assert layout == Layout(chunks=3, breaks=0, end=FRESH + 3)


def test_each_run_has_the_size_of_its_chunks() -> None:
    """Where a part lies in several runs, each tells the bytes of its own chunks."""
    runs, _ = place_all([7, 8, UNKNOWN, 30], [1, 2, 4, 8], [False, False, True, False], FRESH,
                        Layout())  # fmt: skip
    assert runs == [Run(7, 2, 3), Run(FRESH, 1, 4), Run(30, 1, 8)]


def test_one_new_chunk_in_a_long_file_is_stored_alone() -> None:
    """A small change in a large file does not make its neighbours travel, in any part of it."""
    part = list(range(100))
    changed = [UNKNOWN if n == 50 else n for n in part]
    assert sum(chunks_to_store(changed, Layout(), FRESH)) == 1
    last = [100, UNKNOWN, 102]
    assert chunks_to_store(last, Layout(chunks=100, breaks=0, end=100), FRESH) == [
        False,
        True,
        False,
    ]


def test_scattered_old_chunks_are_stored_again() -> None:
    """Old chunks in runs of two are not worth their breaks."""
    places = [place for n in range(20) for place in (100 * n, 100 * n + 1)]
    assert sum(chunks_to_store(places, Layout(), FRESH)) >= 36


def test_the_shortest_runs_are_stored_again_first() -> None:
    """Of a long and a short old run in a small file the long one is reused."""
    places = [*range(10), UNKNOWN, *range(500, 503)]
    assert chunks_to_store(places, Layout(), FRESH) == [False] * 10 + [True] * 4


def test_more_breaks_may_be_free() -> None:
    """Where a file goes on in the next pack its chunks are not stored again for that."""
    places = [*range(98, 100), *range(1000, 1003)]
    assert chunks_to_store(places, Layout(), FRESH) == [True] * 5
    assert chunks_to_store(places, Layout(), FRESH, 1) == [False] * 5


def test_of_all_places_those_in_a_row_are_taken() -> None:
    """A chunk that is there twice is taken from where its neighbours lie, or from where the part
    before it ended."""
    assert longest_runs([{10}, {500, 11}, {12}], Layout()) == [10, 11, 12]
    assert longest_runs([{900, 10}, {11}, {12, 901}], Layout()) == [10, 11, 12]
    assert longest_runs([{5, 40}, {6, 41}, {42}], Layout(end=5)) == [5, 6, 42]
    assert longest_runs([{5}, set(), {6}], Layout()) == [5, UNKNOWN, 6]


@given(parts)
def test_a_file_that_is_stored_is_found_as_it_lies(file: list[list[tuple[int, int]]]) -> None:
    """Whatever was stored again for a file, and whatever other places its chunks have: cut again
    it is found in as few runs, and nothing is stored once more."""
    known = [place for part in file for place in places_of(part)]
    places, _, _ = lay([known])
    options = [{place, old} - {UNKNOWN} for place, old in zip(places, known, strict=True)]
    found = longest_runs(options, Layout())
    assert all(place in option for place, option in zip(found, options, strict=True))
    assert sum(b != a + 1 for a, b in pairwise(found)) <= sum(
        b != a + 1 for a, b in pairwise(places)
    )
    assert not any(chunks_to_store(found, Layout(), FRESH * 2))


def test_an_empty_part_changes_nothing() -> None:
    """An empty file has no flags, no runs, and leaves the layout alone."""
    assert chunks_to_store([], Layout(), FRESH) == []
    assert place_all([], [], [], FRESH, Layout(5, 1, 9)) == ([], Layout(5, 1, 9))


def test_runs_of_parts_are_joined() -> None:
    """Where a part goes on behind the one before, their runs are one."""
    one, two, apart = Run(1, 2, 20), Run(3, 1, 5), Run(9, 1, 7)
    assert join_runs([one], [two, apart]) == [Run(1, 3, 25), apart]
    assert join_runs([one], [apart]) == [one, apart]
    assert join_runs([], [apart]) == [apart]
    assert join_runs([apart], []) == [apart]


def test_segments_that_follow_each_other_become_one() -> None:
    """Joining keeps the order and merges only neighbours in one pack."""
    a, b = PackId(b"a" * 32), PackId(b"b" * 32)
    other, last = Segment(b, 5, 1, 3), Segment(a, 5, 1, 4)
    found = join([Segment(a, 0, 2, 10), Segment(a, 2, 3, 11), other, last])
    assert found == (Segment(a, 0, 5, 21), other, last)
    assert join([]) == ()
