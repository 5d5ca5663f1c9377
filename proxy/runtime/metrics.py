"""The names of all metrics, the counters behind them, and their text for Prometheus.

Counting must cost nearly nothing on the hot path, so counters are plain numbers that only the
event loop's thread changes; they become Prometheus families when somebody asks.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, field
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

from lodefs.proxy.runtime.counters import Counter

LATENCY_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
)  # fmt: skip


ENDPOINT_KINDS = ("unix", "tcp", "s3", "peers")


class NodeMetric(NamedTuple):
    """A figure of Node.status() that is exported, if the node gives it."""

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
    NodeMetric("recovery_bytes", "gauge", "Bytes to check after a power cut"),
    NodeMetric("recovery_bytes_done", "gauge", "Of these, bytes that were checked"),
    NodeMetric("scrub_fresh_bytes", "gauge", "Bytes checked or written within scrub_days"),
    NodeMetric("scrub_old_bytes", "gauge", "Bytes whose last check is longer ago"),
    NodeMetric("scrub_never_bytes", "gauge", "Bytes that no check is known of"),
    NodeMetric("scrub_oldest_check_age_s", "gauge", "Age of the oldest check of a cache file"),
    NodeMetric("scrub_bytes_per_s", "gauge", "Rate of the scrub, of the last half minute"),
    NodeMetric("warm_jobs", "gauge", "Warm jobs that run"),
    NodeMetric("in_flight_bytes", "gauge", "Bytes being fetched from the store"),
    NodeMetric("unwritten_bytes", "gauge", "Bytes that wait for the cache's disk"),
    NodeMetric("data_processes", "gauge", "Data processes that take orders"),
    NodeMetric("data_processes_busy_orders", "gauge", "Orders that they carry out"),
    NodeMetric("data_processes_restarts", "counter", "Data processes that ended and came again"),
    NodeMetric(Counter.HITS, "counter", "Pieces answered from the cache"),
    NodeMetric(Counter.HIT_BYTES, "counter", "Bytes answered from the cache"),
    NodeMetric(Counter.DIRECT, "counter", "Of these, pieces that mounts read themselves"),
    NodeMetric(Counter.DIRECT_BYTES, "counter", "Bytes of these"),
    NodeMetric(Counter.MISSES, "counter", "Pieces that had to be fetched first"),
    NodeMetric(Counter.JOINED, "counter", "Of these, pieces that were on their way already"),
    NodeMetric(Counter.FETCHES, "counter", "Ranged reads sent to the store"),
    NodeMetric(Counter.FETCHED_BYTES, "counter", "Bytes fetched, as stored"),
    NodeMetric(Counter.FILLED_BYTES, "counter", "Bytes written to the cache"),
    NodeMetric(Counter.UNCACHED_BYTES, "counter", "Bytes served but not kept, for lack of space"),
    NodeMetric(Counter.LEFT_OUT_BYTES, "counter", "Bytes served but not kept: the disk is slow"),
    NodeMetric(Counter.AHEAD_UNITS, "counter", "Units read ahead"),
    NodeMetric(Counter.AHEAD_REFUSED, "counter", "Units not read ahead: too much in flight"),
    NodeMetric(Counter.STORE_CORRUPT, "counter", "Chunks from the store with a wrong digest"),
    NodeMetric(Counter.CACHE_CORRUPT, "counter", "Cache files with wrong bytes"),
    NodeMetric(Counter.SCRUBBED_BYTES, "counter", "Bytes of cache files that the scrub checked"),
    NodeMetric(Counter.DEADLINES, "counter", "Fetches that took too long"),
    NodeMetric(Counter.EVICTED_FILES, "counter", "Cache files evicted"),
    NodeMetric(Counter.EVICTED_BYTES, "counter", "Bytes evicted"),
    NodeMetric(Counter.NO_SPACE, "counter", "Writes that found no space"),
    NodeMetric(Counter.PINNED_FULL, "counter", "Writes not kept: all that could go is pinned"),
    NodeMetric(Counter.PEER_REQUESTS, "counter", "Requests sent to other nodes"),
    NodeMetric(Counter.PEER_FETCHED_BYTES, "counter", "Bytes that came from other nodes"),
    NodeMetric(Counter.PEER_BUSY, "counter", "Requests that other nodes were too busy for"),
    NodeMetric(Counter.PEER_FAILED, "counter", "Requests to other nodes refused, broken, too slow"),
    NodeMetric(Counter.PEER_DENIED, "counter", "Of these, refused for lack of trust"),
    NodeMetric(Counter.PEER_CORRUPT, "counter", "Answers of other nodes with wrong bytes"),
    NodeMetric(Counter.PEER_FALLBACKS, "counter", "Fetches from the store after asking others"),
    NodeMetric(Counter.PEER_SENT_BYTES, "counter", "Bytes sent to other nodes"),
    NodeMetric(Counter.PEER_REFUSED, "counter", "Other nodes' requests refused: too busy"),
    NodeMetric(Counter.PEER_UNTRUSTED, "counter", "Other nodes' requests refused: no trust"),
    NodeMetric("peers_nodes", "gauge", "Other nodes of the cluster"),
    NodeMetric("peers_unwell_nodes", "gauge", "Of these, nodes with a fault, whatever it is"),
    NodeMetric("peers_refusing_nodes", "gauge", "Of these, nodes that do not trust this one"),
    NodeMetric("peers_refused_nodes", "gauge", "Of these, nodes that this one does not trust"),
    NodeMetric("peers_wrong_nodes", "gauge", "Of these, nodes that sent wrong bytes"),
    NodeMetric(Counter.TREES_LOADED, "counter", "Directories loaded from the store"),
    NodeMetric(Counter.INDEXES_READ, "counter", "Pack indexes read from the store"),
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


class RequestCounter:
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


@dataclass(slots=True)
class EndpointCounts:
    """Counts of the endpoints of one kind. ``connected``: their open connections."""

    connected: list[Sized] = field(default_factory=list)
    connections_refused: int = 0
    connections_cut: int = 0
    streams: int = 0
    streams_refused: int = 0

    @property
    def connections(self) -> int:
        """How many are open."""
        return sum(map(len, self.connected))


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
        self._counters: dict[tuple[str, str], RequestCounter] = {}
        self._endpoints = {kind: EndpointCounts() for kind in ENDPOINT_KINDS}
        self.broken_bodies = 0
        self.fast_answers = 0  # by the fast path
        self.s3_left_out = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def counter(self, route: str, status: int) -> RequestCounter:
        """The counter of a route ("files", "stat", ...) and a status's class ("2xx")."""
        key = (route, f"{status // 100}xx")
        found = self._counters.get(key)
        if found is None:
            found = self._counters[key] = RequestCounter()
        return found

    def endpoint(self, kind: str) -> EndpointCounts:
        """The figures of the doors of a kind, one of DOOR_KINDS."""
        return self._endpoints[kind]

    def total(self, name: str) -> int:
        """One of EndpointCounts' figures, summed over all endpoints."""
        return sum(getattr(counts, name) for counts in self._endpoints.values())

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
        yield from self._endpoint_families()
        for name, text, value in (
            ("lodefs_http_hot_answers", "Requests answered by the hot path", self.fast_answers),
            ("lodefs_http_broken_bodies", "Answers broken off by an error", self.broken_bodies),
            ("lodefs_s3_left_out", "Names left out of S3's listings", self.s3_left_out),
        ):
            yield CounterMetricFamily(name, text, value=value)
        yield from self._store_calls.families()
        yield from _node_families(self._node_status())

    def _endpoint_families(self) -> Iterator[Metric]:
        """One family for each figure of an endpoint, labelled with the endpoint's kind."""
        for name, text, family in (
            ("connections", "Open connections", GaugeMetricFamily),
            ("connections_refused", "Beyond the limit", CounterMetricFamily),
            ("connections_cut", "Idle, or reading too slowly", CounterMetricFamily),
            ("streams", "Requests being answered", GaugeMetricFamily),
            ("streams_refused", "Requests beyond the limit", CounterMetricFamily),
        ):
            made = family(f"lodefs_http_{name}", text, labels=["door"])
            for kind, figures in sorted(self._endpoints.items()):
                made.add_metric([kind], getattr(figures, name))
            yield made

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
