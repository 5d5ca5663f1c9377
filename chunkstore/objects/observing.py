"""Observes the calls of any object store: their number, bytes and times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.objects.delegating import DelegatingStore, StoreCall
from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore
from lodefs.chunkstore.objects.ranges.order import RangeOrder, range_order

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Observation:
    """One call that ended. ``error`` is None if it succeeded."""

    operation: str  # get, head, put, list, delete
    size_bytes: int  # received or sent; 0 if it failed
    seconds: float
    error: type[LodefsError] | None


class Observed(DelegatingStore):
    """Passes every call to a callback, which must be fast and must not raise."""

    def __init__(
        self,
        inner: ObjectStore,
        observe: Callable[[Observation], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(inner)
        self._observe = observe
        self._clock = clock

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        with self._watched("list") as call:
            found = iter(self.inner.list(prefix, after=after, limit=limit))
            while (info := next(found, None)) is not None:
                yielded_at = self._clock()
                yield info
                call.begun_at += self._clock() - yielded_at  # leave out the caller's time

    @contextmanager
    def range_order(
        self, key: str, offset: int, size_bytes: int, if_match: str
    ) -> Iterator[RangeOrder | None]:
        """Implements OrderSource."""
        with range_order(self.inner, key, offset, size_bytes, if_match) as order:
            yield None if order is None else order._replace(done=self._ordered)

    def _ordered(self, size_bytes: int, seconds: float, error: type[LodefsError] | None) -> None:
        self._observe(Observation("get", size_bytes, seconds, error))

    def _call(self, call: StoreCall, ask: Callable[[], T]) -> T:
        with self._watched(call.operation) as seen:
            answer = ask()
            seen.size_bytes = call.size_bytes(answer)
            return answer

    @contextmanager
    def _watched(self, operation: str) -> Iterator[_Call]:
        call = _Call(self._clock())
        failed: type[LodefsError] | None = None
        try:
            yield call
        except LodefsError as error:
            failed = type(error)
            raise
        finally:
            seconds = self._clock() - call.begun_at
            self._observe(Observation(operation, call.size_bytes, seconds, failed))


@dataclass(slots=True)
class _Call:
    begun_at: float
    size_bytes: int = 0
