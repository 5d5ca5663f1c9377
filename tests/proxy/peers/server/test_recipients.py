"""Sources and Load: whom an owner names, and when it sends away."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.format.pack import PACK_CHUNKS_LIMIT
from lodefs.proxy.peers.server import (
    HARD_BYTES_MAX,
    SMALL_BYTES,
    SOFT_BYTES_MAX,
    SOURCE_S,
    STREAMS_MAX,
    Recipients,
    SendingLoad,
)

P, Q = b"p" * 32, b"q" * 32
MIB = 1 << 20


def test_only_those_that_have_it_are_named() -> None:
    """A source has all the chunks that are asked for, and is not the one that asks."""
    sources = Recipients()
    sources.sent(P, "a", 0.0, range(8))
    sources.sent(P, "a", 0.0, range(8, 12))
    sources.sent(P, "b", 0.0, range(4))
    assert sources.others(P, "a", 9, 1.0, range(4)) == ["b"]
    assert sources.others(P, "c", 9, 1.0, range(6, 10)) == ["a"]
    assert sources.others(P, "d", 9, 1.0, range(10, 20)) == []
    assert sources.others(Q, "d", 9, 1.0, range(1)) == []


def test_all_sources_are_named_as_often() -> None:
    """Ten sources share what a hundred nodes are told."""
    sources = Recipients()
    for n in range(10):
        sources.sent(P, f"n{n}", 0.0)
    named = Counter(name for n in range(100) for name in sources.others(P, f"n{n % 10}", 2, 1.0))
    assert max(named.values()) - min(named.values()) <= 4


def test_old_sources_are_forgotten() -> None:
    """What was sent long ago may be gone."""
    sources = Recipients()
    sources.sent(P, "a", 0.0)
    assert sources.others(P, "b", 9, SOURCE_S) == ["a"]
    assert "a" not in sources.others(P, "c", 9, SOURCE_S + 1)


@given(st.lists(st.tuples(st.sampled_from([P, Q, b"r" * 32]), st.integers(0, 20))))
def test_memory_is_bounded(history: list[tuple[bytes, int]]) -> None:
    """However much is sent, two packs and five sources of each are remembered."""
    sources = Recipients(packs_max=2, sources_max=5)
    for now_s, (pack, number) in enumerate(history):
        sources.sent(pack, f"n{number}", now_s)
    named = [sources.others(pack, "x", 99, len(history)) for pack in (P, Q, b"r" * 32)]
    assert all(len(names) <= 5 for names in named)
    assert sum(map(bool, named)) <= 2


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


def test_who_was_sent_all_has_the_last_chunk_too() -> None:
    """Also of a pack with as many chunks as a pack may have."""
    sources = Recipients()
    sources.sent(b"pack", "a:1", 0.0)
    last = range(PACK_CHUNKS_LIMIT - 1, PACK_CHUNKS_LIMIT)
    assert sources.others(b"pack", "b:1", 5, 1.0, last) == ["a:1"]
