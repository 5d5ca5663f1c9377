"""SendingLoad: when an owner sends nodes away."""

from __future__ import annotations

import pytest

from lodefs.proxy.peers.sending_load import (
    HARD_BYTES_MAX,
    SMALL_BYTES,
    SOFT_BYTES_MAX,
    SOFT_PART,
    STREAMS_MAX,
    STUCK_S,
    SendingLoad,
)

MIB = 1 << 20
HEALTHY_PART = 4  # what one peer asks for at once, of the hard limits


@pytest.mark.parametrize(
    ("taken", "alternatives", "size_bytes", "backlog_s", "overloaded"),
    [
        ([], 0, 8 * MIB, 0.0, False),
        ([], 4, 8 * MIB, 0.0, False),
        ([8 * MIB] * 8, 4, 8 * MIB, 0.0, True),
        ([8 * MIB] * 8, 0, 8 * MIB, 0.0, False),
        ([8 * MIB] * 8, 4, SMALL_BYTES, 0.0, False),
        ([HARD_BYTES_MAX], 0, SMALL_BYTES, 0.0, True),
        ([1] * STREAMS_MAX, 0, 1, 0.0, True),
        ([], 1, 8 * MIB, 1.0, True),
        ([], 0, 8 * MIB, 1.0, False),
        ([], 0, 8 * MIB, 10.0, True),
    ],
)
def test_who_is_sent_away(
    taken: list[int], alternatives: int, size_bytes: int, backlog_s: float, overloaded: bool
) -> None:
    """Beyond the soft limit those go that can go elsewhere, unless it is little that they want;
    beyond the hard one all."""
    load = SendingLoad()
    for n, each in enumerate(taken):
        load.began(f"node{n}", 0.0, each)
    asked = load.overloaded(
        "asks", 1.0, alternatives=alternatives, size_bytes=size_bytes, backlog_s=backlog_s
    )
    assert asked is overloaded
    for n, each in enumerate(taken):
        load.ended(f"node{n}", 0.1, each)
    assert not load.overloaded("asks", 1.0, alternatives=alternatives, size_bytes=size_bytes)


def fill(load: SendingLoad, peer: str, now_s: float, alternatives: int, size_bytes: int) -> int:
    """Has a peer ask until it is sent away. Returns how often it was accepted."""
    accepted = 0
    while not load.overloaded(peer, now_s, alternatives=alternatives):
        load.began(peer, now_s, size_bytes)
        accepted += 1
    return accepted


@pytest.mark.parametrize("size_bytes", [1, 8 * MIB])
@pytest.mark.parametrize("greedy", [1, 3, 7])
def test_peers_that_read_nothing_leave_room_for_others(size_bytes: int, greedy: int) -> None:
    """A peer gets no more than its part, in streams and in bytes, however often it asks. If seven
    do so, the next one gets something."""
    load = SendingLoad()
    accepted = [fill(load, f"greedy{n}", 0.0, 0, size_bytes) for n in range(greedy)]
    part = min(STREAMS_MAX // HEALTHY_PART, HARD_BYTES_MAX // HEALTHY_PART // size_bytes)
    assert accepted[0] == part
    assert not load.overloaded("other", 0.0, alternatives=0)
    load.ended("greedy0", 1.0, size_bytes)
    assert greedy > 1 or not load.overloaded("greedy0", 0.0, alternatives=0)


def test_one_peer_has_a_part_of_the_soft_limit() -> None:
    """A peer that asked for the whole limit before others had the pack leaves three fourths to
    them, and goes elsewhere itself as soon as it can."""
    load = SendingLoad()
    assert fill(load, "greedy", 0.0, 0, 8 * MIB) == SOFT_BYTES_MAX // (8 * MIB)
    assert load.overloaded("greedy", 0.0, alternatives=1)
    part = SOFT_BYTES_MAX // SOFT_PART // (8 * MIB)
    assert [fill(load, f"node{n}", 0.0, 1, 8 * MIB) for n in range(4)] == [part, part, part, 0]


def test_peers_that_have_stopped_take_no_room_in_the_soft_limit() -> None:
    """Ten peers read, and then nothing for a while: the next one is not sent to them."""
    load = SendingLoad()
    for n in range(10):
        load.began(f"node{n}", 0.0)
        load.took(f"node{n}", 1.0)
    assert load.overloaded("other", 0.9 + STUCK_S, alternatives=1)
    assert not load.is_stuck("node0", 0.9 + STUCK_S)
    assert load.is_stuck("node0", 1.0 + STUCK_S)
    assert not load.is_stuck("other", 1.0 + STUCK_S)
    assert not load.overloaded("other", 1.0 + STUCK_S, alternatives=1)
    load.took("node0", 1.0 + STUCK_S)
    assert not load.is_stuck("node0", 1.0 + STUCK_S)


def test_retry_after_is_when_one_of_the_streams_ends() -> None:
    """Ten streams of a second each: one ends about every 0.1 s."""
    load = SendingLoad()
    for _ in range(200):
        load.began("", 0.0)
        load.ended("", 1.0)
    for _ in range(10):
        load.began("", 0.0)
    assert load.retry_after_s() == pytest.approx(0.1, rel=0.1)
