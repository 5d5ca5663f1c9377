"""The names of all metrics, the counters behind them, and their text for Prometheus.

Counting must cost nearly nothing on the hot path, so counters are plain numbers that only the
event loop's thread changes; they become Prometheus families when somebody asks.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from proxy.meter import Counter as Figure

LATENCY_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
)  # fmt: skip


class NodeMetric(NamedTuple):
    """A figure of Node.status() that is exported, where the node gives it."""

    key: str
    kind: str  # "counter" or "gauge"
    text: str

    @property
    def name(self) -> str:
        """Its name for Prometheus."""
        return f"lodefs_{self.key}"


NODE_METRICS = (
    NodeMetric("cache_used_bytes", "gauge", "Bytes that the cache holds"),
    NodeMetric("cache_size_bytes_max", "gauge", "Bytes that the cache may hold"),
    NodeMetric("cache_files", "gauge", "Slabs and flat files in the cache"),
    NodeMetric("pinned_bytes", "gauge", "Bytes of cache files that are pinned"),
    NodeMetric("warm_jobs", "gauge", "Warm jobs that run"),
    NodeMetric("in_flight_bytes", "gauge", "Bytes being fetched from the store"),
    NodeMetric(Figure.HITS, "counter", "Pieces answered from the cache"),
    NodeMetric(Figure.HIT_BYTES, "counter", "Bytes answered from the cache"),
    NodeMetric(Figure.DIRECT, "counter", "Of these, pieces that mounts read themselves"),
    NodeMetric(Figure.DIRECT_BYTES, "counter", "Bytes of these"),
    NodeMetric(Figure.MISSES, "counter", "Pieces that had to be fetched first"),
    NodeMetric(Figure.JOINED, "counter", "Of these, pieces that were on their way already"),
    NodeMetric(Figure.FETCHES, "counter", "Ranged reads sent to the store"),
    NodeMetric(Figure.FETCHED_BYTES, "counter", "Bytes fetched, as stored"),
    NodeMetric(Figure.FILLED_BYTES, "counter", "Bytes written to the cache"),
    NodeMetric(Figure.UNCACHED_BYTES, "counter", "Bytes served but not kept, for lack of space"),
    NodeMetric(Figure.AHEAD_UNITS, "counter", "Units read ahead"),
    NodeMetric(Figure.AHEAD_REFUSED, "counter", "Units not read ahead: too much in flight"),
    NodeMetric(Figure.STORE_CORRUPT, "counter", "Chunks from the store with a wrong digest"),
    NodeMetric(Figure.CACHE_CORRUPT, "counter", "Cache files with wrong bytes"),
    NodeMetric(Figure.DEADLINES, "counter", "Fetches that took too long"),
    NodeMetric(Figure.EVICTED_FILES, "counter", "Cache files evicted"),
    NodeMetric(Figure.EVICTED_BYTES, "counter", "Bytes evicted"),
    NodeMetric(Figure.NO_SPACE, "counter", "Writes that found no space"),
    NodeMetric(Figure.PINNED_FULL, "counter", "Writes not kept: all that could go is pinned"),
    NodeMetric(Figure.PEER_REQUESTS, "counter", "Requests sent to other nodes"),
    NodeMetric(Figure.PEER_FETCHED_BYTES, "counter", "Bytes that came from other nodes"),
    NodeMetric(Figure.PEER_BUSY, "counter", "Requests that other nodes were too busy for"),
    NodeMetric(Figure.PEER_FAILED, "counter", "Requests to other nodes refused, broken, too slow"),
    NodeMetric(Figure.PEER_CORRUPT, "counter", "Answers of other nodes with wrong bytes"),
    NodeMetric(Figure.PEER_FALLBACKS, "counter", "Fetches from the store after asking others"),
    NodeMetric(Figure.PEER_SENT_BYTES, "counter", "Bytes sent to other nodes"),
    NodeMetric(Figure.PEER_REFUSED, "counter", "Other nodes' requests refused: too busy"),
    NodeMetric(Figure.TREES_LOADED, "counter", "Directories loaded from the store"),
    NodeMetric(Figure.INDEXES_READ, "counter", "Pack indexes read from the store"),
)


class StoreCalls:
    """Calls to the store by operation and outcome. Counted from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[tuple[str, str], tuple[int, int, float]] = {}

    def add(self, operation: str, outcome: str, *, size_bytes: int, elapsed_s: float) -> None:
        """Count one call that ended: ``outcome`` is "ok" or the class of its error."""
        with self._lock:
            calls, total_bytes, total_s = self._calls.get((operation, outcome), (0, 0, 0.0))
            self._calls[operation, outcome] = (
                calls + 1,
                total_bytes + size_bytes,
                total_s + elapsed_s,
            )

    def families(self) -> Iterator[Metric]:
        """The counts for Prometheus."""
        labels = ["operation", "outcome"]
        calls = CounterMetricFamily("lodefs_store_calls", "Calls to the store", labels=labels)
        sizes = CounterMetricFamily("lodefs_store_bytes", "Bytes moved", labels=labels)
        times = CounterMetricFamily("lodefs_store_seconds", "Time of calls", labels=labels)
        with self._lock:
            found = sorted(self._calls.items())
        for key, (count, size_bytes, elapsed_s) in found:
            calls.add_metric(list(key), count)
            sizes.add_metric(list(key), size_bytes)
            times.add_metric(list(key), elapsed_s)
        yield from (calls, sizes, times)


class Counter:
    """Requests of one route and status class: how many, how long, how many bytes."""

    __slots__ = ("buckets", "elapsed_s", "requests", "sent_bytes")

    def __init__(self) -> None:
        self.requests = 0
        self.sent_bytes = 0
        self.elapsed_s = 0.0
        self.buckets = [0] * (len(LATENCY_BOUNDS_S) + 1)

    def add(self, *, elapsed_s: float, sent_bytes: int) -> None:
        """Count one answered request."""
        self.requests += 1
        self.sent_bytes += sent_bytes
        self.elapsed_s += elapsed_s
        self.buckets[bisect_left(LATENCY_BOUNDS_S, elapsed_s)] += 1


class Metrics(Collector):
    """All counters of one server, and the registry that shows them."""

    def __init__(
        self,
        version: str,
        node_status: Callable[[], dict[str, object]],
        store_calls: StoreCalls | None = None,
    ) -> None:
        self._version = version
        self._store_calls = store_calls or StoreCalls()
        self._node_status = node_status
        self._counters: dict[tuple[str, str], Counter] = {}
        self.connections = 0
        self.connections_refused = 0
        self.connections_cut = 0
        self.streams = 0
        self.streams_refused = 0
        self.broken_bodies = 0
        self.hot_answers: Callable[[], int] = int
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def counter(self, route: str, status: int) -> Counter:
        """The counter of a route ("files", "stat", ...) and a status's class ("2xx")."""
        key = (route, f"{status // 100}xx")
        found = self._counters.get(key)
        if found is None:
            found = self._counters[key] = Counter()
        return found

    def text(self) -> tuple[bytes, str]:
        """What /metrics answers: the body and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def requests(self) -> int:
        """Answered requests of all routes."""
        return sum(counter.requests for counter in self._counters.values())

    def sent_bytes(self) -> int:
        """Bytes of all answers."""
        return sum(counter.sent_bytes for counter in self._counters.values())

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families, as prometheus-client wants them."""
        yield GaugeMetricFamily("lodefs_up", "Always 1", value=1)
        build = GaugeMetricFamily("lodefs_build_info", "The version that runs", labels=["version"])
        build.add_metric([self._version], 1)
        yield build
        yield from self._request_families()
        for name, text, value in (
            ("lodefs_http_connections", "Open connections", self.connections),
            ("lodefs_http_streams", "Requests being answered", self.streams),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        for name, text, value in (
            ("lodefs_http_hot_answers", "Requests answered by the hot path", self.hot_answers()),
            ("lodefs_http_connections_refused", "Beyond the limit", self.connections_refused),
            ("lodefs_http_connections_cut", "Idle or reading too slowly", self.connections_cut),
            ("lodefs_http_streams_refused", "Requests beyond the limit", self.streams_refused),
            ("lodefs_http_broken_bodies", "Answers broken off by an error", self.broken_bodies),
        ):
            yield CounterMetricFamily(name, text, value=value)
        yield from self._store_calls.families()
        yield from _node_families(self._node_status())

    def _request_families(self) -> Iterator[Metric]:
        labels = ["route", "status"]
        requests = CounterMetricFamily("lodefs_http_requests", "Requests answered", labels=labels)
        sent = CounterMetricFamily("lodefs_http_sent_bytes", "Bytes of answers", labels=labels)
        latency = HistogramMetricFamily(
            "lodefs_http_request_seconds", "Time until an answer was written", labels=labels
        )
        for key, counter in sorted(self._counters.items()):
            requests.add_metric(list(key), counter.requests)
            sent.add_metric(list(key), counter.sent_bytes)
            latency.add_metric(list(key), _cumulated(counter.buckets), counter.elapsed_s)
        yield requests
        yield sent
        yield latency


def _cumulated(buckets: list[int]) -> list[tuple[str, float]]:
    """Prometheus's buckets, each with the count of all values up to its bound."""
    bounds = [*(str(bound) for bound in LATENCY_BOUNDS_S), "+Inf"]
    total = 0
    found: list[tuple[str, float]] = []
    for bound, count in zip(bounds, buckets, strict=True):
        total += count
        found.append((bound, total))
    return found


def _node_families(status: dict[str, object]) -> Iterator[Metric]:
    for metric in NODE_METRICS:
        value = status.get(metric.key)
        if not isinstance(value, int | float):
            continue
        family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        yield family(metric.name, metric.text, value=value)
