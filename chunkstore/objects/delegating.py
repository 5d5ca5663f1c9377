"""What wrappers of object stores have in common: an object store that asks another one.

A wrapper that treats all calls alike overrides ``_call``; one that changes a single method
overrides that. ``list`` is not one call: it overrides it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeVar

from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore, Part
from lodefs.chunkstore.objects.range_order import RangeOrder, range_order
from lodefs.chunkstore.types import Buffer

T = TypeVar("T")


class StoreCall(NamedTuple):
    """What is asked: ``operation`` is the method's name."""

    operation: str
    key: str
    data: Sequence[Buffer] = ()  # that is sent

    def size_bytes(self, answer: object) -> int:
        """Bytes of objects that were sent and received, when it has this answer."""
        if isinstance(answer, Part):
            return len(answer.data)
        return sum(memoryview(buffer).nbytes for buffer in self.data)


class DelegatingStore:
    """An ObjectStore that does what ``inner`` does."""

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
        """As of OrderSource."""
        return range_order(self.inner, key, offset, size_bytes, if_match)

    def _call(self, call: StoreCall, ask: Callable[[], T]) -> T:  # noqa: ARG002 - of wrappers
        """The answer of ``inner``, which ``ask`` gives. Wrappers override it."""
        return ask()
