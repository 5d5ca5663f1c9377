"""Eviction: removes whole slabs and flat files. eviction_policy.py says which go first.

First the file's row is marked, then its chunks' rows are removed, then the file, then the rest of
its rows. So a reader with an old view of the index finds the file's bytes or no file, never other
bytes. Open descriptors stay usable.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from contextlib import suppress

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.kv import Row
from lodefs.chunkstore.nodecache.layout import FileKind, FileState
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.eviction_policy import EvictionPolicy
from lodefs.proxy.cache.prefetch_accuracy import PrefetchAccuracy
from lodefs.proxy.cache.tables import CacheTables
from lodefs.proxy.metrics.counters import Counter

log = logging.getLogger("lodefs.cache")

ROWS_MAX = 4096  # in one write


class Eviction:
    """Evicts from one cache. Blocking; one eviction at a time."""

    def __init__(
        self, cache: CacheTables, policy: EvictionPolicy, accuracy: PrefetchAccuracy
    ) -> None:
        self._cache = cache
        self._policy = policy
        self._accuracy = accuracy
        self._lock = threading.Lock()

    def free(self, size_bytes: int) -> None:
        """Evicts files of at least ``size_bytes`` together, or all that are neither pinned nor in
        use."""
        with self._lock:
            files = self._cache.all_files()
            for file in self._policy.victims(files, size_bytes, self._cache.now_s()):
                if self.evict(file):
                    self._accuracy.evicted(file.present_bytes, file.asked_bytes, file.read_bytes)

    def evict(self, file: CacheFile) -> bool:
        """Removes a file. Returns False if it is pinned, in use or gone already."""
        return self._mark(file, is_forced=False) and self._remove(file)

    def drop(self, file: CacheFile, why: str, *, is_damaged: bool = True) -> None:
        """Removes a file whose bytes are wrong, missing or unwanted, even if it is pinned or in
        use."""
        if self._mark(file, is_forced=True):
            log.warning("dropped the cache file %s: %s", file.path, why)
            if is_damaged:
                self._cache.counts.add(Counter.CACHE_CORRUPT)
            self._remove(file)

    def drop_chunks(self, chunks: Collection[bytes], why: str) -> None:
        """Drops each file that has one of the chunks, since files never change. It goes through the
        rows of all files, since a chunk's own row names only one of its places."""
        found = {
            layout.number_of_key(key)
            for key, value in self._cache.kv.scan(layout.RUNS)
            if any(chunk in chunks for chunk, _ in layout.decode_run_row(value).chunks)
        }
        for number in sorted(found):
            if (file := self._cache.file(number)) is not None:
                self.drop(file, why, is_damaged=False)

    def finish(self) -> None:
        """Completes the removal of files after a kill or a full disk interrupted it."""
        with self._cache.lock:
            files, self._cache.evicted = self._cache.evicted, []
        for file in files:
            self._remove_rows_and_file(file)

    def _mark(self, file: CacheFile, *, is_forced: bool) -> bool:
        """Removes the file from the tables, so that no reader finds it any more."""
        cache = self._cache
        with cache.lock, file.lock:
            if not file.is_alive:
                return False
            if not (is_forced or file.is_evictable(cache.now_s())):
                return False
            file.state = FileState.EVICTED
            cache.files.pop(file.number, None)
            if cache.flats.get(file.content) is file:
                del cache.flats[file.content]
        return True

    def _remove(self, file: CacheFile) -> bool:
        cache = self._cache
        self._remove_rows_and_file(file)
        with cache.lock:
            cache.used_bytes -= file.present_bytes
            cache.retired.append(file)
        age_s = cache.now_s() - file.last_use_s
        cache.counts.evicted(file.present_bytes, age_s, file.unread_bytes)
        cache.trim_soon()
        return True

    def _remove_rows_and_file(self, file: CacheFile) -> None:
        cache = self._cache
        try:
            self._write_mark(file)
            self._remove_chunk_rows(file)
            self._unlink(file)
            self._remove_last_rows(file)
        except (OSError, LodefsError) as error:
            # A full disk may refuse even deletions. The file's number is never used again, so the
            # remaining rows name a missing file, and ``finish`` removes them later.
            log.warning("the rows of the cache file %s stay for now: %s", file.path, error)
            with suppress(OSError):  # perhaps this is what failed before
                file.held_path.unlink(missing_ok=True)
            with cache.lock:
                cache.evicted.append(file)

    def _write_mark(self, file: CacheFile) -> None:
        rows: list[Row] = [(layout.file_key(file.number), layout.encode_file_row(file.row))]
        if file.kind is FileKind.FLAT:
            key = layout.flat_key(file.content)
            if self._cache.kv.get(key) == file.number.to_bytes(4, "little"):
                rows.append((key, None))
        self._cache.step("evict mark")
        self._cache.kv.write(rows)

    def _remove_chunk_rows(self, file: CacheFile) -> None:
        kv = self._cache.kv
        for _, value in kv.scan(layout.run_prefix(file.number)):
            keys = [layout.chunk_key(chunk_id) for chunk_id, _ in layout.decode_run_row(value)[1]]
            ours = file.number
            rows: list[Row] = [
                (key, None)
                for key, place in zip(keys, kv.get_many(keys), strict=True)
                if place is not None and layout.decode_chunk_row(place).number == ours
            ]
            self._cache.step("evict rows")
            kv.write(rows)

    def _unlink(self, file: CacheFile) -> None:
        self._cache.step("unlink")
        file.held_path.unlink(missing_ok=True)

    def _remove_last_rows(self, file: CacheFile) -> None:
        kv = self._cache.kv
        rows: list[Row] = []
        for key, _ in kv.scan(layout.run_prefix(file.number)):
            rows.append((key, None))
            if len(rows) >= ROWS_MAX:
                kv.write(rows)
                rows = []
        self._cache.step("evict last rows")
        rows.append((layout.checked_key(file.number), None))
        kv.write([*rows, (layout.file_key(file.number), None)])
