"""Read-ahead for an open file: none for jumping reads, some for reads in order.

fsspec's own cache reads 5 MiB ahead of each read, and so fetches columns of a Parquet file that
nobody asked for. This one reads exactly what is asked for until a run of reads is long, and then an
eighth of the run ahead: what it fetches in vain stays below that share.
"""

from __future__ import annotations

from fsspec.caching import BaseCache, register_cache

SMALL_READ_BYTES = 32 << 10  # smaller reads come from a buffer of this size
AHEAD_SHARE = 8
AHEAD_BYTES_MAX = 4 << 20
LARGE_READ_BYTES = 1 << 20  # larger reads bypass the buffer, which would cost a copy


class RunningCache(BaseCache):  # type: ignore[misc]  # fsspec has no types
    """Registered with fsspec as the cache type ``lodefs``."""

    name = "lodefs"

    def __init__(self, blocksize: int, fetcher: object, size: int, **_: object) -> None:
        super().__init__(blocksize, fetcher, size)
        self._data = b""
        self._first = 0  # offset of the data
        self._run_first = 0  # offset at which the run of reads began
        self._run_end = 0

    def _fetch(self, start: int | None, stop: int | None) -> bytes:
        start = start or 0
        stop = self.size if stop is None else min(stop, self.size)
        if start >= stop:
            return b""
        if start != self._run_end:
            self._run_first = start
        self._run_end = stop
        end = self._first + len(self._data)
        if self._first <= start and stop <= end:
            return self._data[start - self._first : stop - self._first]
        if stop - start >= LARGE_READ_BYTES:
            found: bytes = self.fetcher(start, stop)
            return found
        held = self._data[start - self._first :] if self._first <= start < end else b""
        ahead = min(stop + self._ahead_bytes(start, stop), self.size)
        self._data = held + self.fetcher(start + len(held), ahead)
        self._first = start
        return self._data[: stop - start]

    def _ahead_bytes(self, start: int, stop: int) -> int:
        """Returns the number of bytes to read beyond the request."""
        run_bytes = start - self._run_first
        ahead_bytes = min(run_bytes // AHEAD_SHARE, AHEAD_BYTES_MAX)
        if run_bytes and stop - start < SMALL_READ_BYTES:
            return max(ahead_bytes, min(run_bytes, SMALL_READ_BYTES))
        return ahead_bytes


register_cache(RunningCache, clobber=True)
