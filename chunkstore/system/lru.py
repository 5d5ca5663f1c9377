"""A map of bounded size that forgets what was not used for longest. Safe between threads."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K")
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
        """The value, which is now the newest; None if there is none."""
        with self._lock:
            value = self._entries.get(key)
            if value is not None:
                self._entries.move_to_end(key)
            return value

    def put(self, key: K, value: V) -> None:
        """Set a value; the oldest entries beyond the limit go."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self._entries_max:
                self._entries.popitem(last=False)

    def pop(self, key: K) -> V | None:
        """Forget an entry; its value, or None if there was none."""
        with self._lock:
            return self._entries.pop(key, None)

    def items(self) -> list[tuple[K, V]]:
        """All entries as they are now, the oldest first."""
        with self._lock:
            return list(self._entries.items())
