"""What a plan does if an owner answers that it is busy."""

from __future__ import annotations

import pytest

from lodefs.proxy.peers.client.request_plan import AskPeer, Wait
from tests.support.proxy.request_plans import ME, A, B, C, Way, X, Y


def test_busy_goes_to_its_alternatives_and_back() -> None:
    """Alternatives are asked one after the other, this node never; then a pause, then again."""
    way = Way()
    way.next(0.0)
    way.plan.busy(A.address, [X, ME, Y], 0.4, 0.0)
    asked = []
    for _ in range(2):
        action = way.next(0.0)
        assert isinstance(action, AskPeer) and action.cached
        asked.append(action.peer)
        way.plan.lacking(action.peer.address, 0.0)
    assert sorted(asked) == [X, Y]
    assert way.waits(0.0) == pytest.approx(0.2)  # half of it, without jitter
    assert way.next(0.2) == AskPeer(A, cached=False)
    way.plan.busy(A.address, [X], 0.4, 0.2)
    assert way.next(0.2) == AskPeer(X, cached=True)
    way.plan.lacking(X.address, 0.2)
    assert way.waits(0.2) == pytest.approx(0.2 + 0.4)  # doubled


def test_a_busy_source_leads_to_others() -> None:
    """A source that is busy names those that it sent the pack to, and so on."""
    way = Way()
    way.next(0.0)
    way.plan.busy(A.address, [X], 0.4, 0.0)
    assert way.next(0.0) == AskPeer(X, cached=True)
    way.plan.busy(X.address, [Y, A], 0.4, 0.0)
    assert way.next(0.0) == AskPeer(Y, cached=True)


def test_an_owner_that_stays_busy_is_passed_by() -> None:
    """After half of the time the next owner is asked for this unit, and nobody counts as failed."""
    way, now_s = Way(), 0.0
    while (action := way.next(now_s)) != AskPeer(B, cached=False):
        if isinstance(action, AskPeer):
            way.plan.busy(action.peer.address, [], 0.4, now_s)
        else:
            assert isinstance(action, Wait)
            now_s = action.until_s
    assert 7.0 < now_s < 15.0
    assert way.health.usable(A.address, now_s)
    again = Way(health=way.health, begin_s=now_s)
    assert again.next(now_s) == AskPeer(A, cached=False)
    again.plan.busy(A.address, [X], 0.4, now_s)
    for peer in (X, B, C):  # it named the first, and may have sent something to the next owners
        assert again.next(now_s) == AskPeer(peer, cached=True)
        again.plan.lacking(peer.address, now_s)
    assert again.next(now_s) == AskPeer(B, cached=False)  # for other units there is no wait


def test_an_owner_that_was_busy_and_sends_again_is_waited_for() -> None:
    """Its next busy answer is followed by a pause, as at first."""
    way = Way()
    way.health.stayed_busy(A.address, 0.0)
    way.health.served(A.address, 1, 0.1, 1.0)
    assert way.next(1.0) == AskPeer(A, cached=False)
    way.plan.busy(A.address, [], 0.4, 1.0)
    assert way.waits(1.0) > 1.0


@pytest.mark.parametrize("retry_after_s", [float("nan"), float("inf"), -1e308, 0.0])
def test_a_busy_owner_may_say_any_time(retry_after_s: float) -> None:
    """NaN made the plan ask again at once, a thousand times, and then fail with OverflowError."""
    way = Way()
    assert way.next(0.0) == AskPeer(A, cached=False)
    way.plan.busy(A.address, [], retry_after_s, 0.0)
    assert 0.0 < way.waits(0.0) <= 5.0
