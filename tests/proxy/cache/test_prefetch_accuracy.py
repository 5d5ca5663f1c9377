"""The running share of what was fetched unasked and read before it was evicted."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.proxy.cache.prefetch_accuracy import EVIDENCE_PARTS, PrefetchAccuracy

MIB = 1024 * 1024
CACHE = 1024 * MIB
SLAB = 64 * MIB


def test_nothing_is_known_at_first() -> None:
    """Without evictions, and with one of a few bytes, all that is fetched counts as useful."""
    accuracy = PrefetchAccuracy(CACHE)
    assert accuracy.share == 1.0
    accuracy.evicted(MIB // 2, 0, 0)
    assert not accuracy.is_low


def test_what_was_asked_for_is_no_evidence() -> None:
    """A cache of bytes that readers waited for changes nothing, however small a part of the rest
    was read before."""
    accuracy = PrefetchAccuracy(CACHE)
    accuracy.evicted(SLAB, 2 * MIB, 4 * MIB)
    before = accuracy.share
    for _ in range(CACHE // SLAB):
        accuracy.evicted(SLAB, SLAB, 3 * SLAB)
    assert accuracy.share == pytest.approx(before)
    assert before < 0.1


@pytest.mark.parametrize("cache_bytes", [CACHE // 8, CACHE, 1024 * CACHE])
def test_evidence_fades_while_only_what_was_asked_for_goes(cache_bytes: int) -> None:
    """After a job that read at random for long, a known set comes with its neighbours again, once
    some caches of others have gone: how many does not depend on the cache's size."""
    accuracy, slab = PrefetchAccuracy(1), cache_bytes // 128
    accuracy.resize(cache_bytes)  # a node knows the limit when its cache is open
    for _ in range(1000):
        accuracy.evicted(slab, 0, 0)
    evicted_bytes = 0
    while accuracy.is_low and evicted_bytes < 1000 * cache_bytes:
        accuracy.evicted(slab, slab, slab)
        evicted_bytes += slab
    assert 4 < evicted_bytes / cache_bytes < 12


def test_readers_at_random_seldom_learn_it_anew() -> None:
    """Faded evidence has them fetch a cache of neighbours in vain, of eight caches or more."""
    accuracy, asked_bytes = PrefetchAccuracy(CACHE), 0
    slabs: deque[int] = deque([SLAB] * (CACHE // SLAB))  # what was asked for of each
    count = 200 * len(slabs)
    for _ in range(count):
        accuracy.evicted(SLAB, slabs[0], slabs.popleft())
        slabs.append(SLAB if accuracy.is_low else SLAB // 43)
        asked_bytes += slabs[-1]
    assert count * SLAB < 1.15 * asked_bytes


def test_who_reads_on_finds_all_of_it() -> None:
    """A sequential reader, of whose bytes a 32nd was asked for: most of the rest is useful."""
    accuracy = PrefetchAccuracy(CACHE)
    accuracy.evicted(SLAB, 2 * MIB, SLAB)
    assert accuracy.share > 0.95


def test_readers_of_the_same_bytes_again_do_not_make_the_rest_useful() -> None:
    """Bytes that were asked for and are read a second time: their neighbours were not."""
    accuracy = PrefetchAccuracy(CACHE)
    accuracy.evicted(SLAB, 16 * MIB, 32 * MIB)
    assert accuracy.is_low


@pytest.mark.parametrize(("before", "after"), [(0, SLAB), (SLAB, 0)])
def test_news_outweigh_what_was(before: int, after: int) -> None:
    """A long time of the one is outweighed by evictions of an eighth of the cache of the other."""
    accuracy = PrefetchAccuracy(CACHE)
    for _ in range(1000):
        accuracy.evicted(SLAB, 0, before)
    was_low = accuracy.is_low
    for _ in range(2 * CACHE // EVIDENCE_PARTS // SLAB):
        accuracy.evicted(SLAB, 0, after)
    assert accuracy.is_low != was_low


@given(st.lists(st.tuples(*[st.integers(0, 4 * SLAB)] * 3)))
def test_it_is_a_share(files: list[tuple[int, int, int]]) -> None:
    """Whatever is told of files, the share lies between 0 and 1."""
    accuracy = PrefetchAccuracy(CACHE)
    for file in files:
        accuracy.evicted(*file)
        assert 0.0 <= accuracy.share <= 1.0
