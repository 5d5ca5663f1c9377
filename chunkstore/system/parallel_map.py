"""A function of many items, by the threads of an executor, with a bound on what is in memory."""

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
    """The results in the order of the items, which are taken as they are needed: no more than
    ``ahead`` are under way, or wait to be taken. Raises: what the function raises; what is not
    begun by then is cancelled."""
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
