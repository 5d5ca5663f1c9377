"""Retries around any object store: how often, and after which pause.

The only place that repeats requests to a store by itself: boto3 is told not to. Who repeats whole
reads (mounts, warm jobs) comes back here, and waits with all others."""

from __future__ import annotations

import random as random_module
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lodefs.chunkstore.errors import AlreadyExists, Held, Unavailable
from lodefs.chunkstore.objects.delegating import DelegatingStore, StoreCall
from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore
from lodefs.chunkstore.objects.limiting import NoTurn
from lodefs.chunkstore.types import Buffer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """How often, and for how long, one call may be tried."""

    attempts_max: int = 5
    time_s_max: float = 180.0  # from the first attempt to the beginning of the last
    pause_s_first: float = 0.1
    pause_s_max: float = 10.0
    first_time_s_max: float | None = None  # as time_s_max, if nothing has ever answered
    throttled_s_max: float = 180.0  # as time_s_max, for a store that puts off: however often


class Retrying(DelegatingStore):
    """Repeats calls that raise Unavailable, with exponential backoff and full jitter.

    Source of the backoff: AWS Architecture Blog, "Exponential Backoff And Jitter" (2015).
    """

    def __init__(
        self,
        inner: ObjectStore,
        budget: RetryBudget | None = None,
        *,
        random: Callable[[], float] = random_module.random,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        on_retry: Callable[[Unavailable], None] | None = None,
    ) -> None:
        """``on_retry`` is told of each error after which a call is repeated, and of each time that
        the store puts one off. For any thread."""
        super().__init__(inner)
        self._on_retry = on_retry
        self._budget = budget or RetryBudget()
        self._random = random
        self._sleep = sleep
        self._clock = clock

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        attempts = 0

        def attempt() -> str:
            nonlocal attempts
            attempts += 1
            try:
                return self.inner.put(key, data, if_absent=if_absent)
            except AlreadyExists:
                if attempts == 1:
                    raise
                # an earlier attempt whose answer was lost may have been the one that wrote it
                part = self.inner.get(key, size=sum(memoryview(one).nbytes for one in data))
                if len(part.data) != part.object_size_bytes or not _is_joined(part.data, data):
                    raise
                return part.etag

        return self.repeat(attempt)

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        attempts, begun_after, left = self._attempts(), after, limit
        while True:
            try:
                for info in self.inner.list(prefix, after=after, limit=left):
                    after, left = info.key, None if left is None else left - 1
                    yield info
                return
            except Unavailable as error:
                if after != begun_after:  # it has come forward since
                    attempts, begun_after = self._attempts(), after
                attempts.pause_or_raise(error)

    def _call(self, call: StoreCall, ask: Callable[[], T]) -> T:  # noqa: ARG002 - all are alike
        return self.repeat(ask)

    def _attempts(self) -> _Attempts:
        return _Attempts(self._budget, self._random, self._sleep, self._clock, self._on_retry)

    def repeat(self, call: Callable[[], T]) -> T:
        """Any call that may be repeated."""
        attempts = self._attempts()
        while True:
            try:
                return call()
            except Unavailable as error:
                attempts.pause_or_raise(error)


class _Attempts:
    """The rest of one call's budget."""

    def __init__(
        self,
        budget: RetryBudget,
        random: Callable[[], float],
        sleep: Callable[[float], None],
        clock: Callable[[], float],
        on_retry: Callable[[Unavailable], None] | None,
    ) -> None:
        self._on_retry = on_retry
        self._budget = budget
        self._random = random
        self._sleep = sleep
        self._clock = clock
        self._begun_at = clock()
        self._failed = 0

    def pause_or_raise(self, error: Unavailable) -> None:
        """Waits before the next attempt, or raises ``error`` if there is none."""
        if isinstance(error, NoTurn):
            raise error
        self._failed += not error.is_throttled  # these are the pace's to count
        pause_s = error.retry_after_s or 0.0
        if not isinstance(error, Held):
            pause_s = pause_before(max(self._failed, 1), self._random(), pause_s, self._budget)
        ends_at = self._begun_at + time_for(error, self._budget)
        is_over = self._failed >= self._budget.attempts_max or self._clock() + pause_s > ends_at
        is_told = error.is_throttled or not is_over
        if self._on_retry is not None and is_told and not isinstance(error, Held):
            self._on_retry(error)
        if is_over:
            raise error
        self._sleep(pause_s)


def time_for(error: Unavailable, budget: RetryBudget) -> float:
    """Seconds from a call's first attempt within which it may be repeated after ``error``."""
    if error.is_throttled:
        return min(budget.throttled_s_max, budget.time_s_max)
    if budget.first_time_s_max is None or not error.is_unreached:
        return budget.time_s_max
    return min(budget.first_time_s_max, budget.time_s_max)


def pause_before(
    failed: int, random: float, retry_after_s: float | None, budget: RetryBudget
) -> float:
    """Seconds to wait after ``failed`` attempts; ``random`` is in 0..1. Never less than what the
    server asked for."""
    highest_s = min(budget.pause_s_max, budget.pause_s_first * 2.0 ** (failed - 1))
    return max(random * highest_s, retry_after_s or 0.0)


def _is_joined(data: Buffer, buffers: Sequence[Buffer]) -> bool:
    """Whether ``data`` is the joined ``buffers``."""
    return bytes(data) == b"".join(buffers)
