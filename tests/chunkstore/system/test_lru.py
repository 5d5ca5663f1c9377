"""The bounded map."""

from __future__ import annotations

import threading
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.system.lru import Lru, SingleFlightCache


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


def test_loads_once_for_many_threads() -> None:
    """Threads that want one key wait for one load; another key does not wait."""
    loads: SingleFlightCache[str, int] = SingleFlightCache(4)
    started, go_on = threading.Event(), threading.Event()
    calls: list[str] = []
    found: list[int] = []

    def slow() -> int:
        calls.append("slow")
        started.set()
        assert go_on.wait(60)
        return 1

    threads = [
        threading.Thread(target=lambda: found.append(loads.get("a", slow))) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    assert started.wait(60)
    assert loads.get("b", lambda: 2) == 2
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert (found, calls) == ([1] * 5, ["slow"])


def test_errors_of_loads_are_not_kept() -> None:
    """A load that failed is tried again by the next one who asks."""
    loads: SingleFlightCache[str, int] = SingleFlightCache(4)

    def fail() -> int:
        raise Unavailable("not now")

    with pytest.raises(Unavailable):
        loads.get("a", fail)
    assert loads.get("a", lambda: 3) == 3
