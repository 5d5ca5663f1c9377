"""The bounded map."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.system.lru import Lru


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.booleans(), st.integers(0, 8)), max_size=60),
)
def test_forgets_what_was_not_used_for_longest(room: int, steps: list[tuple[bool, int]]) -> None:
    """It behaves like an ordered dictionary that is cut at its limit."""
    lru: Lru[int, int] = Lru(room)
    model: OrderedDict[int, int] = OrderedDict()
    for put, key in steps:
        if put:
            lru.put(key, -key - 1)
            model[key] = -key - 1
            model.move_to_end(key)
            if len(model) > room:
                model.popitem(last=False)
        else:
            assert lru.get(key) == model.get(key)
            if key in model:
                model.move_to_end(key)
        assert len(lru) == len(model)


def test_needs_room() -> None:
    """A map without room for an entry is a mistake."""
    with pytest.raises(ValueError, match="room"):
        Lru(0)
