"""The counters of a node, by name. ``node_families.py`` shows them as metrics."""

from __future__ import annotations

import threading
from enum import StrEnum

from lodefs.chunkstore.protocol.wire import Origin
from lodefs.proxy.metrics.bounded_labels import OTHER
from lodefs.proxy.metrics.histogram import AGE_BOUNDS_S, Histogram
from lodefs.proxy.metrics.repository_reads import OF_ORIGIN, RepositoryReads, Source


class Counter(StrEnum):
    """A counter, which only grows. Names end in their unit."""

    HITS = "hits_reads"  # pieces answered from the cache
    HIT_BYTES = "hit_bytes"
    DIRECT = "direct_reads"  # hits that mounts read from the cache's files
    DIRECT_BYTES = "direct_bytes"
    MISSES = "misses_reads"  # pieces that had to be fetched first
    JOINED = "joined_reads"  # misses whose chunk was on its way already
    FETCHES = "store_fetches"  # ranged reads sent to the store
    FETCHED_BYTES = "store_fetched_bytes"  # as stored, before decompression
    FILLED_BYTES = "cache_filled_bytes"
    UNCACHED_BYTES = "uncached_bytes"  # served without being cached: no space
    LEFT_OUT_BYTES = "left_out_bytes"  # served without being cached: the disk cannot keep up
    AHEAD_UNITS = "read_ahead_units"
    AHEAD_REFUSED = "read_ahead_refused_units"  # too much in flight already
    STORE_CORRUPT = "store_corrupt_chunks"  # bytes from the store that did not match
    CACHE_CORRUPT = "cache_corrupt_files"  # cache files with bytes that did not match
    DEADLINES = "deadlines_fetches"
    SCRUBBED_BYTES = "scrubbed_bytes"  # bytes of cache files that were checked in idle time
    EVICTED_FILES = "evicted_files"
    EVICTED_BYTES = "evicted_bytes"
    EVICTED_UNREAD_BYTES = "evicted_unread_bytes"  # evicted bytes that nobody had read
    NO_SPACE = "no_space_errors"
    PINNED_FULL = "pinned_full_writes"  # not cached: only pinned files could be evicted
    PEER_REQUESTS = "peer_requests"  # sent to other nodes
    PEER_FETCHED_BYTES = "peer_fetched_bytes"  # of chunks and indexes from other nodes
    PEER_BUSY = "peer_busy_answers"
    PEER_FAILED = "peer_failed_requests"  # refused, broken, or too slow
    PEER_DENIED = "peer_denied_requests"  # failed for lack of trust (401, 403, TLS)
    PEER_CORRUPT = "peer_corrupt_answers"
    PEER_FALLBACKS = "peer_fallback_fetches"  # from the store, after peers were asked
    PEER_SENT_BYTES = "peer_sent_bytes"  # to other nodes
    PEER_REFUSED = "peer_refused_requests"  # answered with "busy"
    PEER_UNTRUSTED = "peer_untrusted_requests"  # refused by this node for lack of trust
    TREES_LOADED = "trees_loaded_directories"
    INDEXES_READ = "store_indexes_reads"


USERS_KNOWN_MAX = 10_000
USER_SOURCES = (Source.CACHE, Source.PEERS, Source.STORE)


class Counts:
    """The counters of one node. Any thread may read ``values`` at any time."""

    def __init__(self) -> None:
        self.values: dict[Counter, int] = dict.fromkeys(Counter, 0)
        self.reads = RepositoryReads()
        self.evicted_age_s = Histogram(AGE_BOUNDS_S)
        self.fetch_s = {origin: Histogram() for origin in Origin}
        self.user_bytes: dict[str, list[int]] = {}  # by user: from the cache, peers, the store
        self.lock = threading.Lock()

    def add(self, counter: Counter, amount: int = 1) -> None:
        """Adds to a counter. For any thread."""
        with self.lock:
            self.values[counter] += amount

    def evicted(self, size_bytes: int, age_s: float, unread_bytes: int = 0) -> None:
        """Counts the eviction of a cache file, ``age_s`` after its last use, with the bytes that
        nobody had read. For any thread."""
        with self.lock:
            self.values[Counter.EVICTED_FILES] += 1
            self.values[Counter.EVICTED_BYTES] += size_bytes
            self.values[Counter.EVICTED_UNREAD_BYTES] += unread_bytes
            self.evicted_age_s.add(max(age_s, 0.0))

    def fetched(self, origin: Origin, elapsed_s: float, trace_id: str = "") -> None:
        """Counts a unit from a source, for a trace if there is one. For any thread."""
        with self.lock:
            self.fetch_s[origin].add(elapsed_s, trace_id)

    def fetched_for(self, owner: str, origin: Origin | None, size_bytes: int) -> None:
        """Counts bytes for a user; ``origin`` None: from the cache's files. For any thread."""
        if owner.isdecimal():
            with self.lock:
                if owner not in self.user_bytes and len(self.user_bytes) >= USERS_KNOWN_MAX:
                    owner = OTHER
                found = self.user_bytes.setdefault(owner, [0] * len(USER_SOURCES))
                found[USER_SOURCES.index(OF_ORIGIN[origin])] += size_bytes

    def hit(self, size_bytes: int) -> None:
        """Counts one piece from the cache. This is the hot path: only the event loop changes these
        two counters, so no lock is needed."""
        values = self.values
        values[Counter.HITS] += 1
        values[Counter.HIT_BYTES] += size_bytes

    def direct(self, reads: int, size_bytes: int, repo: str = "") -> None:
        """Counts hits that mounts served themselves. On the event loop, like ``hit``."""
        self.reads.of(repo)[Source.DIRECT].add(size_bytes, reads)
        values = self.values
        values[Counter.HITS] += reads
        values[Counter.HIT_BYTES] += size_bytes
        values[Counter.DIRECT] += reads
        values[Counter.DIRECT_BYTES] += size_bytes
