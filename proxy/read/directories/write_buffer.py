"""A buffer in memory for rows that the disk has no space for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from operator import itemgetter

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.nodecache.kv import KeyValues, Row

log = logging.getLogger("lodefs.cache")

ROWS_SIZE_BYTES_MAX = 32 * 1024 * 1024


class WriteBuffer:
    """KeyValues over others whose writes may fail. Rows that they refuse are kept in memory, up to
    ``size_bytes_max``; then writes fail as they do below. Nothing is dropped.

    Reads check memory first: a row leaves it only when it is stored below."""

    def __init__(self, kv: KeyValues, *, size_bytes_max: int = ROWS_SIZE_BYTES_MAX) -> None:
        self._kv = kv
        self._size_bytes_max = size_bytes_max
        self._rows: dict[bytes, bytes] = {}
        self._size_bytes = 0
        self._lock = threading.Lock()  # guards the two fields above

    def get(self, key: bytes) -> bytes | None:
        value = self._rows.get(key)
        return self._kv.get(key) if value is None else value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        own = [self._rows.get(key) for key in keys] if self._rows else []
        values = self._kv.get_many(keys)
        if not own:
            return values
        pairs = zip(own, values, strict=True)
        return [below if value is None else value for value, below in pairs]

    def write(self, rows: Sequence[Row]) -> None:
        """Writes all rows or none, with those in memory. Raises: NoSpace, Unavailable, only if
        memory is full."""
        with self._lock:
            kept = list(self._rows.items())
        try:
            self._kv.write([*kept, *rows])
            if kept:
                self._forget(kept)
        except LodefsError as error:
            with self._lock:
                size_bytes = sum(len(key) + len(value or b"") for key, value in rows)
                if self._size_bytes + size_bytes > self._size_bytes_max:
                    raise
                self._size_bytes += size_bytes
                self._rows |= {key: value for key, value in rows if value is not None}
            log.warning("%d index rows are kept in memory for now: %s", len(rows), error)

    def _forget(self, rows: list[tuple[bytes, bytes]]) -> None:
        with self._lock:
            for key, value in rows:
                if self._rows.get(key) == value:
                    del self._rows[key]
            self._size_bytes = sum(len(key) + len(value) for key, value in self._rows.items())

    def scan(self, prefix: bytes, *, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        if not self._rows:
            return self._kv.scan(prefix, after=after)
        with self._lock:
            own = sorted((k, v) for k, v in self._rows.items() if k.startswith(prefix))
        below = self._kv.scan(prefix, after=after)
        return _distinct(merge(((k, v) for k, v in own if k > after), below, key=itemgetter(0)))


def _distinct(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    last = b""
    for key, value in rows:
        if key != last:
            yield key, value
        last = key
