"""A circuit breaker: what does not answer costs one time limit, not one for each call; what answers
one call and then fails again, as a slow store may, is tried less and less often."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

THROTTLED_S_MAX = 30.0  # what puts off all calls for longer does not answer


class CircuitBreaker:
    """Whether something answers, as its last calls showed. For any thread."""

    def __init__(
        self,
        pause_s_first: float,
        pause_s_max: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The pauses, of which each is twice the one before: until a call is tried again after a
        failure."""
        self._clock = clock
        self._pause_s_first, self._pause_s_max = pause_s_first, pause_s_max
        self._lock = threading.Lock()  # guards what follows
        self._pause_s = pause_s_first
        self._asked_next_s: float | None = None  # None: it answers
        self._back_since_s: float | None = None  # after its last failure
        self._throttled_since_s: float | None = None  # None: its last answer was one

    @property
    def is_closed(self) -> bool:
        """Whether it is to be asked."""
        return self._asked_next_s is None

    @property
    def is_overdue(self) -> bool:
        """Whether nobody has tried it for so long that it may well answer again."""
        due_s = self._asked_next_s
        return due_s is not None and self._clock() - due_s >= self._pause_s_max

    def failed(self) -> bool:
        """A call found that it does not answer; whether this is news."""
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
        """A call was put off; whether it is news that this goes on for too long."""
        with self._lock:
            if self._throttled_since_s is None:
                self._throttled_since_s = self._clock()
            is_long = self._clock() - self._throttled_since_s >= THROTTLED_S_MAX
        return is_long and self.failed()

    def answered(self) -> bool:
        """It answers; whether this is news."""
        with self._lock:
            is_news = not self.is_closed
            self._asked_next_s = self._throttled_since_s = None
            if is_news:
                self._back_since_s = self._clock()
            return is_news

    def is_due(self) -> bool:
        """Whether to try it now. Says so to one caller, and then not before the next pause is
        over."""
        with self._lock:
            if self._asked_next_s is None or self._clock() < self._asked_next_s:
                return False
            self._pause_s = min(2 * self._pause_s, self._pause_s_max)
            self._asked_next_s = self._clock() + self._pause_s
            return True
