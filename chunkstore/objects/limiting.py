"""Limits of calls at once around any object store: a fixed one, and what the store bears now.

A call that fails gives its place back before it is repeated: retries go around this.
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
from lodefs.chunkstore.objects.range_order import RangeOrder, range_order

T = TypeVar("T")


class NoTurn(Unavailable):
    """Other calls to the store have taken all the time that this one waits for its turn: to repeat
    it would be to wait as long again."""


class Limited(DelegatingStore):
    """At most ``calls_max`` calls at once; others wait for ``wait_s_max``, then NoTurn. Of a store
    that puts off requests, fewer, at ``pace``; others are Held at once."""

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
            with self.turn():  # not while the caller works on what it got
                info = next(found, None)

    @contextmanager
    def range_order(
        self, key: str, offset: int, size_bytes: int, if_match: str
    ) -> Iterator[RangeOrder | None]:
        """As of OrderSource; None also while the store wants fewer requests. Raises: NoTurn."""
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
        """The answer to one request. Raises: NoTurn, Held, and what ``ask`` raises."""
        with self.turn(), self.pace.request(self.url):
            return ask()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One of the calls at once. Raises: NoTurn."""
        if not self._free.acquire(timeout=self._wait_s_max):
            raise NoTurn(
                f"{self.url}: {self._calls_max} calls were under way for {self._wait_s_max:.0f} s"
            )
        try:
            yield
        finally:
            self._free.release()
