"""Limits concurrent writes to the cache, so that a slow disk delays neither the fetching threads
nor the readers, who get their bytes from memory meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lodefs.proxy.runtime.processor_wait import ProcessorWait, TimedWrite

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
        begin_wait: Callable[[], ProcessorWait] = ProcessorWait.begin,
    ) -> None:
        self._size_bytes_max = size_bytes_max
        self._writes_max = writes_max
        self._slow_s = slow_s
        self._clock_s = clock_s
        self._changed = threading.Condition()  # guards the fields below
        self._begin_wait = begin_wait
        self._begun: dict[object, TimedWrite] = {}  # the writes under way, oldest first
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
        try:
            yield may_write
        finally:
            if may_write:
                with self._changed:
                    taken_s = self._begun.pop(key).disk_s(self._clock_s())
                    self._was_slow = taken_s > self._slow_s
                    self.unwritten_bytes -= size_bytes
                    self._changed.notify_all()

    def _begin(self, key: object, size_bytes: int) -> bool:
        wait = self._begin_wait()
        with self._changed:
            while not self._has_room(size_bytes):
                left_s = self._slow_s - self._oldest_s()
                if left_s <= 0:
                    return False
                self._changed.wait(left_s)
            self._begun[key] = TimedWrite(self._clock_s(), wait)
            self.unwritten_bytes += size_bytes
            return True

    def _has_room(self, size_bytes: int) -> bool:
        if not self._begun:
            return True
        fits = self.unwritten_bytes + size_bytes <= self._size_bytes_max
        return fits and len(self._begun) < self._writes_max

    def _oldest_s(self) -> float:
        """Returns for how long the disk has been busy with the oldest write."""
        oldest = next(iter(self._begun.copy().values()), None)
        return 0.0 if oldest is None else oldest.disk_s(self._clock_s())
