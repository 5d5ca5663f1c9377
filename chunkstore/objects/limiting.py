"""A limit of calls at once around any object store."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore, Part
from lodefs.chunkstore.types import Buffer

T = TypeVar("T")


class Limited:
    """At most ``calls_max`` calls at once; others wait for ``wait_s_max``, then Unavailable."""

    def __init__(self, inner: ObjectStore, calls_max: int, wait_s_max: float = 120.0) -> None:
        self._inner = inner
        self._calls_max = calls_max
        self._wait_s_max = wait_s_max
        self._free = threading.BoundedSemaphore(calls_max)

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        with self.turn():
            return self._inner.get(key, offset=offset, size=size, if_match=if_match)

    def head(self, key: str) -> ObjectInfo:
        with self.turn():
            return self._inner.head(key)

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        with self.turn():
            return self._inner.put(key, data, if_absent=if_absent)

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        with self.turn():
            found = iter(self._inner.list(prefix, after=after, limit=limit))
        while True:
            with self.turn():  # not while the caller works on what it got
                info = next(found, None)
            if info is None:
                return
            yield info

    def delete(self, key: str) -> None:
        with self.turn():
            self._inner.delete(key)

    def close(self) -> None:
        self._inner.close()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One of the calls at once. Raises: Unavailable."""
        if not self._free.acquire(timeout=self._wait_s_max):
            raise Unavailable(
                f"{self.url}: {self._calls_max} calls were under way for {self._wait_s_max:.0f} s"
            )
        try:
            yield
        finally:
            self._free.release()
