"""SendingLoad: when an owner sends nodes away."""

from __future__ import annotations

import pytest

from lodefs.proxy.peers.server import (
    HARD_BYTES_MAX,
    PEER_PART,
    SMALL_BYTES,
    SOFT_BYTES_MAX,
    STREAMS_MAX,
    SendingLoad,
)

MIB = 1 << 20


@pytest.mark.parametrize(
    ("taken", "alternatives", "size_bytes", "backlog_s", "overloaded"),
    [
        ([], 0, 8 * MIB, 0.0, False),
        ([], 4, 8 * MIB, 0.0, False),
        ([SOFT_BYTES_MAX], 4, 8 * MIB, 0.0, True),
        ([SOFT_BYTES_MAX], 0, 8 * MIB, 0.0, False),
        ([SOFT_BYTES_MAX], 4, SMALL_BYTES, 0.0, False),
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
        load.began(f"node{n}", each)
    asked = load.overloaded(
        "asks", alternatives=alternatives, size_bytes=size_bytes, backlog_s=backlog_s
    )
    assert asked is overloaded
    for n, each in enumerate(taken):
        load.ended(f"node{n}", 0.1, each)
    assert not load.overloaded("asks", alternatives=alternatives, size_bytes=size_bytes)


@pytest.mark.parametrize("size_bytes", [1, 8 * MIB])
def test_who_reads_nothing_leaves_room_for_others(size_bytes: int) -> None:
    """A peer gets no more than its part, in streams and in bytes, however often it asks."""
    load = SendingLoad()
    accepted = 0
    while not load.overloaded("greedy", alternatives=0):
        load.began("greedy", size_bytes)
        accepted += 1
    assert accepted == min(STREAMS_MAX // PEER_PART, HARD_BYTES_MAX // PEER_PART // size_bytes)
    assert not load.overloaded("other", alternatives=0)
    load.ended("greedy", 1.0, size_bytes)
    assert not load.overloaded("greedy", alternatives=0)


def test_retry_after_is_when_one_of_the_streams_ends() -> None:
    """Ten streams of a second each: one ends about every 0.1 s."""
    load = SendingLoad()
    for _ in range(200):
        load.began("")
        load.ended("", 1.0)
    for _ in range(10):
        load.began("")
    assert load.retry_after_s() == pytest.approx(0.1, rel=0.1)
