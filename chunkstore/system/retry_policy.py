"""The rules for retrying a failed attempt: when, and for how long. Pure: callers supply time and
random numbers.

Source of the pauses: AWS Architecture Blog, "Exponential Backoff And Jitter" (2015).
"""

from __future__ import annotations

from dataclasses import dataclass

from lodefs.chunkstore.errors import Held, Unavailable

_DOUBLINGS_MAX = 60  # more would overflow floating-point numbers


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The limits of retrying: the number of attempts, their total time, and the pauses between
    them. Only errors of the class Unavailable are retried."""

    attempts_max: int = 5
    time_s_max: float = 180.0  # from the first attempt until the last one begins
    pause_s_first: float = 0.1  # the longest pause after the first attempt; it doubles
    pause_s_max: float = 10.0
    # A pause is between these fractions of the longest one
    jitter: tuple[float, float] = (0.0, 1.0)
    first_time_s_max: float | None = None  # like time_s_max, if nothing has ever answered
    # Like time_s_max, if the other side throttles; without a limit of attempts
    throttled_s_max: float = 180.0

    def pause_s(
        self, failed: int, random: float = 1.0, retry_after_s: float | None = None
    ) -> float:
        """Returns the seconds to wait after ``failed`` attempts; ``random`` is in 0..1. It is never
        less than what the other side asked for."""
        least, most = self.jitter
        longest_s = min(
            self.pause_s_max, self.pause_s_first * 2.0 ** min(failed - 1, _DOUBLINGS_MAX)
        )
        return max((least + (most - least) * random) * longest_s, retry_after_s or 0.0)

    def pause_after(
        self, error: Unavailable, failed: int, elapsed_s: float, random: float
    ) -> float | None:
        """Returns the seconds to wait after ``error``, the last of ``failed`` attempts,
        ``elapsed_s`` after the first one began; None if no attempt is left."""
        pause_s = error.retry_after_s or 0.0
        if not isinstance(error, Held):  # Held says exactly when the next request can be made
            pause_s = self.pause_s(max(failed, 1), random, pause_s)
        is_over = failed >= self.attempts_max or elapsed_s + pause_s > self.time_s(error)
        return None if is_over else pause_s

    def time_s(self, error: Unavailable) -> float:
        """Returns the seconds from the first attempt within which another may begin after
        ``error``."""
        if error.is_throttled:
            return min(self.throttled_s_max, self.time_s_max)
        if self.first_time_s_max is None or not error.is_unreached:
            return self.time_s_max
        return min(self.first_time_s_max, self.time_s_max)


def steady(pause_s_first: float, pause_s_max: float) -> RetryPolicy:
    """Returns pauses without jitter, for loops whose callers decide when to give up."""
    return RetryPolicy(pause_s_first=pause_s_first, pause_s_max=pause_s_max, jitter=(1.0, 1.0))
