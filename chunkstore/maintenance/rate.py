"""A limit on how fast bytes are moved, for many threads together."""

from __future__ import annotations

import threading
import time


class Rate:
    """Lets ``bytes_per_s`` through; all, if that is None."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_s = 0.0  # when what was taken so far has passed, by the monotonic clock

    def take(self, size_bytes: int) -> None:
        """Waits until so many bytes may be moved."""
        if not self._bytes_per_s:
            return
        with self._lock:
            begin_s = max(self._free_s, time.monotonic())
            self._free_s = begin_s + size_bytes / self._bytes_per_s
        time.sleep(max(0.0, begin_s - time.monotonic()))
