"""Of many things only so many get series, and no counter ever goes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lodefs.proxy.metrics.bounded_labels import IDLE_S, OTHER, BoundedLabels


def test_the_most_used_get_series() -> None:
    """As far as there are series, and the rest is one."""
    labels = BoundedLabels(2)
    found = labels.show({"a": (1,), "b": (5,), "c": (3,)}, 0.0)
    assert found == {"b": (5,), "c": (3,), OTHER: (1,)}
    assert labels.show({"a": (4,), "b": (5,), "c": (4,)}, 1.0) == {
        "b": (5,), "c": (4,), OTHER: (4,)
    }  # fmt: skip


def test_an_idle_series_goes_to_another() -> None:
    """After an hour without use; what was counted for others stays there."""
    labels = BoundedLabels(1)
    labels.show({"a": (5,), "b": (1,)}, 0.0)
    assert labels.show({"a": (5,), "b": (2,)}, IDLE_S - 1) == {"a": (5,), OTHER: (2,)}
    assert labels.show({"a": (5,), "b": (7,)}, IDLE_S + 1) == {"b": (7,), OTHER: (2,)}
    assert labels.show({"b": (8,)}, IDLE_S + 2) == {"b": (8,), OTHER: (2,)}


def test_one_that_is_called_as_the_others_are() -> None:
    """It has no series of its own."""
    assert BoundedLabels(3).show({OTHER: (5,), "a": (1,)}, 0.0) == {"a": (1,), OTHER: (5,)}


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3), st.integers(0, 4000))))
def test_others_never_go_back(steps: list[tuple[str, int, int]]) -> None:
    """Whatever is used when, the series of others only grows, and there are never too many."""
    labels, figures, now_s, last = BoundedLabels(2), dict.fromkeys("abcd", 0), 0.0, 0
    for name, amount, pause_s in steps:
        figures[name] += amount
        now_s += pause_s
        shown = labels.show({one: (n,) for one, n in figures.items() if n}, now_s)
        others = shown.pop(OTHER, (0,))[0]
        assert others >= last
        assert len(shown) <= 2
        last = others
