"""range_planner.py: which runs of chunks are read together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.repo.range_planner import (
    GAP_STORED_BYTES_MAX,
    UNIT_RAW_BYTES_MAX,
    UNIT_STORED_BYTES_MAX,
    Unit,
    Wanted,
)
from lodefs.chunkstore.repo.range_planner import units as units_of_index

T = TypeVar("T")


class Sizes:
    """A pack's index, as far as units() asks."""

    def __init__(self, sizes: list[tuple[int, int]]) -> None:
        self.offsets = list(accumulate((stored for stored, _ in sizes), initial=0))
        self.raw_offsets = list(accumulate((raw for _, raw in sizes), initial=0))


def units(index: Sizes, wanted: list[Wanted[T]]) -> Iterator[Unit[T]]:
    """Of what is no whole index."""
    return units_of_index(index, wanted)  # type: ignore[arg-type]


@st.composite
def packs(draw: st.DrawFn) -> tuple[Sizes, list[Wanted[int]]]:
    """A pack of chunks of up to 3 MiB, and runs of it, each wanted for its own number."""
    sizes = draw(st.lists(st.integers(1, 3 << 20), min_size=1, max_size=40))
    factor = draw(st.integers(1, 10))
    chunks = len(sizes)
    bounds = st.tuples(st.integers(0, chunks - 1), st.integers(1, chunks))
    runs = [
        Wanted(first, min(count, chunks - first), number)
        for number, (first, count) in enumerate(draw(st.lists(bounds, max_size=12)))
    ]
    return Sizes([(size, size * factor) for size in sizes]), runs


@given(packs())
def test_units_hold_every_run_once(pack: tuple[Sizes, list[Wanted[int]]]) -> None:
    """The parts of all units make up each wanted run, in order, with the right offsets."""
    index, runs = pack
    found: dict[int, list[tuple[int, int, int]]] = {run.what: [] for run in runs}
    for unit in units(index, runs):
        for first, count, what, before in unit.parts:
            assert unit.first <= first < first + count <= unit.first + unit.count
            found[what].append((first, count, before))
    for run in runs:
        at = run.first
        for first, count, before in found[run.what]:
            assert first == at
            assert before == index.raw_offsets[at] - index.raw_offsets[run.first]
            at += count
        assert at == run.first + run.count


@given(packs())
def test_units_keep_their_limits(pack: tuple[Sizes, list[Wanted[int]]]) -> None:
    """Units do not overlap, are sorted, and pass their limits by no more than one chunk."""
    index, runs = pack
    end = 0
    for unit in units(index, runs):
        assert unit.first >= end
        end = unit.first + unit.count
        if unit.count > 1:
            assert index.offsets[end] - index.offsets[unit.first] <= UNIT_STORED_BYTES_MAX
            assert index.raw_offsets[end] - index.raw_offsets[unit.first] <= UNIT_RAW_BYTES_MAX


def test_near_runs_are_joined_and_far_ones_are_not() -> None:
    """A small gap is read for nothing; a large one is not read."""
    index = Sizes([(1000, 1000), (GAP_STORED_BYTES_MAX, 1000), (1000, 1000)])
    near = list(units(index, [Wanted(0, 1, "a"), Wanted(2, 1, "b")]))
    assert [(unit.first, unit.count) for unit in near] == [(0, 3)]
    index = Sizes([(1000, 1000), (GAP_STORED_BYTES_MAX + 1, 1000), (1000, 1000)])
    far = list(units(index, [Wanted(2, 1, "b"), Wanted(0, 1, "a")]))
    assert [(unit.first, unit.count) for unit in far] == [(0, 1), (2, 1)]


@pytest.mark.parametrize(("first", "count"), [(-1, 1), (0, 3), (2, 1), (0, 0)])
def test_runs_that_the_pack_does_not_have(first: int, count: int) -> None:
    """A run outside the pack is Corrupt."""
    with pytest.raises(Corrupt):
        list(units(Sizes([(1, 1), (1, 1)]), [Wanted(first, count, "x")]))


def test_nothing_wanted() -> None:
    """No runs, no units."""
    assert list(units(Sizes([(1, 1)]), [])) == []
