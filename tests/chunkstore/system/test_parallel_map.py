"""parallel_map.py: results in order, a bounded number of them ahead."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from lodefs.chunkstore.system.parallel_map import map_ahead


def test_results_come_in_order_and_few_ahead() -> None:
    """Items are taken as results are, no more than ``ahead`` before."""
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    with ThreadPoolExecutor(3) as executor:
        results = map_ahead(executor, lambda number: -number, items(), ahead=5)
        assert next(results) == 0
        assert len(taken) <= 6
        assert list(results) == [-number for number in range(1, 100)]


def test_an_error_comes_in_its_place_and_ends_it() -> None:
    """What comes before it is given; what is not begun by then never begins."""
    begun: list[int] = []

    def fail(number: int) -> int:
        begun.append(number)
        return 1 // (3 - number)

    with ThreadPoolExecutor(1) as executor:
        results = map_ahead(executor, fail, range(100), ahead=2)
        assert [next(results) for _ in range(3)] == [0, 0, 1]
        with pytest.raises(ZeroDivisionError):
            next(results)
    assert max(begun) <= 5
