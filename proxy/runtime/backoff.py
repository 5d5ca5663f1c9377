"""Retries calls that fail because a peer or store does not answer: ever more slowly, not
forever."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.system.retry_policy import RetryPolicy

T = TypeVar("T")

PATIENCE_S = 300.0  # without any progress at all
POLICY = RetryPolicy(
    attempts_max=20,  # for one call, while others succeed
    time_s_max=PATIENCE_S,
    throttled_s_max=PATIENCE_S,
    pause_s_first=0.25,
    pause_s_max=15.0,
    jitter=(0.5, 1.5),
)


class Backoff:
    """The retries of one piece of work with many calls. They continue while any call succeeds."""

    def __init__(
        self,
        *,
        policy: RetryPolicy = POLICY,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._policy = policy
        self._clock_s = clock_s
        self._sleep = sleep
        self._jitter = jitter
        self._progress_s = clock_s()

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        """Returns the call's result. Raises: its last Unavailable; any other error at once."""
        failed = 0
        while True:
            try:
                result = await call()
            except Unavailable as error:
                failed += 1
                idle_s = self._clock_s() - self._progress_s
                pause_s = self._policy.pause_after(error, failed, idle_s, self._jitter())
                if pause_s is None:
                    raise
                await self._sleep(pause_s)
            else:
                self._progress_s = self._clock_s()
                return result
