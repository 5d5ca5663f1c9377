"""When something that failed is tried again, and for how long. Pure: callers have clock and dice.

Source of the pauses: AWS Architecture Blog, "Exponential Backoff And Jitter" (2015).
"""

from __future__ import annotations

from dataclasses import dataclass

from lodefs.chunkstore.errors import Held, Unavailable

_DOUBLINGS_MAX = 60  # beyond, floating-point numbers end


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, for how long, and after which pauses something may be tried. Only errors of the
    class Unavailable are worth another attempt."""

    attempts_max: int = 5
    time_s_max: float = 180.0  # from the first attempt to the beginning of the last
    pause_s_first: float = 0.1  # the longest after the first attempt; it doubles
    pause_s_max: float = 10.0
    jitter: tuple[float, float] = (0.0, 1.0)  # a pause is between these parts of the longest
    first_time_s_max: float | None = None  # as time_s_max, if nothing has ever answered
    throttled_s_max: float = 180.0  # as time_s_max, if the other side puts off: however often

    def pause_s(
        self, failed: int, random: float = 1.0, retry_after_s: float | None = None
    ) -> float:
        """Seconds to wait after ``failed`` attempts; ``random`` is in 0..1. Never less than what
        the other side asked for."""
        least, most = self.jitter
        longest_s = min(
            self.pause_s_max, self.pause_s_first * 2.0 ** min(failed - 1, _DOUBLINGS_MAX)
        )
        return max((least + (most - least) * random) * longest_s, retry_after_s or 0.0)

    def pause_after(
        self, error: Unavailable, failed: int, elapsed_s: float, random: float
    ) -> float | None:
        """Seconds to wait after ``error``, the last of ``failed`` attempts, ``elapsed_s`` after the
        beginning of the first; None if there is no attempt left."""
        pause_s = error.retry_after_s or 0.0
        if not isinstance(error, Held):  # which says exactly when the next request can be made
            pause_s = self.pause_s(max(failed, 1), random, pause_s)
        is_over = failed >= self.attempts_max or elapsed_s + pause_s > self.time_s(error)
        return None if is_over else pause_s

    def time_s(self, error: Unavailable) -> float:
        """Seconds from the first attempt within which another one may begin after ``error``."""
        if error.is_throttled:
            return min(self.throttled_s_max, self.time_s_max)
        if self.first_time_s_max is None or not error.is_unreached:
            return self.time_s_max
        return min(self.first_time_s_max, self.time_s_max)


def steady(pause_s_first: float, pause_s_max: float) -> RetryPolicy:
    """Pauses without jitter, for loops whose callers know when to give up."""
    return RetryPolicy(pause_s_first=pause_s_first, pause_s_max=pause_s_max, jitter=(1.0, 1.0))
