"""The base of the wrappers of object stores: an object store that calls another one.

A wrapper that treats all calls alike overrides ``_call``; one that changes a single method
overrides that method. ``list`` is more than one call, so such a wrapper overrides it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeVar

from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore, Part
from lodefs.chunkstore.objects.open_connections import keep_open
from lodefs.chunkstore.objects.ranges.order import RangeOrder, range_order
from lodefs.chunkstore.types import Buffer

T = TypeVar("T")


class StoreCall(NamedTuple):
    """One call of a store. ``operation`` is the method's name."""

    operation: str
    key: str
    data: Sequence[Buffer] = ()  # data to send

    def size_bytes(self, answer: object) -> int:
        """Returns the bytes of objects that were sent and received, given the answer."""
        if isinstance(answer, Part):
            return len(answer.data)
        return sum(memoryview(buffer).nbytes for buffer in self.data)


class DelegatingStore:
    """An ObjectStore that passes everything on to ``inner``."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        return self.inner.url

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        return self._call(
            StoreCall("get", key),
            lambda: self.inner.get(key, offset=offset, size=size, if_match=if_match),
        )

    def head(self, key: str) -> ObjectInfo:
        return self._call(StoreCall("head", key), lambda: self.inner.head(key))

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        return self._call(
            StoreCall("put", key, data), lambda: self.inner.put(key, data, if_absent=if_absent)
        )

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        return self.inner.list(prefix, after=after, limit=limit)

    def delete(self, key: str) -> None:
        self._call(StoreCall("delete", key), lambda: self.inner.delete(key))

    def close(self) -> None:
        self.inner.close()

    def range_order(
        self, key: str, offset: int, size_bytes: int, if_match: str
    ) -> AbstractContextManager[RangeOrder | None]:
        """Implements OrderSource."""
        return range_order(self.inner, key, offset, size_bytes, if_match)

    def keep_open(self, connections: int) -> None:
        """Implements KeepsOpen."""
        keep_open(self.inner, connections)

    def _call(self, call: StoreCall, ask: Callable[[], T]) -> T:  # noqa: ARG002 - wrappers use it
        """Returns the answer of ``inner``, by calling ``ask``. Wrappers override it."""
        return ask()
