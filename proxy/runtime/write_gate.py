"""Limits concurrent writes to the cache, so that a slow disk delays neither the fetching threads
nor the readers, who get their bytes from memory meanwhile."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

UNWRITTEN_SIZE_BYTES_MAX = 16 * 1024 * 1024  # half of the bytes that are fetched at a time
WRITES_MAX = 12  # at a time; fewer than the fetching threads
SLOW_S = 1.0  # a write that takes longer shows that the disk cannot keep up


class WriteGate:
    """Limits the bytes that wait for the cache's disk. For any thread."""

    def __init__(
        self,
        size_bytes_max: int = UNWRITTEN_SIZE_BYTES_MAX,
        *,
        writes_max: int = WRITES_MAX,
        slow_s: float = SLOW_S,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._size_bytes_max = size_bytes_max
        self._writes_max = writes_max
        self._slow_s = slow_s
        self._clock_s = clock_s
        self._changed = threading.Condition()  # guards the fields below
        self._begun_s: dict[object, float] = {}  # start times of the writes under way, oldest first
        self._was_slow = False
        self.unwritten_bytes = 0

    def is_slow(self) -> bool:
        """Whether the disk cannot keep up: the last write was slow, or one under way is. Then all
        writes must go through ``turn``."""
        return self._was_slow or self._oldest_s() > self._slow_s

    def refuses(self) -> bool:
        """Whether there is no turn for any write now."""
        return self.is_slow() and not self._has_room(1)

    def note_slow(self) -> None:
        """Notes that a write outside of this gate was slow."""
        self._was_slow = True

    @contextmanager
    def turn(self, size_bytes: int) -> Iterator[bool]:
        """Yields, for a block, whether ``size_bytes`` may be written. It waits for a turn, but not
        for a slow disk."""
        key = object()
        may_write = self._begin(key, size_bytes)
        begin_s = self._clock_s()
        try:
            yield may_write
        finally:
            if may_write:
                with self._changed:
                    del self._begun_s[key]
                    self.unwritten_bytes -= size_bytes
                    self._was_slow = self._clock_s() - begin_s > self._slow_s
                    self._changed.notify_all()

    def _begin(self, key: object, size_bytes: int) -> bool:
        with self._changed:
            while not self._has_room(size_bytes):
                left_s = self._slow_s - self._oldest_s()
                if left_s <= 0:
                    return False
                self._changed.wait(left_s)
            self._begun_s[key] = self._clock_s()
            self.unwritten_bytes += size_bytes
            return True

    def _has_room(self, size_bytes: int) -> bool:
        if not self._begun_s:
            return True
        fits = self.unwritten_bytes + size_bytes <= self._size_bytes_max
        return fits and len(self._begun_s) < self._writes_max

    def _oldest_s(self) -> float:
        """Returns for how long the oldest write has been under way."""
        begun_s = next(iter(self._begun_s.copy().values()), math.inf)
        return max(self._clock_s() - begun_s, 0.0)
