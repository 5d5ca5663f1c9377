"""Repeating what fails because somebody does not answer: more and more slowly, and not forever."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lodefs.chunkstore.errors import Unavailable

T = TypeVar("T")

PATIENCE_S = 300.0  # without any progress at all
TRIES_MAX = 20  # of one call, while others get on
PAUSE_S, PAUSE_S_MAX = 0.25, 15.0


class Backoff:
    """Of one piece of work with many calls. It gets on as long as some of them succeed."""

    def __init__(
        self,
        *,
        patience_s: float = PATIENCE_S,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._patience_s = patience_s
        self._clock_s = clock_s
        self._sleep = sleep
        self._jitter = jitter
        self._progress_s = clock_s()

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        """What the call gives in the end. Its last Unavailable; any other error at once."""
        pause_s = PAUSE_S
        for left in range(TRIES_MAX, 0, -1):
            try:
                result = await call()
            except Unavailable as error:
                is_late = self._clock_s() - self._progress_s > self._patience_s
                if left == 1 or is_late:
                    raise
                await self._sleep(max(error.retry_after_s or 0.0, pause_s * (0.5 + self._jitter())))
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
            else:
                self._progress_s = self._clock_s()
                return result
        raise AssertionError("not reached")
