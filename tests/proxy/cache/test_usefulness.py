"""The running share of what was brought unasked and read before it was evicted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.proxy.cache.eviction import EVIDENCE_PARTS, Usefulness

MIB = 1024 * 1024
CACHE = 1024 * MIB
SLAB = 64 * MIB


def test_nothing_is_known_at_first() -> None:
    """Without evictions, and with one of a few bytes, all that is brought counts as useful."""
    usefulness = Usefulness(CACHE)
    assert usefulness.share == 1.0
    usefulness.evicted(MIB // 2, 0, 0)
    assert not usefulness.is_low


def test_what_was_asked_for_is_no_evidence() -> None:
    """Slabs of bytes that readers waited for change nothing, however small a part of the rest was
    read before."""
    usefulness = Usefulness(CACHE)
    usefulness.evicted(SLAB, 2 * MIB, 4 * MIB)
    before = usefulness.share
    for _ in range(1000):
        usefulness.evicted(SLAB, SLAB, 3 * SLAB)
    assert usefulness.share == before < 0.1


def test_who_reads_on_finds_all_of_it() -> None:
    """A sequential reader, of whose bytes a 32nd was asked for: most of the rest is useful."""
    usefulness = Usefulness(CACHE)
    usefulness.evicted(SLAB, 2 * MIB, SLAB)
    assert usefulness.share > 0.95


def test_readers_of_the_same_bytes_again_do_not_make_the_rest_useful() -> None:
    """Bytes that were asked for and are read a second time: their neighbours were not."""
    usefulness = Usefulness(CACHE)
    usefulness.evicted(SLAB, 16 * MIB, 32 * MIB)
    assert usefulness.is_low


@pytest.mark.parametrize(("before", "after"), [(0, SLAB), (SLAB, 0)])
def test_news_outweigh_what_was(before: int, after: int) -> None:
    """A long time of the one is outweighed by evictions of an eighth of the cache of the other."""
    usefulness = Usefulness(CACHE)
    for _ in range(1000):
        usefulness.evicted(SLAB, 0, before)
    was_low = usefulness.is_low
    for _ in range(2 * CACHE // EVIDENCE_PARTS // SLAB):
        usefulness.evicted(SLAB, 0, after)
    assert usefulness.is_low != was_low


@given(st.lists(st.tuples(*[st.integers(0, 4 * SLAB)] * 3)))
def test_it_is_a_share(files: list[tuple[int, int, int]]) -> None:
    """Whatever is told of files, the share lies between 0 and 1."""
    usefulness = Usefulness(CACHE)
    for file in files:
        usefulness.evicted(*file)
        assert 0.0 <= usefulness.share <= 1.0
