"""Finds the last of consecutive numbers with few queries."""

from __future__ import annotations

from collections.abc import Callable


def last_of_row(has: Callable[[int], bool], known: int) -> int:
    """Returns the last of consecutive numbers of which ``known`` is one (or comes right before the
    first). It takes one query if ``known`` is the last, and otherwise about 2 log2 of the
    distance."""
    step = 1
    while has(known + step):
        known += step
        step *= 2
    while step > 1:
        step //= 2
        if has(known + step):
            known += step
    return known
