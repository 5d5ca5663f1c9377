"""An object store over another one, which it only reads: puts and deletes stay in memory.

With it a dry run can carry out the small steps of a run and examine their results.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice

from lodefs.chunkstore.errors import AlreadyExists, Changed, NotFound
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.objects.delegating import DelegatingStore
from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore, Part, check_key, exists
from lodefs.chunkstore.types import Buffer


class OverlayObjects(DelegatingStore):
    """An ObjectStore over ``below``."""

    def __init__(self, below: ObjectStore) -> None:
        super().__init__(below)
        self._above: dict[str, bytes | None] = {}  # None: deleted
        self._lock = threading.Lock()  # guards the check of a put, and the dictionary during lists

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        if key not in self._above:
            return self.inner.get(key, offset=offset, size=size, if_match=if_match)
        info, data = self.head(key), self._above[key] or b""
        if if_match is not None and if_match != info.etag:
            raise Changed(f"{key} has the ETag {info.etag}, not {if_match}")
        first = max(0, len(data) + offset) if offset < 0 else offset
        return Part(data[first : first + size], len(data), info.etag)

    def head(self, key: str) -> ObjectInfo:
        if key not in self._above:
            return self.inner.head(key)
        data = self._above[key]
        if data is None:
            raise NotFound(f"{key} is not in {self.url}")
        return ObjectInfo(key, len(data), _etag(data))

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        check_key(key)
        joined = b"".join(data)
        with self._lock:
            if if_absent and exists(self, key):
                raise AlreadyExists(f"{key} exists already")
            self._above[key] = joined
        return _etag(joined)

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        with self._lock:
            above = dict(self._above)
        own = (
            ObjectInfo(key, len(data), _etag(data))
            for key, data in sorted(above.items())
            if data is not None and key.startswith(prefix) and key > after
        )
        below = (one for one in self.inner.list(prefix, after=after) if one.key not in above)
        return islice(merge(below, own, key=lambda one: one.key), limit)

    def delete(self, key: str) -> None:
        with self._lock:
            self._above[check_key(key)] = None


def _etag(data: bytes) -> str:
    return f'"{digest_of(data).hex()[:32]}"'
