"""A circuit breaker: a peer that does not answer costs one time limit, and not one for each call.
One that answers a call and then fails again, as a slow store may, is tried less and less often."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

THROTTLED_S_MAX = 30.0  # throttling all calls for longer counts as not answering


class CircuitBreaker:
    """Whether a peer answers, by its last calls. For any thread."""

    def __init__(
        self,
        pause_s_first: float,
        pause_s_max: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``pause_s_first`` and ``pause_s_max`` bound the time from a failure to the next try; each
        pause is twice the one before."""
        self._clock = clock
        self._pause_s_first, self._pause_s_max = pause_s_first, pause_s_max
        self._lock = threading.Lock()  # guards the fields below
        self._pause_s = pause_s_first
        self._asked_next_s: float | None = None  # None: the peer answers
        self._back_since_s: float | None = None  # first answer after the last failure
        self._throttled_since_s: float | None = None  # None: the last call was not throttled

    @property
    def is_closed(self) -> bool:
        """Whether to make calls."""
        return self._asked_next_s is None

    @property
    def is_overdue(self) -> bool:
        """Whether the next try is so long overdue that the peer may well answer again."""
        due_s = self._asked_next_s
        return due_s is not None and self._clock() - due_s >= self._pause_s_max

    def failed(self) -> bool:
        """Records that the peer does not answer. Returns whether that is new."""
        with self._lock:
            is_news = self.is_closed
            if not is_news:
                return False
            now, back_s = self._clock(), self._back_since_s
            is_again = back_s is not None and now - back_s < self._pause_s_max
            self._pause_s = (
                min(2 * self._pause_s, self._pause_s_max) if is_again else self._pause_s_first
            )
            self._asked_next_s = now + self._pause_s
            return True

    def throttled(self) -> bool:
        """Records that a call was throttled. Returns whether this has just lasted too long."""
        with self._lock:
            if self._throttled_since_s is None:
                self._throttled_since_s = self._clock()
            is_long = self._clock() - self._throttled_since_s >= THROTTLED_S_MAX
        return is_long and self.failed()

    def answered(self) -> bool:
        """Records an answer. Returns whether the peer had failed before."""
        with self._lock:
            is_news = not self.is_closed
            self._asked_next_s = self._throttled_since_s = None
            if is_news:
                self._back_since_s = self._clock()
            return is_news

    def is_due(self) -> bool:
        """Whether to try a call now. It returns True to one caller, and then not before the next
        pause is over."""
        with self._lock:
            if self._asked_next_s is None or self._clock() < self._asked_next_s:
                return False
            self._pause_s = min(2 * self._pause_s, self._pause_s_max)
            self._asked_next_s = self._clock() + self._pause_s
            return True
