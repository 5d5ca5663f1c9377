"""Counts and times of the calls of any object store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore, Part
from lodefs.chunkstore.types import Buffer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Observation:
    """One call that ended. ``error`` is None if it succeeded."""

    operation: str  # get, head, put, list, delete
    size_bytes: int  # received or sent; 0 if it failed
    seconds: float
    error: type[LodefsError] | None


class Observed:
    """Tells a callback of every call; the callback must be fast and must not raise."""

    def __init__(
        self,
        inner: ObjectStore,
        observe: Callable[[Observation], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._observe = observe
        self._clock = clock

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        with self._call("get") as call:
            part = self._inner.get(key, offset=offset, size=size, if_match=if_match)
            call.size_bytes = len(part.data)
            return part

    def head(self, key: str) -> ObjectInfo:
        with self._call("head"):
            return self._inner.head(key)

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        with self._call("put") as call:
            etag = self._inner.put(key, data, if_absent=if_absent)
            call.size_bytes = sum(memoryview(buffer).nbytes for buffer in data)
            return etag

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        with self._call("list") as call:
            found = iter(self._inner.list(prefix, after=after, limit=limit))
            while (info := next(found, None)) is not None:
                yielded_at = self._clock()
                yield info
                call.begun_at += self._clock() - yielded_at  # the caller's time is not the store's

    def delete(self, key: str) -> None:
        with self._call("delete"):
            self._inner.delete(key)

    def close(self) -> None:
        self._inner.close()

    @contextmanager
    def _call(self, operation: str) -> Iterator[_Call]:
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
