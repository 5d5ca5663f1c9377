"""The memory of what is damaged."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.errors import Corrupt
from lodefs.proxy.fetch.known_damage import DamagedChunks


def is_known(damaged: DamagedChunks, key: str, first: int = 0, end: int = 1) -> bool:
    try:
        damaged.check(key, first, end)
    except Corrupt:
        return True
    return False


def test_what_holds_a_damaged_part_fails() -> None:
    """A read that holds all of a damaged part cannot succeed; one that holds less of it may."""
    damaged = DamagedChunks()
    damaged.note("a", Corrupt("bad"), 10, 12)
    found = [is_known(damaged, "a", *part) for part in [(0, 10), (10, 11), (10, 12), (0, 99)]]
    assert found == [False, False, True, True]
    assert not is_known(damaged, "b", 0, 99)
    with pytest.raises(Corrupt, match=r"bad \(found a moment ago"):
        damaged.check("a", 0, 99)


def test_it_is_forgotten_soon() -> None:
    """After its time a damaged thing is read again, and if it still is damaged, known anew."""
    now_s = 0.0
    damaged = DamagedChunks(kept_for_s=5.0, clock_s=lambda: now_s)
    for _ in range(2):
        damaged.note("a", Corrupt("bad"))
        now_s += 4.9
        assert is_known(damaged, "a")
        now_s += 0.1
        assert not is_known(damaged, "a")


def test_it_is_bounded() -> None:
    """Of too many damaged things the oldest are forgotten."""
    damaged = DamagedChunks(entries_max=3)
    for key in "abcad":
        damaged.note(key, Corrupt("bad"))
    assert [key for key in "abcd" if is_known(damaged, key)] == ["a", "c", "d"]
