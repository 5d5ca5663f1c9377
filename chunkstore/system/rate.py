"""A limit for the bytes that are moved in a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Rate:
    """Limits many threads to ``bytes_per_s`` together; None is no limit."""

    def __init__(
        self,
        bytes_per_s: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_s = 0.0  # the clock's time when the bytes taken so far have passed
        self._clock = clock
        self._sleep = sleep

    def take(self, size_bytes: int) -> None:
        """Waits until ``size_bytes`` may be moved."""
        if not self._bytes_per_s:
            return
        with self._lock:
            begin_s = max(self._free_s, self._clock())
            self._free_s = begin_s + size_bytes / self._bytes_per_s
        self._sleep(max(0.0, begin_s - self._clock()))
