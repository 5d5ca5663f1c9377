"""Which chunks of a unit are fetched."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lodefs.proxy.fetch.cache_fill import missing_runs

KIB = 1024


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 300 * KIB)), max_size=60))
def test_missing_runs_fetch_all_that_is_missing(chunks: list[tuple[bool, int]]) -> None:
    """Every missing chunk is in one run; runs begin and end with missing ones, in order."""
    present = [here for here, _ in chunks]
    runs = missing_runs(present, [size for _, size in chunks])
    covered = [n for first, count in runs for n in range(first, first + count)]
    assert covered == sorted(set(covered))
    assert {n for n, here in enumerate(present) if not here} <= set(covered)
    for first, count in runs:
        assert not present[first]
        assert not present[first + count - 1]


def test_small_gaps_are_bridged() -> None:
    """A present chunk between missing ones is fetched again rather than asking twice."""
    assert missing_runs([False, True, False], [9, 9, 9]) == [(0, 3)]
    assert missing_runs([False, True, False], [9, 300 * KIB, 9]) == [(0, 1), (2, 1)]
    assert missing_runs([True, True], [9, 9]) == []
