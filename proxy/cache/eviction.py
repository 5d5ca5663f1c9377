"""Eviction: removes whole slabs and flat files, the least recently used ones first.

First the file's row is marked, then its chunks' rows are removed, then the file, then the rest of
its rows. So a reader with an old view of the index finds the file's bytes or no file, never other
bytes. Open descriptors stay usable.
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
USEFUL_SHARE_MIN = 0.5  # below it, fetching more than what was asked for costs more than it saves
EVIDENCE_PARTS = 16  # evicting this fraction of the cache halves older evidence
# Weight of evicted bytes that were asked for: two caches of them halve it, too
ASKED_WEIGHT = 1 / 32
EVIDENCE_SIZE_BYTES_MIN = 1024 * 1024  # fewer bytes say nothing
PROTECTED_S = 3600.0  # for this long after the last use, an owner's share protects files


class Candidate(NamedTuple):
    """A cache file that may be evicted."""

    last_use_s: float
    number: int
    size_bytes: int
    owner: str = ""


def victims(
    candidates: Iterable[Candidate],
    bytes_to_free: int,
    held: Mapping[str, int] = MappingProxyType({}),
) -> list[int]:
    """Returns the numbers of files that free ``bytes_to_free`` together, in order; all files if
    they do not suffice. Pinned files are no candidates.

    The least recently used files go first, and among these the files of owners that have more than
    an equal share of what owners hold. ``held`` are bytes of owners whose files were used recently;
    files of other owners are not protected.
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
    """Returns the owner to evict from: files without a recent user first, then the owner that is
    most above its share, then the owner of the oldest file."""
    above = {owner: left_bytes.get(owner, 0) - share_bytes for owner in heaps}
    heaviest = max(above, key=lambda owner: above[owner])
    oldest = min(heaps, key=lambda owner: heaps[owner][0])
    is_protected = oldest in left_bytes and above[heaviest] > 0
    return heaviest if is_protected else oldest


class PrefetchAccuracy:
    """Measures prefetching: the share of bytes that readers found in the cache although nobody had
    asked for them when they were fetched, among all such bytes that were evicted recently (the
    "accuracy" by which feedback directed prefetching is throttled: Srinath et al., HPCA 2007).

    Bytes that were fetched on demand are no evidence either way, but their eviction makes older
    evidence fade. It does so slowly, since random readers would otherwise fetch a cache in vain
    before this is learned again. One thread at a time may update it; any may read it.
    """

    def __init__(self, cache_size_bytes: int) -> None:
        self._half_life_bytes = max(cache_size_bytes // EVIDENCE_PARTS, EVIDENCE_SIZE_BYTES_MIN)
        self._least_bytes = max(self._half_life_bytes // EVIDENCE_PARTS, EVIDENCE_SIZE_BYTES_MIN)
        self._unasked_bytes = 0.0
        self._useful_bytes = 0.0

    def evicted(self, size_bytes: int, asked_bytes: int, read_bytes: int) -> None:
        """Adds an evicted file. ``asked_bytes`` of it were fetched on demand; ``read_bytes``, which
        include these, were read."""
        unasked = max(size_bytes - asked_bytes, 0)
        read_again = max(read_bytes - asked_bytes, 0)  # demanded bytes may be read again, too
        useful = unasked * min(read_again / max(size_bytes, 1), 1.0)
        aged_bytes = unasked + ASKED_WEIGHT * (size_bytes - unasked)
        keep = 0.5 ** (aged_bytes / self._half_life_bytes)
        self._unasked_bytes = self._unasked_bytes * keep + unasked
        self._useful_bytes = self._useful_bytes * keep + useful

    @property
    def share(self) -> float:
        """The share; 1.0 as long as nothing is known."""
        if self._unasked_bytes < self._least_bytes:
            return 1.0
        return self._useful_bytes / self._unasked_bytes

    @property
    def is_low(self) -> bool:
        """Whether most prefetched bytes are evicted unread."""
        return self.share < USEFUL_SHARE_MIN


class Eviction:
    """Evicts from one cache. Blocking; one eviction at a time."""

    def __init__(self, cache: CacheTables, pins: Pins, accuracy: PrefetchAccuracy) -> None:
        self._cache = cache
        self._pins = pins
        self._accuracy = accuracy
        self._lock = threading.Lock()

    def free(self, size_bytes: int) -> None:
        """Evicts files of at least ``size_bytes`` together, or all that are neither pinned nor in
        use."""
        with self._lock:
            for number in victims(self._candidates(), size_bytes, self._held()):
                file = self._cache.files.get(number)
                if file is not None and self.evict(file):
                    asked_bytes, read_bytes = file.asked_bytes, file.read_bytes
                    self._accuracy.evicted(file.present_bytes, asked_bytes, read_bytes)

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

    def finish(self) -> None:
        """Completes the removal of files after a kill or a full disk interrupted it."""
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
        """Returns the bytes of each owner that has used files recently, including pinned ones."""
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
            # A full disk may refuse even deletions. The file's number is never used again, so the
            # remaining rows name a missing file, and ``finish`` removes them later.
            log.warning("the rows of the cache file %s stay for now: %s", file.path, error)
            with suppress(OSError):  # perhaps this is what failed before
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
