"""Finds the end of a row of numbers by asking for few of them."""

from __future__ import annotations

from collections.abc import Callable


def last_of_row(has: Callable[[int], bool], known: int) -> int:
    """The last number of a row without gaps, of which ``known`` is one (or comes right before the
    first). Asks for one number if that is the last, and else for some 2 log2 of what is between."""
    step = 1
    while has(known + step):
        known += step
        step *= 2
    while step > 1:
        step //= 2
        if has(known + step):
            known += step
    return known
