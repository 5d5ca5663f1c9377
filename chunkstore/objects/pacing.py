"""The pace of requests to a store that throttles them, shared by all callers.

Source of the window, which a refusal halves and each answer enlarges by one: TCP's congestion
control (RFC 5681). Pauses between attempts double, with jitter, as in retrying.py.
"""

from __future__ import annotations

import random as random_module
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lodefs.chunkstore.errors import Held, LodefsError, Unavailable

PAUSE_S_FIRST, PAUSE_S_MAX = 0.25, 8.0  # readers wait for 30 s, which is enough for some attempts
RETRY_AFTER_S_MAX = 60.0  # limit for what a server may ask for
WINDOW_MAX = 1024  # concurrent requests; other limits are lower
LOOK_AGAIN_S = 0.1  # poll interval while an answer is expected
FORGOTTEN_S = 60.0  # after this time without a failure, the next one begins a new outage


class Pace:
    """Decides from the last answers of one store when to ask it next. For any thread.

    After one refusal (429, 503, SlowDown), half as many requests are made at once. After two in a
    row, it makes one at a time, and pauses before each; the pauses double. The first answer ends
    the pauses.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._clock = clock
        self._random = random
        self._lock = threading.Lock()  # guards the fields below
        self._window = WINDOW_MAX
        self._under_way = 0
        self._refused = 0  # in a row
        self._pause_s = 0.0  # 0: no pauses
        self._next_s = 0.0  # monotonic time of the next request
        self._round = 0  # of pauses: refusals of requests from before the last pause do not count
        self._failed_first_s: float | None = None  # first failure since the last answer
        self._failed_last_s = 0.0

    @property
    def is_free(self) -> bool:
        """Whether a request would be allowed now."""
        with self._lock:
            return self._wait_s() <= 0

    @contextmanager
    def request(self, url: str) -> Iterator[None]:
        """Runs one request to the store at ``url``. Raises: Held, at once, if none is allowed now.
        The exception of the block tells how the request ended."""
        asked_in = self._begin(url)
        try:
            yield
        except Unavailable as error:
            self._end(error, asked_in)
            raise
        except LodefsError:
            self._end(None, asked_in)
            raise
        except BaseException:
            with self._lock:
                self._under_way -= 1
            raise
        self._end(None, asked_in)

    def _wait_s(self) -> float:
        """Returns how long to wait before the next request."""
        now = self._clock()
        if self._pause_s and now < self._next_s:
            wait_s = self._next_s - now
            return min(wait_s, LOOK_AGAIN_S) if self._under_way else wait_s
        return LOOK_AGAIN_S if self._under_way >= self._window else 0.0

    def _begin(self, url: str) -> int:
        with self._lock:
            wait_s = self._wait_s()
            if wait_s <= 0:
                self._under_way += 1
                if self._pause_s:
                    self._next_s = self._clock() + self._pause_s
                return self._round
            held = Held(
                f"{url} wants fewer requests (429, 503 or SlowDown): lodefs slows down",
                retry_after_s=wait_s,
            )
            held.is_throttled = True
            held.lasting_s = self._lasting_s()
        raise held

    def _end(self, error: Unavailable | None, asked_in: int) -> None:
        with self._lock:
            self._under_way -= 1
            if error is None:
                self._refused, self._pause_s, self._failed_first_s = 0, 0.0, None
                self._window = min(self._window + 1, WINDOW_MAX)
                return
            now = self._clock()
            if self._failed_first_s is None or now - self._failed_last_s > FORGOTTEN_S:
                self._failed_first_s = now
            self._failed_last_s = now
            error.lasting_s = self._lasting_s()
            if error.is_throttled:
                self._slow_down(min(error.retry_after_s or 0.0, RETRY_AFTER_S_MAX), asked_in)

    def _slow_down(self, wanted_s: float, asked_in: int) -> None:
        self._refused += 1
        if self._refused == 1:
            self._window = max((self._under_way + 1) // 2, 1)
            if not wanted_s:
                return
        is_new = not self._pause_s or asked_in == self._round
        if is_new:
            self._window = 1
            self._pause_s = min(max(2 * self._pause_s, PAUSE_S_FIRST), PAUSE_S_MAX)
            self._round += 1
            wanted_s = max(wanted_s, self._pause_s * (0.75 + 0.25 * self._random()))
            self._next_s = self._clock()
        self._next_s = max(self._next_s, self._clock() + wanted_s)

    def _lasting_s(self) -> float:
        """Returns for how long every request has failed."""
        return 0.0 if self._failed_first_s is None else self._clock() - self._failed_first_s
