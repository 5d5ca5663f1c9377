"""Bounded maps that drop the least recently used entries. Many threads may use them at once.

Lru holds what is put; SingleFlightCache loads each value once for all threads that want it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """At most ``entries_max`` entries."""

    def __init__(self, entries_max: int) -> None:
        if entries_max < 1:
            raise ValueError("an Lru needs room for one entry")
        self._entries_max = entries_max
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Returns the value, and makes it the newest; None if there is none."""
        value = self._entries.get(key)  # each call of the map is atomic: no lock, as reads are many
        if value is not None:
            try:  # noqa: SIM105 - with suppress it would take twice as long
                self._entries.move_to_end(key)
            except KeyError:  # another thread has dropped it meanwhile
                pass
        return value

    def put(self, key: K, value: V) -> None:
        """Sets a value; drops the oldest entries beyond the limit."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self._entries_max:
                self._entries.popitem(last=False)

    def pop(self, key: K) -> V | None:
        """Removes an entry and returns its value, or None if there was none."""
        with self._lock:
            return self._entries.pop(key, None)

    def items(self) -> list[tuple[K, V]]:
        """Returns all present entries, oldest first."""
        with self._lock:
            return list(self._entries.items())

    def values(self) -> list[V]:
        """Returns the values of all present entries, oldest first."""
        with self._lock:
            return list(self._entries.values())


class SingleFlightCache(Generic[K, V]):
    """A map of loaded values that keeps the recently used ones. ``entries_max`` bounds their
    number, and ``weight_max`` the sum of what ``weigh`` returns for them."""

    def __init__(
        self, entries_max: int, *, weigh: Callable[[V], int] = lambda _: 0, weight_max: int = 0
    ) -> None:
        self._entries_max = entries_max
        self._weigh = weigh
        self._weight_max = weight_max
        self._lock = Lock()  # guards the maps; never held while something loads
        self._futures: OrderedDict[K, Future[V]] = OrderedDict()
        self._weights: dict[K, int] = {}  # of the loaded values

    def get(self, key: K, load: Callable[[], V]) -> V:
        """Returns the value of a key; ``load`` supplies a missing one. Errors of ``load`` are not
        kept."""
        with self._lock:
            future = self._futures.get(key)
            mine = future is None
            if future is None:
                future = self._futures[key] = Future()
                if len(self._futures) > self._entries_max:
                    self._drop(next(iter(self._futures)))
            else:
                self._futures.move_to_end(key)
        if mine:
            try:
                value = load()
                future.set_result(value)
                self._keep(key, future, self._weigh(value))
            except BaseException as error:
                self.forget(key)
                future.set_exception(error)
                raise
        return future.result()

    def forget(self, key: K) -> None:
        with self._lock:
            self._drop(key)

    def _keep(self, key: K, future: Future[V], weight: int) -> None:
        with self._lock:
            if self._futures.get(key) is not future:
                return  # dropped or removed meanwhile
            self._weights[key] = weight
            while sum(self._weights.values()) > self._weight_max and len(self._weights) > 1:
                self._drop(next(iter(self._futures)))

    def _drop(self, key: K) -> None:
        self._futures.pop(key, None)
        self._weights.pop(key, None)
