"""When something that failed is tried again."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.system.circuit_breaker import THROTTLED_S_MAX, CircuitBreaker


class Clock:
    """Moves as a test says."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(1.0, 30.0, clock)


def test_one_call_is_let_through_after_pauses_that_double(
    clock: Clock, breaker: CircuitBreaker
) -> None:
    """After a failure nothing is asked for a second; then one call is tried, and the next one after
    two, up to half a minute. Calls that were under way together count as one failure."""
    assert breaker.is_closed
    assert [breaker.failed(), breaker.failed()] == [True, False]
    pauses = []
    for _ in range(7):
        begin_s = clock.now_s
        while not breaker.is_due():
            assert not breaker.is_closed
            clock.now_s += 0.5
        assert not breaker.is_due()  # for anybody else
        breaker.failed()
        pauses.append(clock.now_s - begin_s)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    assert breaker.answered()
    assert breaker.is_closed


@pytest.mark.parametrize(("well_s", "pause_s"), [(10.0, 2.0), (31.0, 1.0)])
def test_what_fails_again_soon_rests_for_longer(
    clock: Clock, breaker: CircuitBreaker, well_s: float, pause_s: float
) -> None:
    """An answer ends the rest; a failure soon after it doubles the last pause, and a later one
    begins anew."""
    breaker.failed()
    clock.now_s += 1
    breaker.answered()
    clock.now_s += well_s
    assert breaker.failed()
    clock.now_s += pause_s - 0.5
    assert not breaker.is_due()
    clock.now_s += 0.5
    assert breaker.is_due()


def test_one_that_only_puts_off_is_given_up_after_a_while(
    clock: Clock, breaker: CircuitBreaker
) -> None:
    """Calls that are put off open it only once nothing else has come for long."""
    assert not breaker.throttled()
    clock.now_s += THROTTLED_S_MAX / 2
    breaker.answered()
    assert not breaker.throttled()
    clock.now_s += THROTTLED_S_MAX
    assert breaker.throttled()
    assert not breaker.is_closed
