"""A limit on the bytes in one direction: a token bucket that returns how long to wait."""

from __future__ import annotations

import math
import threading

BURST_S = 0.1  # seconds of the rate that may go at once


class RateLimiter:
    """At most ``bytes_per_s_max`` bytes a second, after a burst; None is no limit. For any thread.

    A caller reserves bytes, and waits, before it moves them. Reservations are granted in order, so
    that waits add up and the rate holds for any number of callers.
    """

    def __init__(self, bytes_per_s_max: float | None = None, *, burst_s: float = BURST_S) -> None:
        self._rate = math.inf if bytes_per_s_max is None else bytes_per_s_max
        self._burst_s = burst_s
        self._free_s = -math.inf  # when all reservations so far will have passed
        self._lock = threading.Lock()

    def reserve(self, size_bytes: int, now_s: float) -> float:
        """Reserves the bytes. Returns the seconds to wait before they move."""
        with self._lock:
            begin_s = max(self._free_s, now_s - self._burst_s)
            self._free_s = begin_s + size_bytes / self._rate
            return max(0.0, self._free_s - now_s)

    def backlog_s(self, now_s: float) -> float:
        """Returns the seconds that a reservation of 0 bytes would wait."""
        with self._lock:
            return max(0.0, self._free_s - now_s)
