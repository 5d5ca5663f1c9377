"""Which commits a retention policy keeps."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.repo_settings import Retention, check_retention
from lodefs.chunkstore.repo.retention import retained

DAY_S = 86_400
NOW_S = 100 * DAY_S


class Past(NamedTuple):
    """A commit of a history."""

    parents: tuple[CommitId, ...]
    time_s: int


def _id(number: int) -> CommitId:
    return CommitId(number.to_bytes(32, "big"))


def _chain(*days: int) -> dict[CommitId, Past]:
    """Commits 0, 1, ... each on the one before, made on those days."""
    return {_id(n): Past((_id(n - 1),) if n else (), day * DAY_S) for n, day in enumerate(days)}


def _kept(past: dict[CommitId, Past], policy: Retention, tags: tuple[int, ...] = ()) -> list[int]:
    heads = [(RefName("r", "branches", "main"), max(past))]
    heads += [(RefName("r", "tags", f"v{n}"), _id(n)) for n in tags]
    return sorted(int.from_bytes(at) for at in retained(past, heads, policy, NOW_S))


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (Retention(keep_last=1), [2, 5]),
        (Retention(keep_last=3), [2, 3, 4, 5]),
        (Retention(keep_last=99), [0, 1, 2, 3, 4, 5]),
        (Retention(keep_tagged=True), [2, 5]),
        (Retention(keep_within_s=15 * DAY_S), [2, 4, 5]),
        (Retention(keep_last=1, keep_within_s=1), [2, 5]),
    ],
)
def test_each_policy(policy: Retention, kept: list[int]) -> None:
    """What one option keeps stays; what a branch or tag names stays always."""
    assert _kept(_chain(10, 20, 30, 80, 90, 99), policy, tags=(2,)) == kept


def test_second_parents_count_by_time_alone() -> None:
    """Of what was merged nothing is one of the last; it may be young."""
    past = _chain(10, 20, 99) | {_id(7): Past((), 98 * DAY_S)}
    past[_id(9)] = Past((_id(2), _id(7)), 99 * DAY_S)
    assert _kept(past, Retention(keep_last=3)) == [1, 2, 9]
    assert _kept(past, Retention(keep_within_s=5 * DAY_S)) == [2, 7, 9]


def test_clocks_of_those_who_pushed() -> None:
    """A commit that claims to be ancient is as young as the one before it; one of the future
    counts as now, and makes nothing after it young."""
    within = Retention(keep_within_s=10 * DAY_S)
    assert _kept(_chain(50, 95, 1, 99), within) == [1, 2, 3]
    assert _kept(_chain(5, 500, 20, 30, 99), within) == [1, 4]


@given(
    st.lists(st.integers(0, 200), min_size=1, max_size=12),
    st.builds(
        Retention,
        st.none() | st.integers(1, 9),
        st.booleans(),
        st.none() | st.integers(1, 200 * DAY_S),
    ),
    st.data(),
)
def test_heads_stay_and_more_keeps_more(
    days: list[int], policy: Retention, data: st.DataObject
) -> None:
    """No policy lets a head or tag go; a policy that asks for more keeps all that it kept."""
    past = _chain(*days)
    tag = data.draw(st.integers(0, len(days) - 1))
    kept = set(_kept(past, policy, (tag,)))
    assert {len(days) - 1, tag} <= kept
    more = Retention((policy.keep_last or 0) + 1, policy.keep_tagged, policy.keep_within_s)
    assert kept <= set(_kept(past, more, (tag,)))


def test_history_that_has_expired_ends() -> None:
    """Parents that are gone end a history."""
    past = _chain(10, 20, 30)
    del past[_id(0)]
    assert _kept(past, Retention(keep_last=9)) == [1, 2]


@pytest.mark.parametrize(
    "policy", [Retention(), Retention(keep_last=0), Retention(keep_within_s=0, keep_last=1)]
)
def test_policies_that_are_none(policy: Retention) -> None:
    """One that says nothing, or keeps no commit, is refused."""
    with pytest.raises(InvalidInput):
        check_retention(policy)
