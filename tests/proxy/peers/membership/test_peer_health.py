"""Health: who is avoided and for how long, and what is expected of peers and store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.proxy.peers.membership.peer_health import (
    BACKOFF,
    OUTRUN,
    PRESENT_PEERS_MAX,
    PRESENT_S,
    PROBES_FAILED,
    QUARANTINE,
    TRIAL_S,
    PeerHealth,
)
from lodefs.proxy.peers.membership.peer_standing import (
    DOWN,
    REFUSED,
    REFUSED_S,
    WELL,
    Fault,
)

MIB = 1 << 20
A, B = "a:1", "b:1"


def avoided_s(health: PeerHealth, now_s: float) -> float:
    """How long A is avoided from now on."""
    low, high = 0.0, 10_000.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if health.usable(A, now_s + middle) else (middle, high)
    return high


def test_unknown_peers_are_usable() -> None:
    """Whoever is not known is thought well of."""
    assert PeerHealth().usable(A, 0.0)


def test_backoff_doubles_to_about_a_minute() -> None:
    """Each failure after a backoff doubles it, up to the limit."""
    health, now_s, seen = PeerHealth(), 100.0, []
    for _ in range(9):
        health.failed(A, now_s)
        seen.append(avoided_s(health, now_s))
        now_s += seen[-1]
    doubled = [min(BACKOFF.pause_s_first * 2**n, BACKOFF.pause_s_max) for n in range(9)]
    assert seen == pytest.approx(doubled, abs=0.01)
    assert health.usable(B, now_s)


def test_what_fails_together_counts_once() -> None:
    """Thirty threads that lose the same peer at once avoid it for one backoff."""
    health = PeerHealth()
    for n in range(30):
        health.failed(A, 100.0 + n / 100)
    assert avoided_s(health, 100.0) == pytest.approx(BACKOFF.pause_s_first, abs=0.01)


def test_one_attempt_is_the_trial() -> None:
    """After a backoff one asks, and the others wait for what it learns, or a while."""
    health = PeerHealth()
    health.failed(A, 0.0)
    assert health.usable(A, 1.0)
    health.asked(A, 1.0)
    assert not health.usable(A, 1.1)
    assert health.usable(A, 1.0 + TRIAL_S)
    health.failed(A, 3.0)
    assert avoided_s(health, 3.0) == pytest.approx(2 * BACKOFF.pause_s_first, abs=0.01)


@pytest.mark.parametrize("fault", [Fault.LATE, Fault.UNREACHABLE, Fault.FAILING, Fault.REFUSING])
def test_an_answer_without_bytes_ends_the_trial(fault: Fault) -> None:
    """A peer that failed once and then says "busy" or 404 is asked on by everybody; one that fails
    after that is avoided for twice as long as before, and is not excused by older answers."""
    health = PeerHealth()
    health.failed(A, 0.0, fault)
    for now_s in (2.0, 2.5, 3.0):
        assert health.usable(A, now_s)
        health.asked(A, now_s)
        assert not health.usable(A, now_s + 0.1)
        health.answered(A, now_s + 0.2)
        assert health.usable(A, now_s + 0.2)
    health.asked(A, 4.0)
    health.failed(A, 4.5, Fault.LATE)
    health.answered(A, 4.6)
    assert avoided_s(health, 4.5) == pytest.approx(2 * BACKOFF.pause_s_first, abs=0.01)


def test_asking_a_good_peer_changes_nothing() -> None:
    """Only a peer that failed is on trial."""
    health = PeerHealth()
    health.served(A, MIB, 0.1, 0.5)
    health.asked(A, 1.0)
    assert health.usable(A, 1.0)


def test_who_is_always_outrun_fails() -> None:
    """A few times in a row without a byte are a failure; a byte in between ends the row, and what
    was asked together counts once."""
    health = PeerHealth()
    for n in range(1, OUTRUN):
        for _ in range(30):
            health.was_outrun(A, float(n), n + 0.5)
    assert health.usable(A, 10.0)
    health.began(A, 0.1)
    for n in range(10, 10 + OUTRUN):
        assert health.usable(A, float(n))
        health.was_outrun(A, float(n), n + 0.5)
    now_s = 10 + OUTRUN - 0.5
    assert avoided_s(health, now_s) == pytest.approx(BACKOFF.pause_s_first, abs=0.01)


def test_to_be_outrun_on_trial_is_a_failure() -> None:
    """Who failed is not given a few more chances to hang."""
    health = PeerHealth()
    health.failed(A, 0.0)
    health.asked(A, 1.0)
    health.was_outrun(A, 1.0, 2.0)
    assert avoided_s(health, 2.0) == pytest.approx(2 * BACKOFF.pause_s_first, abs=0.01)


def test_success_ends_the_backoff_and_flapping_does_not() -> None:
    """A served unit makes the peer usable at once; who failed often is avoided for longer again."""
    health, now_s = PeerHealth(), 0.0
    for _ in range(6):
        health.failed(A, now_s)
        now_s += avoided_s(health, now_s)
    health.served(A, MIB, 0.1, now_s)
    assert health.usable(A, now_s)
    health.failed(A, now_s)
    assert avoided_s(health, now_s) == pytest.approx(8.0, abs=0.01)


def test_wrong_bytes_are_not_forgiven_soon() -> None:
    """Quarantine lasts for minutes, whatever else the peer does, and doubles."""
    health = PeerHealth()
    health.wrong(A, 0.0)
    health.wrong(A, 1.0)
    health.served(A, MIB, 0.1, 1.5)
    for ok in (False, False, True):
        health.probed(A, ok, 2.0)
    assert avoided_s(health, 0.0) == pytest.approx(QUARANTINE.pause_s_first, abs=0.01)
    health.wrong(A, QUARANTINE.pause_s_first)
    assert avoided_s(health, QUARANTINE.pause_s_first) == pytest.approx(
        2 * QUARANTINE.pause_s_first, abs=0.01
    )


def test_probes_take_a_peer_down_and_up() -> None:
    """Probes that fail in a row take it down until one succeeds, which ends backoffs, too."""
    health = PeerHealth()
    for n in range(PROBES_FAILED):
        assert health.usable(A, n)
        health.probed(A, False, n)
    health.failed(A, 3.0)
    assert not health.usable(A, 1e6)
    health.probed(A, True, 4.0)
    assert health.usable(A, 4.0)


def test_probes_that_succeed_do_not_excuse_failures() -> None:
    """Who answers probes and no requests stays avoided."""
    health = PeerHealth()
    health.failed(A, 0.0)
    health.probed(A, True, 0.1)
    assert not health.usable(A, 0.2)


def test_use_is_believed_before_probes() -> None:
    """Probes that fail now and then do not add up under a load that is served."""
    health = PeerHealth()
    for n in range(10):
        health.probed(A, False, n)
        health.served(A, MIB, 0.1, n)
    assert health.usable(A, 10.0)


def test_expected_times_follow_what_is_seen() -> None:
    """A peer of 10 ms and 100 MB/s, and a store of 50 ms and 80 MB/s, are known after a while;
    another peer is thought to be like those that are known."""
    health = PeerHealth()
    for _ in range(100):
        health.began(A, 0.01)
        health.served(A, 8 * MIB, 0.01 + 8 * MIB / 100e6, 1.0)
        health.store_served(1000, 0.05)
        health.store_served(8 * MIB, 0.05 + 8 * MIB / 80e6)
    assert health.expected_s(A, 8 * MIB) == pytest.approx(0.01 + 8 * MIB / 100e6, rel=0.1)
    assert health.expected_s(B, 8 * MIB) == health.expected_s(A, 8 * MIB)
    assert health.store_expected_s(8 * MIB) == pytest.approx(0.05 + 8 * MIB / 80e6, rel=0.1)
    assert health.store_expected_s(1000) == pytest.approx(0.05, rel=0.1)


def test_a_change_is_told_once() -> None:
    """Whoever wants to know hears of a state when it begins, and not of each failure in it."""
    told: list[tuple[str, str, str]] = []
    health = PeerHealth(on_change=lambda *what: told.append(what))
    for n in range(5):
        health.failed(A, n, Fault.LATE, f"silent for {n} s")
    health.served(A, MIB, 0.1, 5.0)
    health.served(A, MIB, 0.1, 6.0)
    health.wrong(A, 7.0, "lies")
    health.probed(A, False, 8.0, Fault.REFUSING, "403")
    for n in range(3):
        health.refused(B, f"the clock is {n} s behind", 9.0)
    health.asks(B, 10.0)
    assert told == [
        (A, Fault.LATE, "silent for 0 s"),
        (A, WELL, ""),
        (A, Fault.WRONG, "lies"),
        (B, REFUSED, "the clock is 0 s behind"),
        (B, WELL, ""),
    ]


def test_nobody_in_quarantine_is_told_as_well() -> None:
    """Answers that were under way when wrong bytes came, later failures and probes change nothing
    of what is told, until the quarantine is over and the peer shows that it is well."""
    told: list[tuple[str, str, str]] = []
    health = PeerHealth(on_change=lambda *what: told.append(what))
    health.wrong(A, 0.0, "lies")
    health.served(A, MIB, 0.1, 1.0)
    health.failed(A, 2.0, Fault.UNREACHABLE, "reset")
    health.answered(A, 3.0)
    for ok in (False, False, True):
        health.probed(A, ok, 4.0, Fault.REFUSING, "403")
    health.was_outrun(A, 5.0, 6.0)
    seen = health.standing(A, QUARANTINE.pause_s_first - 1.0)
    assert (seen.state, seen.reason, seen.usable) == (Fault.WRONG, "lies", False)
    assert told == [(A, Fault.WRONG, "lies")]
    health.served(A, MIB, 0.1, QUARANTINE.pause_s_first)
    assert health.standing(A, QUARANTINE.pause_s_first).state == WELL
    assert told[1:] == [(A, WELL, "")]


def test_a_fault_is_told_as_long_as_the_peer_is_avoided() -> None:
    """A peer that answers probes and fails in use is not told as well while nobody asks it; one
    that answers a signed probe refuses no more, and is asked at once."""
    health = PeerHealth()
    health.failed(A, 0.0, Fault.UNREACHABLE, "reset")
    health.probed(A, True, 0.5)
    assert health.standing(A, 0.5).state == Fault.UNREACHABLE
    health.probed(A, True, 1.0)
    assert health.standing(A, 1.0).state == WELL
    health.failed(B, 0.0, Fault.REFUSING, "403")
    health.probed(B, True, 0.5)
    seen = health.standing(B, 0.5)
    assert (seen.state, seen.usable) == (WELL, True)


def test_how_things_stand() -> None:
    """State, reason, when it was heard of, what came and went, and the last error also later."""
    health = PeerHealth()
    assert health.standing(A, 0.0).state == WELL
    assert health.standing(A, 0.0).seen_ago_s is None
    health.served(A, 1000, 0.1, 10.0)
    health.sent(A, 77)
    health.failed(A, 11.0, Fault.LATE, "silent")
    seen = health.standing(A, 11.5)
    assert (seen.state, seen.reason, seen.usable) == (Fault.LATE, "silent", False)
    assert (seen.seen_ago_s, seen.received_bytes, seen.sent_bytes) == (1.5, 1000, 77)
    health.probed(A, True, 13.0)
    seen = health.standing(A, 14.0)
    assert (seen.state, seen.error, seen.error_ago_s) == (WELL, "silent", 3.0)
    health.refused(A, "another secret", 14.0)
    assert health.standing(A, 15.0).state == REFUSED
    assert health.standing(A, 15.0).reason == "1 s ago (shown for 180 s): another secret"
    assert health.standing(A, 15.0).usable
    assert health.standing(A, 14.0 + REFUSED_S).state == WELL


def test_who_refuses_is_well_when_it_answers() -> None:
    """Any answer to a signed request shows that the peer trusts this node; it does not excuse a
    peer that was late."""
    for fault, state in ((Fault.REFUSING, WELL), (Fault.LATE, Fault.LATE)):
        health = PeerHealth()
        health.failed(A, 0.0, fault, "why")
        health.answered(A, 0.5)
        assert health.standing(A, 0.5).state == state


def test_memory_is_bounded() -> None:
    """Of more peers than fit, those heard of last are remembered."""
    health = PeerHealth(peers_max=10)
    for n in range(100):
        health.failed(f"{n}:1", 0.0)
    assert [n for n in range(100) if not health.usable(f"{n}:1", 0.5)] == list(range(90, 100))


faults = st.sampled_from([fault for fault in Fault if fault is not Fault.WRONG])
happenings = st.sampled_from(["failed", "wrong", "outrun", "asked", "answered", "served", "probed"])


@given(st.lists(st.tuples(happenings, faults, st.booleans(), st.floats(0.0, 400.0)), max_size=40))
def test_who_is_told_as_well_is_asked(history: list[tuple[str, Fault, bool, float]]) -> None:
    """Whatever happened in whatever order: a peer that is told as well may be asked, or is on
    trial; and what the log said last is what the status shows."""
    told = [WELL]
    health, now_s = PeerHealth(on_change=lambda _address, state, _why: told.append(state)), 1.0
    for event, fault, ok, wait_s in history:
        now_s += wait_s
        match event:
            case "failed":
                health.failed(A, now_s, fault)
            case "wrong":
                health.wrong(A, now_s)
            case "outrun":
                health.was_outrun(A, now_s, now_s)
            case "asked":
                health.asked(A, now_s)
            case "answered":
                health.answered(A, now_s)
            case "served":
                health.served(A, MIB, 0.1, now_s)
            case _:
                health.probed(A, ok, now_s, fault)
        seen = health.standing(A, now_s)
        if seen.state == WELL and not seen.usable:
            assert health._record(A).on_trial
        assert seen.state == told[-1] or (seen.state, told[-1]) == (DOWN, Fault.UNREACHABLE)


events = st.sampled_from(["failed", "asked", "served", "up", "down"])


@given(st.lists(st.tuples(events, st.floats(0.0, 100.0)), max_size=40))
def test_nobody_is_avoided_forever(history: list[tuple[str, float]]) -> None:
    """Whatever happened, a peer whose probes succeed is usable within the longest backoff."""
    health, now_s = PeerHealth(), 0.0
    for event, wait_s in history:
        now_s += wait_s
        match event:
            case "failed":
                health.failed(A, now_s)
            case "asked":
                health.asked(A, now_s)
            case "served":
                health.served(A, MIB, 0.1, now_s)
            case _:
                health.probed(A, event == "up", now_s)
    health.probed(A, True, now_s)
    assert health.usable(A, now_s + BACKOFF.pause_s_max)


def test_the_present_latency_is_that_of_most_peers() -> None:
    """A third of the peers may hang without an effect; old answers do not count."""
    health = PeerHealth()
    for number, silence_s in enumerate((9.0, 9.0, 0.1, 0.2, 0.3, 0.4)):
        health.silent(f"{number}:1", silence_s, 1.0)
    assert health.present_latency_s(2.0) == 0.3
    for number in range(6):
        health.silent(f"{number}:1", 0.5, 2.0)
    assert health.present_latency_s(2.0) == 0.5
    assert health.present_latency_s(2.0 + PRESENT_S) == 0.0


def test_two_peers_show_nothing_of_a_cluster() -> None:
    """Both may hang, and no memory is kept of more peers than are needed."""
    health = PeerHealth()
    health.silent("a:1", 5.0, 0.0)
    health.silent("b:1", 5.0, 0.0)
    assert health.present_latency_s(0.0) == 0.0
    for number in range(PRESENT_PEERS_MAX):
        health.silent(f"{number}:1", -1.0, 0.0)
    assert health.present_latency_s(0.0) == 0.0
