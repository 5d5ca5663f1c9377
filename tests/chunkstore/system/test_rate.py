"""A limit for bytes in a second."""

from __future__ import annotations

from lodefs.chunkstore.system.rate import Rate


def test_rate() -> None:
    """Bytes pass at once after a pause; while they come without one, each waits for those
    before."""
    now = 1000.0
    slept: list[float] = []
    rate = Rate(100, clock=lambda: now, sleep=slept.append)
    for _ in range(3):
        rate.take(50)
    assert slept == [0.0, 0.5, 1.0]
    now += 10
    rate.take(500)
    assert slept[-1] == 0.0


def test_no_limit() -> None:
    """None never waits."""
    slept: list[float] = []
    Rate(None, sleep=slept.append).take(1 << 60)
    assert slept == []
