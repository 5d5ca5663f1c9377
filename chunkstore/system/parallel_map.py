"""Maps a function over many items with the threads of an executor, in bounded memory; groups items
that are too small for a task each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

AHEAD = 64

T = TypeVar("T")
U = TypeVar("U")


def map_ahead(
    executor: Executor, function: Callable[[T], U], items: Iterable[T], ahead: int = AHEAD
) -> Iterator[U]:
    """Yields the results in the order of the items, which it takes on demand: at most ``ahead`` are
    under way or not yet taken. Raises: what the function raises; calls that have not begun are then
    cancelled."""
    waiting: deque[Future[U]] = deque()
    try:
        for item in items:
            if len(waiting) == ahead:
                yield waiting.popleft().result()
            waiting.append(executor.submit(function, item))
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def grouped(
    items: Iterable[T], size_bytes_of: Callable[[T], int], size_bytes: int, count_max: int
) -> Iterator[list[T]]:
    """Yields the items in their order, in groups that end when they have ``size_bytes`` together,
    or ``count_max`` items."""
    group: list[T] = []
    together_bytes = 0
    for item in items:
        group.append(item)
        together_bytes += size_bytes_of(item)
        if together_bytes >= size_bytes or len(group) == count_max:
            yield group
            group, together_bytes = [], 0
    if group:
        yield group
