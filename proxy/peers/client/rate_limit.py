"""A limit on the bytes of one direction: a token bucket that answers how long to wait."""

from __future__ import annotations

import math
import threading

BURST_S = 0.1  # this much of the rate may go at once


class RateLimiter:
    """At most ``bytes_per_s_max`` bytes a second, after a burst; None is no limit. Any thread.

    A caller reserves bytes, and waits, before it moves them. Reservations are granted in the
    order in which they come, so that waits add up and the rate holds however many ask.
    """

    def __init__(self, bytes_per_s_max: float | None = None, *, burst_s: float = BURST_S) -> None:
        self._rate = math.inf if bytes_per_s_max is None else bytes_per_s_max
        self._burst_s = burst_s
        self._free_s = -math.inf  # when all that was reserved so far has gone
        self._lock = threading.Lock()

    def reserve(self, size_bytes: int, now_s: float) -> float:
        """Takes the bytes; the seconds to wait before they move."""
        with self._lock:
            begin_s = max(self._free_s, now_s - self._burst_s)
            self._free_s = begin_s + size_bytes / self._rate
            return max(0.0, self._free_s - now_s)

    def backlog_s(self, now_s: float) -> float:
        """The seconds that a reservation of nothing would wait."""
        with self._lock:
            return max(0.0, self._free_s - now_s)
