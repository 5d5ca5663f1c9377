"""Making room: whole slabs and flat files go, the least recently used ones first.

The file's row says so first, then its chunks' rows go, then the file, then the rest of its rows:
a reader with an old view of the index finds the file's bytes or no file, never other bytes.
Open descriptors stay usable.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.kv import Row
from lodefs.chunkstore.nodecache.layout import FileKind, FileState
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.pins import Pins
from lodefs.proxy.cache.tables import CacheTables
from lodefs.proxy.runtime.counters import Counter

log = logging.getLogger("lodefs.cache")

ROWS_MAX = 4096  # in one write
USEFUL_SHARE_MIN = 0.5  # below it, fetching more than what is asked costs more than it saves
EVIDENCE_PARTS = 16  # of the cache's size: what is evicted of it halves what older evidence counts
ASKED_WEIGHT = 1 / 32  # of evicted bytes that were asked for: two caches of them halve it, too
EVIDENCE_SIZE_BYTES_MIN = 1024 * 1024  # less says nothing
PROTECTED_S = 3600.0  # after their last use files are an owner's, whose share protects them


class Candidate(NamedTuple):
    """A cache file that may go."""

    last_use_s: float
    number: int
    size_bytes: int
    owner: str = ""


def victims(
    candidates: Iterable[Candidate],
    bytes_to_free: int,
    held: Mapping[str, int] = MappingProxyType({}),
) -> list[int]:
    """Numbers of files that free so many bytes together, in that order; all of them if they do not
    suffice. Pinned files are no candidates.

    The least recently used ones go, first those of an owner that has more than an equal share of
    what owners hold. ``held``: bytes of owners whose files were used not long ago; files of others
    are nobody's to protect.
    """
    heaps: dict[str, list[Candidate]] = {}
    for one in candidates:
        heaps.setdefault(one.owner if one.owner in held else "", []).append(one)
    for heap in heaps.values():
        heapq.heapify(heap)
    left_bytes, chosen = dict(held), list[int]()
    share_bytes = sum(held.values()) / max(len(held), 1)
    while heaps and bytes_to_free > 0:
        owner = _next_owner(heaps, left_bytes, share_bytes)
        candidate = heapq.heappop(heaps[owner])
        if not heaps[owner]:
            del heaps[owner]
        if owner in left_bytes:
            left_bytes[owner] -= candidate.size_bytes
        chosen.append(candidate.number)
        bytes_to_free -= candidate.size_bytes
    return chosen


def _next_owner(
    heaps: Mapping[str, Sequence[Candidate]], left_bytes: Mapping[str, int], share_bytes: float
) -> str:
    """Whose least recently used file goes: what nobody has used for long, then that of the owner
    with the most above its share, then the oldest of all."""
    above = {owner: left_bytes.get(owner, 0) - share_bytes for owner in heaps}
    heaviest = max(above, key=lambda owner: above[owner])
    oldest = min(heaps, key=lambda owner: heaps[owner][0])
    is_protected = oldest in left_bytes and above[heaviest] > 0
    return heaviest if is_protected else oldest


class PrefetchAccuracy:
    """The share of the bytes which readers found in the cache, although nobody had asked for them
    when they were fetched, of all such bytes that were evicted of late (the "accuracy" by which
    feedback directed prefetching is throttled: Srinath et al., HPCA 2007).

    What was fetched because it was asked for is no evidence for either, but older evidence fades
    with its evictions. It does so slowly, since readers at random then fetch a cache in vain until
    this is learnt anew. One thread at a time tells it; any may ask.
    """

    def __init__(self, cache_size_bytes: int) -> None:
        self._half_life_bytes = max(cache_size_bytes // EVIDENCE_PARTS, EVIDENCE_SIZE_BYTES_MIN)
        self._least_bytes = max(self._half_life_bytes // EVIDENCE_PARTS, EVIDENCE_SIZE_BYTES_MIN)
        self._unasked_bytes = 0.0
        self._useful_bytes = 0.0

    def evicted(self, size_bytes: int, asked_bytes: int, read_bytes: int) -> None:
        """A file of the cache went. ``asked_bytes`` of its bytes were fetched since somebody asked
        for them; ``read_bytes`` were read, these among them."""
        unasked = max(size_bytes - asked_bytes, 0)
        read_again = max(read_bytes - asked_bytes, 0)  # of what was asked for as of the rest
        useful = unasked * min(read_again / max(size_bytes, 1), 1.0)
        aged_bytes = unasked + ASKED_WEIGHT * (size_bytes - unasked)
        keep = 0.5 ** (aged_bytes / self._half_life_bytes)
        self._unasked_bytes = self._unasked_bytes * keep + unasked
        self._useful_bytes = self._useful_bytes * keep + useful

    @property
    def share(self) -> float:
        """1.0 while nothing is known, or nothing any more."""
        if self._unasked_bytes < self._least_bytes:
            return 1.0
        return self._useful_bytes / self._unasked_bytes

    @property
    def is_low(self) -> bool:
        """Whether most of what is fetched unasked is evicted unread."""
        return self.share < USEFUL_SHARE_MIN


class Eviction:
    """Evicts from one cache. Blocking; one eviction at a time."""

    def __init__(self, cache: CacheTables, pins: Pins) -> None:
        self._cache = cache
        self._pins = pins
        self.usefulness = PrefetchAccuracy(cache.settings.size_bytes_max)
        self._lock = threading.Lock()

    def free(self, size_bytes: int) -> None:
        """Evicts files of at least so many bytes, or all that are neither pinned nor in use."""
        with self._lock:
            for number in victims(self._candidates(), size_bytes, self._held()):
                file = self._cache.files.get(number)
                if file is not None and self.evict(file):
                    asked_bytes, read_bytes = file.asked_bytes, file.read_bytes
                    self.usefulness.evicted(file.present_bytes, asked_bytes, read_bytes)

    def evict(self, file: CacheFile) -> bool:
        """Removes a file unless it is pinned or in use. False if it is, or has gone already."""
        return self._mark(file, is_forced=False) and self._remove(file)

    def drop(self, file: CacheFile, why: str, *, is_damaged: bool = True) -> None:
        """Removes a file whose bytes are wrong, missing or not wanted, also a pinned one or one in
        use."""
        if self._mark(file, is_forced=True):
            log.warning("the cache file %s is dropped: %s", file.path, why)
            if is_damaged:
                self._cache.counts.add(Counter.CACHE_CORRUPT)
            self._remove(file)

    def finish(self) -> None:
        """Removes files whose eviction was interrupted by a kill or a full disk."""
        with self._cache.lock:
            files, self._cache.evicted = self._cache.evicted, []
        for file in files:
            self._remove_rows_and_file(file)

    def _candidates(self) -> list[Candidate]:
        with self._cache.lock:
            files = list(self._cache.files.values())
        is_pinned = self._pins.is_pinned
        since_s = self._cache.now_s() - PROTECTED_S
        return [
            Candidate(
                file.last_use_s,
                file.number,
                file.present_bytes,
                file.owner if file.last_use_s >= since_s else "",
            )
            for file in files
            if not (file.users or is_pinned(file.number))
        ]

    def _held(self) -> dict[str, int]:
        """Bytes of each owner that has used files not long ago; pinned ones are held, too."""
        held: defaultdict[str, int] = defaultdict(int)
        since_s = self._cache.now_s() - PROTECTED_S
        with self._cache.lock:
            for file in self._cache.files.values():
                if file.owner and file.last_use_s >= since_s:
                    held[file.owner] += file.present_bytes
        return dict(held)

    def _mark(self, file: CacheFile, *, is_forced: bool) -> bool:
        """Removes the file from the tables, so that no reader finds it any more."""
        cache = self._cache
        with cache.lock, file.lock:
            if not file.is_alive:
                return False
            if not is_forced and (file.users or self._pins.is_pinned(file.number)):
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
            # a full disk may refuse even deletions: the file's number is never used again, so
            # the rows that stay name a missing file, and ``finish`` removes them later
            log.warning("the rows of the cache file %s stay for now: %s", file.path, error)
            with suppress(OSError):  # perhaps what failed before
                file.path.unlink(missing_ok=True)
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
        file.path.unlink(missing_ok=True)

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
