"""single_flight.py: a value that many threads want is loaded once."""

from __future__ import annotations

import threading

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.system.single_flight import SingleFlightCache


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
