"""Bandwidth: waits add up to the rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.proxy.peers.client.rate_limit import RateLimiter

MIB = 1 << 20


def test_no_limit_never_waits() -> None:
    """Without a limit nothing waits."""
    limit = RateLimiter(None)
    assert [limit.reserve(1 << 40, now_s) for now_s in (0.0, 0.0, 5.0)] == [0.0, 0.0, 0.0]
    assert limit.backlog_s(5.0) == 0.0


def test_the_burst_goes_at_once_and_then_the_rate_holds() -> None:
    """At 10 MiB/s the first MiB goes at once, the second after 0.1 s, the third after 0.2 s."""
    limit = RateLimiter(10 * MIB)
    waits = [limit.reserve(MIB, 100.0) for _ in range(3)]
    assert waits == pytest.approx([0.0, 0.1, 0.2])
    assert limit.backlog_s(100.0) == pytest.approx(0.2)
    assert limit.backlog_s(100.15) == pytest.approx(0.05)
    assert limit.backlog_s(200.0) == 0.0


@given(st.lists(st.tuples(st.integers(1, MIB), st.floats(0.0, 0.3)), min_size=1, max_size=100))
def test_the_rate_holds_over_any_time(moves: list[tuple[int, float]]) -> None:
    """Bytes that may move up to any moment are never more than the rate and the burst."""
    rate, limit, now_s, moved, total = 4 * MIB, RateLimiter(4 * MIB), 50.0, [], 0
    for size_bytes, pause_s in moves:
        now_s += pause_s
        moved.append((now_s + limit.reserve(size_bytes, now_s), size_bytes))
    for at_s, size_bytes in sorted(moved):
        total += size_bytes
        assert total <= rate * (at_s - 50.0 + 0.1) + 1 + MIB / 1000
