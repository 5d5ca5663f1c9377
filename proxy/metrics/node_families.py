"""A node's metrics: makes families from Node.status() and its counters."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Mapping

from lodefs.proxy.metrics import metric_names as names
from lodefs.proxy.metrics.counters import Counter, Counts
from lodefs.proxy.metrics.exposition import (
    Definition,
    Family,
    MetricLine,
    label_text,
    labelled,
    simple,
)

# keys of Node.status() that are metrics themselves
PLAIN: dict[str, Definition] = {
    "cache_used_bytes": names.CACHE_USED,
    "cache_size_bytes_max": names.CACHE_LIMIT,
    "cache_files": names.CACHE_FILES,
    "pinned_bytes": names.CACHE_PINNED,
    "recovery_bytes": names.RECOVERY_BYTES,
    "recovery_bytes_done": names.RECOVERY_DONE,
    "scrub_oldest_check_age_s": names.SCRUB_AGE,
    "warm_jobs": names.WARM_JOBS,
    "in_flight_bytes": names.FETCH_IN_FLIGHT,
    "unwritten_bytes": names.CACHE_UNWRITTEN,
    "waiting_units": names.FETCH_WAITING,
    "data_processes": names.DATA_PROCESSES,
    "data_processes_busy_orders": names.DATA_ORDERS,
    "data_processes_orders": names.DATA_ORDERS_DONE,
    "data_processes_restarts": names.DATA_RESTARTS,
    Counter.MISSES: names.FETCH_PIECES,
    Counter.JOINED: names.FETCH_JOINS,
    Counter.FETCHES: names.STORE_RANGES,
    Counter.FETCHED_BYTES: names.STORE_CHUNK_BYTES,
    Counter.INDEXES_READ: names.STORE_INDEXES,
    Counter.FILLED_BYTES: names.CACHE_FILLED,
    Counter.UNCACHED_BYTES: names.CACHE_UNCACHED,
    Counter.LEFT_OUT_BYTES: names.CACHE_LEFT_OUT,
    Counter.EVICTED_BYTES: names.CACHE_EVICTED_BYTES,
    Counter.EVICTED_UNREAD_BYTES: names.CACHE_EVICTED_UNREAD,
    Counter.NO_SPACE: names.CACHE_NO_SPACE,
    Counter.PINNED_FULL: names.CACHE_PINNED_FULL,
    Counter.SCRUBBED_BYTES: names.SCRUB_CHECKED,
    Counter.AHEAD_UNITS: names.FETCH_AHEAD,
    Counter.AHEAD_REFUSED: names.FETCH_AHEAD_REFUSED,
    Counter.DEADLINES: names.FETCH_DEADLINES,
    Counter.PEER_REQUESTS: names.PEER_REQUESTS,
    Counter.PEER_FALLBACKS: names.PEER_FALLBACKS,
    Counter.PEER_FETCHED_BYTES: names.PEER_RECEIVED,
    Counter.PEER_SENT_BYTES: names.PEER_SENT,
    Counter.TREES_LOADED: names.TREES_LOADED,
}

# keys that together are one metric, with the value of its label
PARTS: dict[str, tuple[Definition, str]] = {
    Counter.STORE_CORRUPT: (names.VERIFICATION_FAILURES, "store"),
    Counter.PEER_CORRUPT: (names.VERIFICATION_FAILURES, "peers"),
    Counter.CACHE_CORRUPT: (names.VERIFICATION_FAILURES, "cache"),
    Counter.PEER_BUSY: (names.PEER_FAILURES, "busy"),
    Counter.PEER_FAILED: (names.PEER_FAILURES, "failed"),
    Counter.PEER_DENIED: (names.PEER_FAILURES, "denied"),
    Counter.PEER_REFUSED: (names.PEER_REFUSED, "busy"),
    Counter.PEER_UNTRUSTED: (names.PEER_REFUSED, "untrusted"),
    "scrub_fresh_bytes": (names.SCRUB_BYTES, "fresh"),
    "scrub_old_bytes": (names.SCRUB_BYTES, "old"),
    "scrub_never_bytes": (names.SCRUB_BYTES, "never"),
}

# counters that other metrics show: reads by repository and source, and a histogram's count
SHOWN_OTHERWISE = frozenset(
    {
        Counter.HITS,
        Counter.HIT_BYTES,
        Counter.DIRECT,
        Counter.DIRECT_BYTES,
        Counter.EVICTED_FILES,
    }
)

PEER_STATES = ("well", "down", "unreachable", "late", "failing", "refusing", "refused", "wrong")


def node_families(status: Mapping[str, object], counts: Counts) -> Iterator[Family]:
    """Yields the metrics of a node; skips what it does not report."""
    for key, definition in PLAIN.items():
        value = status.get(key)
        if isinstance(value, int | float):
            yield simple(definition, value)
    yield from _parts(status)
    yield from _pools(status.get("pools"))
    yield from _peers(status.get("peers"))
    with counts.lock:
        yield Family(names.CACHE_EVICTED_AGE, counts.evicted_age_s.samples())
        lines: list[MetricLine] = []
        for source, histogram in counts.fetch_s.items():
            lines += histogram.samples(label_text(names.FETCH_SECONDS.labels, (source,)))
    yield Family(names.FETCH_SECONDS, lines)


def _parts(status: Mapping[str, object]) -> Iterator[Family]:
    values: dict[Definition, dict[tuple[str, ...], float]] = {}
    for key, (definition, label) in PARTS.items():
        value = status.get(key)
        if isinstance(value, int | float):
            values.setdefault(definition, {})[(label,)] = value
    failures = values.get(names.PEER_FAILURES)
    if failures:  # denied requests also count as failed
        failures[("failed",)] -= failures[("denied",)]
    for definition, by_label in values.items():
        yield labelled(definition, by_label)


def _pools(pools: object) -> Iterator[Family]:
    """Yields the metrics of pools. ``pools`` has running and waiting calls by name."""
    if isinstance(pools, Mapping):
        yield labelled(names.POOL_THREADS, {(name,): one[0] for name, one in pools.items()})
        yield labelled(names.POOL_WAITING, {(name,): one[1] for name, one in pools.items()})


def _peers(peers: object) -> Iterator[Family]:
    if isinstance(peers, list):
        found = Tally(str(one["state"]) for one in peers if "state" in one)
        values: dict[tuple[str, ...], float] = {(name,): found[name] for name in PEER_STATES}
        yield labelled(names.PEER_NODES, values)
