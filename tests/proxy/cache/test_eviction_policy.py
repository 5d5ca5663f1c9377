"""Eviction policies: the contract, and what the policy of nodes adds to it."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from lodefs.proxy.cache.chunk_cache import Cache, Flat
from lodefs.proxy.cache.eviction_policy import (
    PROTECTED_S,
    EvictableFile,
    EvictionPolicy,
    FairLru,
    File,
    Use,
)
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.metrics.counters import Counts
from tests.support.proxy.eviction_policy_suite import NOW_S, EvictionPolicySuite, MemoryFile
from tests.support.proxy.rig import chunk_of

MIB = 1024 * 1024


class MostUses:
    """Keeps what was used most often, by counts in memory: another policy than that of nodes."""

    def __init__(self) -> None:
        self._uses: dict[int, int] = {}

    def touch(self, file: EvictableFile, _use: Use, _now_s: int) -> None:
        self._uses[file.number] = self._uses.get(file.number, 0) + 1

    def victims(self, files: list[File], need_bytes: int, now_s: float) -> list[File]:
        chosen: list[File] = []
        free = [file for file in files if file.is_evictable(now_s)]
        for file in sorted(free, key=lambda one: (self._uses.get(one.number, 0), one.number)):
            if need_bytes > 0:
                chosen.append(file)
                need_bytes -= file.present_bytes
        return chosen


class TestFairLru(EvictionPolicySuite):
    """The policy of nodes."""

    @pytest.fixture
    def policy(self) -> type[FairLru]:
        return FairLru


class TestMostUses(EvictionPolicySuite):
    """A policy that keeps what it knows in memory."""

    @pytest.fixture
    def policy(self) -> type[MostUses]:
        return MostUses


OLD_S = int(-PROTECTED_S) - 1  # so long ago, an owner protects nothing


@pytest.mark.parametrize(
    ("rows", "need_bytes", "chosen"),
    [
        # the scan's oldest go, and not what another user read before
        ([(1, 10, "b"), (2, 40, "a"), (3, 40, "a")], 30, [1]),
        ([(1, 10, "b"), (2, 40, "a"), (3, 40, "a")], 45, [1, 0]),
        # what nobody has used for long goes first, whosever it was
        ([(0, 10, ""), (1, 10, "b"), (2, 40, "a")], 15, [0, 2]),
        ([(OLD_S, 10, "c"), (2, 40, "a")], 5, [0]),
        # equal shares, and one owner alone: the least recently used
        ([(1, 40, "b"), (2, 40, "a")], 10, [0]),
        ([(1, 40, "a"), (2, 40, "a")], 10, [0]),
        # pinned files count for their owners, and stay
        ([(1, 10, "a"), (2, 10, "b"), (3, -80, "b")], 5, [1]),
    ],
)
def test_shares(rows: list[tuple[int, int, str]], need_bytes: int, chosen: list[int]) -> None:
    """Who holds more than an equal share gives way first. A size below 0 is that of a file that is
    held."""
    files = [
        MemoryFile(n, abs(size), owner, NOW_S + used_s, is_held=size < 0)
        for n, (used_s, size, owner) in enumerate(rows)
    ]
    assert [file.number for file in FairLru().victims(files, need_bytes, NOW_S)] == chosen


@pytest.mark.parametrize(("policy", "stays"), [(FairLru, 1), (MostUses, 0)])
def test_a_cache_evicts_by_its_policy(
    tmp_path: Path, policy: type[EvictionPolicy], stays: int
) -> None:
    """The first file is read twice, the second once, but last."""
    settings, times_s = CacheSettings(tmp_path, 8 * MIB, free_size_bytes_min=0), count(NOW_S)
    cache = Cache(settings, Counts(), now_s=lambda: next(times_s), policy=policy())
    raws = [bytes([n]) * MIB for n in range(2)]
    chunks = [chunk_of(raw) for raw in raws]
    files = [cache.store([one], Flat(one[0].id, MIB))[0].file for one in chunks]
    for n in (0, 0, 1):
        cache.touch(files[n], Use.READ, 1)
    cache.eviction.free(1)
    assert [file.is_alive for file in files] == [stays == 0, stays == 1]
    cache.close()
