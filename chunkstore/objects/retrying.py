"""Retries around any object store.

Only this module repeats requests to a store by itself: boto3 is told not to. Callers that repeat
whole reads (mounts, warm jobs) come back here, and wait like all others."""

from __future__ import annotations

import random as random_module
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from lodefs.chunkstore.errors import AlreadyExists, Held, Unavailable
from lodefs.chunkstore.objects.delegating import DelegatingStore, StoreCall
from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore
from lodefs.chunkstore.objects.limiting import NoTurn
from lodefs.chunkstore.system.retry_policy import RetryPolicy
from lodefs.chunkstore.types import Buffer

T = TypeVar("T")


class Retrying(DelegatingStore):
    """Repeats calls that raise Unavailable, by a policy."""

    def __init__(
        self,
        inner: ObjectStore,
        policy: RetryPolicy | None = None,
        *,
        random: Callable[[], float] = random_module.random,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        on_retry: Callable[[Unavailable], None] | None = None,
    ) -> None:
        """``on_retry`` is called with each error after which a call is repeated, and each time that
        the store throttles one. For any thread."""
        super().__init__(inner)
        self._on_retry = on_retry
        self._policy = policy or RetryPolicy()
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
                # an earlier attempt, whose answer was lost, may have written it
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
                if after != begun_after:  # it has made progress since
                    attempts, begun_after = self._attempts(), after
                attempts.pause_or_raise(error)

    def _call(self, call: StoreCall, ask: Callable[[], T]) -> T:  # noqa: ARG002 - all are alike
        return self.repeat(ask)

    def _attempts(self) -> _Attempts:
        return _Attempts(self._policy, self._random, self._sleep, self._clock, self._on_retry)

    def repeat(self, call: Callable[[], T]) -> T:
        """Runs any call that may be repeated."""
        return _repeat(call, self._attempts())


def patiently(call: Callable[[], T], policy: RetryPolicy | None = None) -> T:
    """Runs a call to something that is no store, with the same patience."""
    attempts = _Attempts(
        policy or RetryPolicy(), random_module.random, time.sleep, time.monotonic, None
    )
    return _repeat(call, attempts)


def _repeat(call: Callable[[], T], attempts: _Attempts) -> T:
    while True:
        try:
            return call()
        except Unavailable as error:
            attempts.pause_or_raise(error)


class _Attempts:
    """The remainder of one call's budget."""

    def __init__(
        self,
        policy: RetryPolicy,
        random: Callable[[], float],
        sleep: Callable[[float], None],
        clock: Callable[[], float],
        on_retry: Callable[[Unavailable], None] | None,
    ) -> None:
        self._on_retry = on_retry
        self._policy = policy
        self._random = random
        self._sleep = sleep
        self._clock = clock
        self._begun_at = clock()
        self._failed = 0

    def pause_or_raise(self, error: Unavailable) -> None:
        """Waits before the next attempt, or raises ``error`` if there is none."""
        if isinstance(error, NoTurn):
            raise error
        self._failed += not error.is_throttled  # the pace counts throttled calls
        elapsed_s = self._clock() - self._begun_at
        pause_s = self._policy.pause_after(error, self._failed, elapsed_s, self._random())
        is_told = error.is_throttled or pause_s is not None
        if self._on_retry is not None and is_told and not isinstance(error, Held):
            self._on_retry(error)
        if pause_s is None:
            raise error
        self._sleep(pause_s)


def _is_joined(data: Buffer, buffers: Sequence[Buffer]) -> bool:
    """Whether ``data`` equals the joined ``buffers``."""
    return bytes(data) == b"".join(buffers)
