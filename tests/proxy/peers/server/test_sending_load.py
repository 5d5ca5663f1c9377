"""SendingLoad: when an owner sends nodes away."""

from __future__ import annotations

import pytest

from lodefs.proxy.peers.server import (
    HARD_BYTES_MAX,
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
    for each in taken:
        load.began(each)
    asked = load.overloaded(alternatives=alternatives, size_bytes=size_bytes, backlog_s=backlog_s)
    assert asked is overloaded
    for each in taken:
        load.ended(0.1, each)
    assert not load.overloaded(alternatives=alternatives, size_bytes=size_bytes)


def test_retry_after_is_when_one_of_the_streams_ends() -> None:
    """Ten streams of a second each: one ends about every 0.1 s."""
    load = SendingLoad()
    for _ in range(200):
        load.began()
        load.ended(1.0)
    for _ in range(10):
        load.began()
    assert load.retry_after_s() == pytest.approx(0.1, rel=0.1)
