"""Limits the concurrent calls to any object store, by a fixed number and by the store's answers.

A call that fails frees its slot before it is repeated: retries wrap this wrapper.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.objects.delegating import DelegatingStore, StoreCall
from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore
from lodefs.chunkstore.objects.pacing import Pace
from lodefs.chunkstore.objects.ranges.order import RangeOrder, range_order

T = TypeVar("T")


class NoTurn(Unavailable):
    """Other calls to the store took all the time that this call was willing to wait. A repetition
    would wait as long again."""


class Limited(DelegatingStore):
    """At most ``calls_max`` calls at once; others wait for ``wait_s_max`` and then raise NoTurn. If
    the store throttles, ``pace`` allows fewer, and others raise Held at once."""

    def __init__(
        self,
        inner: ObjectStore,
        calls_max: int,
        wait_s_max: float = 120.0,
        pace: Pace | None = None,
    ) -> None:
        super().__init__(inner)
        self.pace = pace or Pace()
        self._calls_max = calls_max
        self._wait_s_max = wait_s_max
        self._free = threading.BoundedSemaphore(calls_max)

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        found = iter(self.inner.list(prefix, after=after, limit=limit))
        info = self.limited(lambda: next(found, None))
        while info is not None:
            yield info
            with self.turn():  # the turn ends before the caller uses the answer
                info = next(found, None)

    @contextmanager
    def range_order(
        self, key: str, offset: int, size_bytes: int, if_match: str
    ) -> Iterator[RangeOrder | None]:
        """Implements OrderSource; yields None also while the store throttles. Raises: NoTurn."""
        if not self.pace.is_free:
            yield None
            return
        with (
            self.turn(),
            range_order(self.inner, key, offset, size_bytes, if_match) as order,
        ):
            yield order

    def _call(self, call: StoreCall, ask: Callable[[], T]) -> T:  # noqa: ARG002 - all are alike
        return self.limited(ask)

    def limited(self, ask: Callable[[], T]) -> T:
        """Returns the answer to one request. Raises: NoTurn, Held; what ``ask`` raises."""
        with self.turn(), self.pace.request(self.url):
            return ask()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Takes one of the concurrent calls for a block. Raises: NoTurn."""
        if not self._free.acquire(timeout=self._wait_s_max):
            raise NoTurn(
                f"{self.url}: {self._calls_max} calls were under way for {self._wait_s_max:.0f} s"
            )
        try:
            yield
        finally:
            self._free.release()
