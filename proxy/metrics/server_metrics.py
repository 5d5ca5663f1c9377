"""The metrics of one server: its counters, and all metrics as text for Prometheus.

Counting must cost nearly nothing on the hot path, so counters are plain numbers that only the event
loop's thread changes; they become Prometheus families on demand. metric_names.py lists all metrics.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector

from lodefs.chunkstore.nodecache import layout
from lodefs.proxy.metrics import exposition
from lodefs.proxy.metrics import metric_names as names
from lodefs.proxy.metrics.bounded_labels import BoundedLabels
from lodefs.proxy.metrics.counters import USER_SOURCES, Counts
from lodefs.proxy.metrics.exposition import (
    Definition,
    Family,
    K,
    MetricLine,
    label_text,
    labelled,
    simple,
)
from lodefs.proxy.metrics.histogram import Histogram
from lodefs.proxy.metrics.node_families import node_families
from lodefs.proxy.metrics.other_families import MoreFamilies, OtherFamilies
from lodefs.proxy.metrics.repository_reads import Source
from lodefs.proxy.metrics.store_calls import StoreCalls
from lodefs.proxy.tracing.request_scope import sampled_trace_id
from lodefs.proxy.tracing.spans import NO_TRACER, Tracer

ENDPOINT_KINDS = ("unix", "tcp", "s3", "peers")
NO_SOURCE = "none"  # for answers without bytes of a file
SERIES_MAX = 100
BUSY_STREAMS = 64  # at once, from which scrapes share a text up to BUSY_AGE_S old
BUSY_AGE_S = 1.0
_GB = 1e9
_CACHE = Source.CACHE.label


class Use(NamedTuple):
    """The activity of a proxy, which shows whether anybody needs it. ``busy``: a request is being
    answered, or a job runs."""

    answered: int  # requests so far
    busy: bool


@dataclass(frozen=True, slots=True)
class MetricSettings:
    """``repositories_max`` is how many have their own series. Prices of the store, in any currency:
    for 1,000 reads, and for a GB (10^9 bytes) that it sends."""

    repositories_max: int = SERIES_MAX
    price_per_1000_gets: float = 0.0
    price_per_gb: float = 0.0


@dataclass(frozen=True, slots=True)
class MetricInputs:
    """The sources of metrics beside a server's own counters: calls to the store, and families from
    others on this node, such as its mounts. ``mounts_directories`` have the counters of mounts.
    ``tracer`` records requests."""

    store_calls: StoreCalls = field(default_factory=StoreCalls)
    settings: MetricSettings = field(default_factory=MetricSettings)
    more: MoreFamilies = tuple
    mounts_directories: tuple[Path, ...] = ()
    tracer: Tracer = NO_TRACER


class RequestCounter(Histogram):
    """The requests of one route, status class and source: their number, time and bytes."""

    __slots__ = ("sent_bytes",)

    def __init__(self) -> None:
        super().__init__()
        self.sent_bytes = 0

    @property
    def requests(self) -> int:
        """The number of answered requests."""
        return self.count


@dataclass(slots=True)
class EndpointCounts:
    """The counters of the endpoints of one kind. ``connected`` are their open connections."""

    connected: list[Sized] = field(default_factory=list)
    connections_refused: int = 0
    connections_cut: int = 0
    streams: int = 0
    streams_refused: int = 0
    certificate_end_s: float = 0.0  # Unix time; 0: there is none

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return sum(map(len, self.connected))


class Metrics:
    """All counters of one server, and the other metrics that it shows."""

    def __init__(
        self,
        version: str,
        node_status: Callable[[], dict[str, object]],
        counts: Counts | None = None,
        inputs: MetricInputs | None = None,
    ) -> None:
        inputs = inputs or MetricInputs()
        self._version = version
        self._settings = inputs.settings
        self._store_calls = inputs.store_calls
        self._node_status = node_status
        self.counts = counts or Counts()
        self._others = OtherFamilies(inputs.more)
        self._tracer = inputs.tracer
        self._counters: dict[tuple[str, str, str], RequestCounter] = {}
        self._hot: dict[tuple[str, str], RequestCounter] = {}  # by route and repository
        self._first_bytes: dict[tuple[str, str], Histogram] = {}
        self._endpoints = {kind: EndpointCounts() for kind in ENDPOINT_KINDS}
        self._repositories = BoundedLabels(self._settings.repositories_max)
        self._users = BoundedLabels(self._settings.repositories_max)
        self._made: dict[bool, tuple[float, bytes]] = {}  # time and text
        self._saved_bytes = 0
        self._saved_cost = 0.0
        self.received_bytes: Counter[str] = Counter()  # by route
        self.loop_lag_s = Histogram()
        self.broken_bodies = 0
        self.tokens_stale = False  # a deleted token may still be valid
        self.s3_left_out = 0
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    def counter(self, route: str, status: int, source: str = NO_SOURCE) -> RequestCounter:
        """Returns the counter of a route ("files", "stat", ...), a status class ("2xx") and a
        source."""
        return _at(self._counters, (route, _class_of(status), source))

    def hot_counter(self, route: str, repo: str) -> RequestCounter:
        """Returns the counter of the fast path, whose answers are always bytes of the cache."""
        return _at(self._hot, (route, repo))

    @property
    def fast_answers(self) -> int:
        """Returns the number of answers of the fast path."""
        return sum(counter.count for counter in self._hot.values())

    def first_byte(self, route: str, source: str) -> Histogram:
        """Returns the times to the first byte, for a route and source."""
        found = self._first_bytes.get((route, source))
        if found is None:
            found = self._first_bytes[route, source] = Histogram()
        return found

    def answered(
        self,
        route: str,
        status: int,
        source: str,
        sent_bytes: int,
        *,
        first_s: float,
        elapsed_s: float,
    ) -> None:
        """Counts an answer of the current request, whose first byte came after ``first_s``."""
        trace_id = sampled_trace_id()
        counter = self.counter(route, status, source)
        counter.add(elapsed_s, trace_id)
        counter.sent_bytes += sent_bytes
        if source != NO_SOURCE:
            self.first_byte(route, source).add(first_s, trace_id)

    def endpoint(self, kind: str) -> EndpointCounts:
        """Returns the counters of the endpoints of a kind, one of ENDPOINT_KINDS."""
        return self._endpoints[kind]

    def total(self, name: str) -> int:
        """Returns one field of EndpointCounts, summed over all endpoints."""
        return sum(getattr(counts, name) for counts in self._endpoints.values())

    async def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """Returns the answer of /metrics for a client with this Accept header: the body and its
        type. While many requests are under way, it is made at most once a second, for any number of
        clients."""
        is_open = exposition.wants_openmetrics(accept)
        if not self._is_fresh(is_open=is_open):
            await self._others.read()
        return self.text(accept)

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """Does what ``scrape`` does, with the counters of mounts and components from the last
        scrape."""
        is_open = exposition.wants_openmetrics(accept)
        if not self._is_fresh(is_open=is_open):
            write = exposition.openmetrics if is_open else exposition.text
            self._made[is_open] = (time.monotonic(), write(self.families()))
        media = exposition.OPENMETRICS_TYPE if is_open else exposition.TEXT_TYPE
        return self._made[is_open][1], media

    def _is_fresh(self, *, is_open: bool) -> bool:
        """Whether the last text is recent enough for a busy proxy."""
        if is_open not in self._made or self.total("streams") <= BUSY_STREAMS:
            return False
        return time.monotonic() - self._made[is_open][0] < BUSY_AGE_S

    def requests(self, route: str | None = None) -> int:
        """Returns the number of answered requests of a route; None: of all routes."""
        return sum(
            counter.requests
            for key, counter in (*self._counters.items(), *self._hot.items())
            if route in (None, key[0])
        )

    def sent_bytes(self) -> int:
        """Returns the bytes of all answers."""
        counters = (*self._counters.values(), *self._hot.values())
        return sum(counter.sent_bytes for counter in counters)

    def families(self) -> Iterator[Family]:
        """Yields all families."""
        versions = (
            self._version,
            platform.python_version(),
            str(layout.VERSION),
            "1",
        )
        yield labelled(names.BUILD_INFO, {versions: 1})
        yield Family(names.EVENT_LOOP_LAG, self.loop_lag_s.samples())
        yield from self._request_families()
        yield from self._endpoint_families()
        yield simple(names.HTTP_HOT, self.fast_answers)
        yield simple(names.HTTP_BROKEN, self.broken_bodies)
        yield simple(names.S3_LEFT_OUT, self.s3_left_out)
        yield simple(names.TOKENS_STALE, int(self.tokens_stale))
        yield from self._read_families()
        yield from self._store_calls.families()
        yield from node_families(self._node_status(), self.counts)
        yield from self._others.families
        yield simple(names.FIGURES_LATE, self._others.late)
        yield labelled(names.SPANS, {(k,): n for k, n in self._tracer.counts()._asdict().items()})
        yield from self._process_families()

    def _read_families(self) -> Iterator[Family]:
        figures = self._read_figures()
        yield from self._saving_families(figures.values())
        shown = self._repositories.show(figures, time.monotonic())
        for nth, definition in enumerate((names.READS, names.READ_BYTES)):
            values = {
                (repo, source.label): figures[2 * source + nth]
                for repo, figures in shown.items()
                for source in Source
            }
            yield labelled(definition, values)
        with self.counts.lock:
            by_user = {user: tuple(found) for user, found in self.counts.user_bytes.items()}
        users = self._users.show(by_user, time.monotonic())
        yield labelled(names.USER_BYTES, {
            (user, source.label): value
            for user, found in users.items()
            for source, value in zip(USER_SOURCES, found, strict=True)
        })  # fmt: skip

    def _read_figures(self) -> dict[str, tuple[int, ...]]:
        """Returns, by repository, reads and bytes of each source, including those of the fast
        path."""
        found = {repo: list(figures) for repo, figures in self.counts.reads.figures().items()}
        for (_, repo), hot in self._hot.items():
            if hot.count:
                figures = found.setdefault(repo, [0] * (2 * len(Source)))
                figures[2 * Source.CACHE] += hot.count
                figures[2 * Source.CACHE + 1] += hot.sent_bytes
        return {repo: tuple(figures) for repo, figures in found.items()}

    def _saving_families(self, read: Collection[tuple[int, ...]]) -> Iterator[Family]:
        """Compares with every reader reading from the store: each read would be a request of its
        own, for its bytes.

        Read-ahead costs first and saves later, so the savings are the largest value so far.
        """
        calls, prices = self._store_calls, self._settings
        reads = sum(sum(figures[0::2]) for figures in read)
        read_bytes = sum(sum(figures[1::2]) for figures in read)
        by_get, by_byte = prices.price_per_1000_gets / 1000, prices.price_per_gb / _GB
        received_bytes, gets = calls.received_bytes, calls.gets
        cost = gets * by_get + received_bytes * by_byte
        full_cost = reads * by_get + read_bytes * by_byte
        self._saved_bytes = max(self._saved_bytes, read_bytes - received_bytes)
        self._saved_cost = max(self._saved_cost, full_cost - cost)
        yield simple(names.STORE_SAVED_BYTES, self._saved_bytes)
        yield simple(names.STORE_COST, cost)
        yield simple(names.STORE_SAVED_COST, self._saved_cost)

    def _endpoint_families(self) -> Iterator[Family]:
        """Yields one family for each counter of endpoints, labelled with the endpoint's kind."""
        for name, definition in (
            ("connections", names.HTTP_CONNECTIONS),
            ("connections_refused", names.HTTP_CONNECTIONS_REFUSED),
            ("connections_cut", names.HTTP_CONNECTIONS_CUT),
            ("streams", names.HTTP_STREAMS),
            ("streams_refused", names.HTTP_STREAMS_REFUSED),
        ):
            endpoints = sorted(self._endpoints.items())
            yield labelled(definition, {(kind,): getattr(one, name) for kind, one in endpoints})
        ends = {
            (kind,): one.certificate_end_s
            for kind, one in self._endpoints.items()
            if one.certificate_end_s
        }
        yield labelled(names.CERTIFICATE_END, ends)

    def _request_families(self) -> Iterator[Family]:
        seconds: list[MetricLine] = []
        sent: dict[tuple[str, ...], float] = {}
        firsts = {key: _copy(one) for key, one in self._first_bytes.items()}
        merged_counters: dict[tuple[str, str, str], RequestCounter] = {}
        hot = [((route, "2xx", _CACHE), one) for (route, _), one in self._hot.items()]
        for key, counter in (*self._counters.items(), *hot):
            merged = _at(merged_counters, key)
            merged.add_all(counter)
            merged.sent_bytes += counter.sent_bytes
        for key, merged in sorted(merged_counters.items()):
            if not merged.count:
                continue
            seconds += merged.samples(label_text(names.HTTP_SECONDS.labels, key))
            sent[key] = merged.sent_bytes
        for (route, _, source), counter in hot:
            firsts.setdefault((route, source), Histogram()).add_all(counter)
        yield Family(names.HTTP_SECONDS, seconds)
        yield labelled(names.HTTP_SENT_BYTES, sent)
        received = {(route,): count for route, count in sorted(self.received_bytes.items())}
        yield labelled(names.HTTP_RECEIVED_BYTES, received)
        lines: list[MetricLine] = []
        for key_of_first, histogram in sorted(firsts.items()):
            if histogram.count:
                lines += histogram.samples(label_text(names.HTTP_FIRST_BYTE.labels, key_of_first))
        yield Family(names.HTTP_FIRST_BYTE, lines)

    def _process_families(self) -> Iterator[Family]:
        """Yields memory, descriptors, processor time and start of this process."""
        for metric in self._process.collect():
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            definition = Definition(name, metric.type, (), metric.documentation)
            yield simple(definition, metric.samples[0].value)


def _at(counters: dict[K, RequestCounter], key: K) -> RequestCounter:
    found = counters.get(key)
    if found is None:
        found = counters[key] = RequestCounter()
    return found


def _class_of(status: int) -> str:
    return f"{status // 100}xx"


def _copy(histogram: Histogram) -> Histogram:
    made = Histogram(histogram.bounds)
    made.add_all(histogram)
    return made
