"""An object store in memory: the reference implementation of interface.py, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import islice

from lodefs.chunkstore.errors import AlreadyExists, Changed, NotFound
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.objects.interface import ObjectInfo, Part, check_key, check_prefix
from lodefs.chunkstore.types import Buffer


class MemoryObjects:
    """Objects in a dictionary. ``objects`` may be read and damaged by tests."""

    def __init__(self, url: str = "memory:") -> None:
        self.url = url
        self.objects: dict[str, bytes] = {}
        self._lock = threading.Lock()  # guards check-then-write of put

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        data = self._data(key)
        etag = etag_of(data)
        if if_match is not None and if_match != etag:
            raise Changed(f"{key} has the ETag {etag}, not {if_match}")
        first = max(0, len(data) + offset) if offset < 0 else offset
        return Part(data[first : first + size], len(data), etag)

    def head(self, key: str) -> ObjectInfo:
        data = self._data(key)
        return ObjectInfo(key, len(data), etag_of(data))

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        check_key(key)
        joined = b"".join(data)
        with self._lock:
            if if_absent and key in self.objects:
                raise AlreadyExists(f"{key} exists already")
            self.objects[key] = joined
        return etag_of(joined)

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        keys = sorted(k for k in list(self.objects) if k.startswith(prefix) and k > after)
        return islice(self._infos(keys), limit)

    def delete(self, key: str) -> None:
        self.objects.pop(check_key(key), None)

    def close(self) -> None:
        """Nothing to free."""

    def _infos(self, keys: Sequence[str]) -> Iterator[ObjectInfo]:
        for key in keys:
            data = self.objects.get(key)
            if data is not None:  # else deleted since the listing began
                yield ObjectInfo(key, len(data), etag_of(data))

    def _data(self, key: str) -> bytes:
        try:
            return self.objects[check_key(key)]
        except KeyError:
            raise NotFound(f"{key} is not in {self.url}") from None


def etag_of(data: bytes) -> str:
    """Returns the ETag of an object with these bytes."""
    return f'"{digest_of(data).hex()[:32]}"'
