"""Health: who is avoided and for how long, and what is expected of peers and store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.peers.health import (
    BACKOFF_S_MAX,
    BACKOFF_S_MIN,
    OUTRUN,
    PROBES_FAILED,
    QUARANTINE_S,
    TRIAL_S,
    Health,
)

MIB = 1 << 20
A, B = "a:1", "b:1"


def avoided_s(health: Health, now_s: float) -> float:
    """How long A is avoided from now on."""
    low, high = 0.0, 10_000.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if health.usable(A, now_s + middle) else (middle, high)
    return high


def test_unknown_peers_are_usable() -> None:
    """Whoever is not known is thought well of."""
    assert Health().usable(A, 0.0)


def test_backoff_doubles_to_about_a_minute() -> None:
    """Each failure after a backoff doubles it, up to the limit."""
    health, now_s, seen = Health(), 100.0, []
    for _ in range(9):
        health.failed(A, now_s)
        seen.append(avoided_s(health, now_s))
        now_s += seen[-1]
    doubled = [min(BACKOFF_S_MIN * 2**n, BACKOFF_S_MAX) for n in range(9)]
    assert seen == pytest.approx(doubled, abs=0.01)
    assert health.usable(B, now_s)


def test_what_fails_together_counts_once() -> None:
    """Thirty threads that lose the same peer at once avoid it for one backoff."""
    health = Health()
    for n in range(30):
        health.failed(A, 100.0 + n / 100)
    assert avoided_s(health, 100.0) == pytest.approx(BACKOFF_S_MIN, abs=0.01)


def test_one_attempt_is_the_trial() -> None:
    """After a backoff one asks, and the others wait for what it learns, or a while."""
    health = Health()
    health.failed(A, 0.0)
    assert health.usable(A, 1.0)
    health.asked(A, 1.0)
    assert not health.usable(A, 1.1)
    assert health.usable(A, 1.0 + TRIAL_S)
    health.failed(A, 3.0)
    assert avoided_s(health, 3.0) == pytest.approx(2 * BACKOFF_S_MIN, abs=0.01)


def test_asking_a_good_peer_changes_nothing() -> None:
    """Only a peer that failed is on trial."""
    health = Health()
    health.served(A, MIB, 0.1)
    health.asked(A, 1.0)
    assert health.usable(A, 1.0)


def test_who_is_always_outrun_fails() -> None:
    """A few times in a row without a byte are a failure; a byte in between ends the row, and what
    was asked together counts once."""
    health = Health()
    for n in range(1, OUTRUN):
        for _ in range(30):
            health.was_outrun(A, float(n), n + 0.5)
    assert health.usable(A, 10.0)
    health.began(A, 0.1)
    for n in range(10, 10 + OUTRUN):
        assert health.usable(A, float(n))
        health.was_outrun(A, float(n), n + 0.5)
    now_s = 10 + OUTRUN - 0.5
    assert avoided_s(health, now_s) == pytest.approx(BACKOFF_S_MIN, abs=0.01)


def test_to_be_outrun_on_trial_is_a_failure() -> None:
    """Who failed is not given a few more chances to hang."""
    health = Health()
    health.failed(A, 0.0)
    health.asked(A, 1.0)
    health.was_outrun(A, 1.0, 2.0)
    assert avoided_s(health, 2.0) == pytest.approx(2 * BACKOFF_S_MIN, abs=0.01)


def test_success_ends_the_backoff_and_flapping_does_not() -> None:
    """A served unit makes the peer usable at once; who failed often is avoided for longer again."""
    health, now_s = Health(), 0.0
    for _ in range(6):
        health.failed(A, now_s)
        now_s += avoided_s(health, now_s)
    health.served(A, MIB, 0.1)
    assert health.usable(A, now_s)
    health.failed(A, now_s)
    assert avoided_s(health, now_s) == pytest.approx(8.0, abs=0.01)


def test_wrong_bytes_are_not_forgiven_soon() -> None:
    """Quarantine lasts for minutes, whatever else the peer does, and doubles."""
    health = Health()
    health.wrong(A, 0.0)
    health.wrong(A, 1.0)
    health.served(A, MIB, 0.1)
    for ok in (False, False, True):
        health.probed(A, ok, 2.0)
    assert avoided_s(health, 0.0) == pytest.approx(QUARANTINE_S, abs=0.01)
    health.wrong(A, QUARANTINE_S)
    assert avoided_s(health, QUARANTINE_S) == pytest.approx(2 * QUARANTINE_S, abs=0.01)


def test_probes_take_a_peer_down_and_up() -> None:
    """Probes that fail in a row take it down until one succeeds, which ends backoffs, too."""
    health = Health()
    for n in range(PROBES_FAILED):
        assert health.usable(A, n)
        health.probed(A, False, n)
    health.failed(A, 3.0)
    assert not health.usable(A, 1e6)
    health.probed(A, True, 4.0)
    assert health.usable(A, 4.0)


def test_probes_that_succeed_do_not_excuse_failures() -> None:
    """Who answers probes and no requests stays avoided."""
    health = Health()
    health.failed(A, 0.0)
    health.probed(A, True, 0.1)
    assert not health.usable(A, 0.2)


def test_use_is_believed_before_probes() -> None:
    """Probes that fail now and then do not add up under a load that is served."""
    health = Health()
    for n in range(10):
        health.probed(A, False, n)
        health.served(A, MIB, 0.1)
    assert health.usable(A, 10.0)


def test_expected_times_follow_what_is_seen() -> None:
    """A peer of 10 ms and 100 MB/s, and a store of 50 ms and 80 MB/s, are known after a while;
    another peer is thought to be like those that are known."""
    health = Health()
    for _ in range(100):
        health.began(A, 0.01)
        health.served(A, 8 * MIB, 0.01 + 8 * MIB / 100e6)
        health.store_served(1000, 0.05)
        health.store_served(8 * MIB, 0.05 + 8 * MIB / 80e6)
    assert health.expected_s(A, 8 * MIB) == pytest.approx(0.01 + 8 * MIB / 100e6, rel=0.1)
    assert health.expected_s(B, 8 * MIB) == health.expected_s(A, 8 * MIB)
    assert health.store_expected_s(8 * MIB) == pytest.approx(0.05 + 8 * MIB / 80e6, rel=0.1)
    assert health.store_expected_s(1000) == pytest.approx(0.05, rel=0.1)


def test_memory_is_bounded() -> None:
    """Of more peers than fit, those heard of last are remembered."""
    health = Health(peers_max=10)
    for n in range(100):
        health.failed(f"{n}:1", 0.0)
    assert [n for n in range(100) if not health.usable(f"{n}:1", 0.5)] == list(range(90, 100))


events = st.sampled_from(["failed", "asked", "served", "up", "down"])


@given(st.lists(st.tuples(events, st.floats(0.0, 100.0)), max_size=40))
def test_nobody_is_avoided_forever(history: list[tuple[str, float]]) -> None:
    """Whatever happened, a peer whose probes succeed is usable within the longest backoff."""
    health, now_s = Health(), 0.0
    for event, wait_s in history:
        now_s += wait_s
        match event:
            case "failed":
                health.failed(A, now_s)
            case "asked":
                health.asked(A, now_s)
            case "served":
                health.served(A, MIB, 0.1)
            case _:
                health.probed(A, event == "up", now_s)
    health.probed(A, True, now_s)
    assert health.usable(A, now_s + BACKOFF_S_MAX)
