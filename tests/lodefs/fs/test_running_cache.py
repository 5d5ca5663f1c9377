"""The read-ahead of an open file, by what it fetches."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from lodefs.fs.running_cache import AHEAD_BYTES_MAX, RunningCache

DATA = random.Random(1).randbytes(6_000_000)


class Counted:
    """A cache over DATA, and what it fetched."""

    def __init__(self) -> None:
        self.fetched_bytes = self.fetches = 0
        self.cache = RunningCache(65536, self._fetch, len(DATA))

    def _fetch(self, first: int, end: int) -> bytes:
        self.fetched_bytes += end - first
        self.fetches += 1
        return DATA[first:end]

    def read(self, first: int, end: int) -> bytes:
        found = self.cache._fetch(first, end)
        assert found == DATA[first:end]
        return found


def test_a_column_costs_its_bytes() -> None:
    """Reads as of Parquet's columns, each in pieces that run on, bring at most a fifth in vain."""
    counted, asked = Counted(), 0
    asked += len(counted.read(len(DATA) - 65536, len(DATA)))
    for group in range(4):
        first = group * 1_400_000
        for piece in range(first, first + 146_000, 20_000):
            asked += len(counted.read(piece, min(piece + 20_000, first + 146_000)))
    assert counted.fetched_bytes <= 1.2 * asked


def test_single_reads_are_exact() -> None:
    """A read that jumps fetches what it asks for."""
    counted = Counted()
    for first in (5_000_000, 100, 3_000_000, 70):
        counted.read(first, first + 500)
    assert counted.fetched_bytes == 4 * 500


def test_small_reads_that_run_on_share_a_fetch() -> None:
    """A file read by small pieces from its beginning takes few fetches, and none twice."""
    counted = Counted()
    for first in range(0, len(DATA), 1000):
        counted.read(first, min(first + 1000, len(DATA)))
    assert counted.fetches < 300
    assert counted.fetched_bytes <= len(DATA) + AHEAD_BYTES_MAX


@given(
    st.lists(
        st.tuples(st.integers(0, len(DATA)), st.integers(0, 2_000_000), st.booleans()), max_size=20
    )
)
def test_any_reads(reads: list[tuple[int, int, bool]]) -> None:
    """Whatever was read before, a read gives the file's bytes."""
    counted, end = Counted(), 0
    for place, size, runs_on in reads:
        first = end if runs_on else place
        end = min(first + size, len(DATA))
        counted.read(first, end)
