"""The work of a proxy since it started, as its metrics show it (docs/metrics.md), and the rates
between two readings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import closing

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from lodefs.chunkstore.errors import Denied, Unavailable
from lodefs.chunkstore.protocol.control_client import ControlClient

SOURCES = ("direct", "cache", "peers", "store")  # where bytes for readers come from, nearest first


class Reads(msgspec.Struct):
    """A number of reads, and their bytes."""

    reads: float = 0
    read_bytes: float = 0

    def __add__(self, other: Reads) -> Reads:
        return Reads(self.reads + other.reads, self.read_bytes + other.read_bytes)


BySource = dict[str, Reads]


class Timed(msgspec.Struct):
    """The count of an operation, and the seconds that it took in total."""

    count: float = 0
    seconds: float = 0.0


class NodeActivity(msgspec.Struct):
    """Sums since the proxy started (``began_s``, Unix), and the present state.

    ``datasets`` and ``mounts``: reads by repository and by mount point, each by source.
    ``waiting``: by mount point, seconds that requests waited, by layer.
    ``first_byte``: answers with bytes of files. ``store``: calls to the store.
    """

    began_s: float = 0.0
    datasets: dict[str, BySource] = {}
    mounts: dict[str, BySource] = {}
    waiting: dict[str, dict[str, float]] = {}
    mount_of: dict[str, str] = {}  # mount point -> REPO@COMMIT
    first_byte: Timed = msgspec.field(default_factory=Timed)
    store: Timed = msgspec.field(default_factory=Timed)
    peer_received_bytes: float = 0
    peer_sent_bytes: float = 0
    peers: dict[str, float] = {}  # state -> nodes
    requests_now: float = 0
    fetching_bytes_now: float = 0
    waiting_units_now: float = 0
    warm_jobs_now: float = 0
    cache_used_bytes: float = 0
    cache_limit_bytes: float = 0

    def by_source(self) -> BySource:
        """Reads of all datasets, by source; each of SOURCES is a key."""
        total = {source: Reads() for source in SOURCES}
        for sources in self.datasets.values():
            for source, reads in sources.items():
                total[source] = total.get(source, Reads()) + reads
        return total


_PLAIN = {
    "process_start_time_seconds": "began_s",
    "lodefs_peer_received_bytes_total": "peer_received_bytes",
    "lodefs_peer_sent_bytes_total": "peer_sent_bytes",
    "lodefs_fetch_in_flight_bytes": "fetching_bytes_now",
    "lodefs_fetch_waiting_units": "waiting_units_now",
    "lodefs_warm_jobs": "warm_jobs_now",
    "lodefs_cache_used_bytes": "cache_used_bytes",
    "lodefs_cache_limit_bytes": "cache_limit_bytes",
}
_READS = {
    "lodefs_reads_total": ("datasets", "repository", "reads"),
    "lodefs_read_bytes_total": ("datasets", "repository", "read_bytes"),
    "lodefs_mount_reads_total": ("mounts", "mountpoint", "reads"),
    "lodefs_mount_read_bytes_total": ("mounts", "mountpoint", "read_bytes"),
}
_TIMED = {
    "lodefs_http_first_byte_seconds_count": ("first_byte", "count"),
    "lodefs_http_first_byte_seconds_sum": ("first_byte", "seconds"),
    "lodefs_store_request_seconds_count": ("store", "count"),
    "lodefs_store_request_seconds_sum": ("store", "seconds"),
}


def activity_of(found: Iterable[Sample]) -> NodeActivity:
    """Returns the activity that samples of /metrics show. What they do not show is zero."""
    activity = NodeActivity(datasets={}, mounts={}, waiting={}, mount_of={}, peers={})
    for sample in found:
        if sample.name in _PLAIN:
            setattr(activity, _PLAIN[sample.name], sample.value)
        elif sample.name in _READS:
            where, label, figure = _READS[sample.name]
            sources = getattr(activity, where).setdefault(sample.labels.get(label, ""), {})
            reads = sources.setdefault(sample.labels.get("source", ""), Reads())
            setattr(reads, figure, getattr(reads, figure) + sample.value)
        elif sample.name in _TIMED:
            what, figure = _TIMED[sample.name]
            timed = getattr(activity, what)
            setattr(timed, figure, getattr(timed, figure) + sample.value)
        else:
            _others(activity, sample)
    activity.requests_now = max(0, activity.requests_now - 1)  # without this request itself
    return activity


def _others(activity: NodeActivity, sample: Sample) -> None:
    labels = sample.labels
    if sample.name == "lodefs_http_streams":
        activity.requests_now += sample.value
    elif sample.name == "lodefs_peer_nodes":
        activity.peers[labels.get("state", "")] = sample.value
    elif sample.name == "lodefs_mount_waiting_seconds_total":
        layers = activity.waiting.setdefault(labels.get("mountpoint", ""), {})
        layers[labels.get("layer", "")] = sample.value
    elif sample.name == "lodefs_mount_info":
        what = f"{labels.get('repository', '')}@{labels.get('commit', '')[:12]}"
        activity.mount_of[labels.get("mountpoint", "")] = what


class Rates(msgspec.Struct, frozen=True):
    """Rates between two readings. ``activity`` is the later reading; all else is per second.

    ``latency_s``: mean time to the first byte of an answer; None without answers.
    ``restarted``: the proxy was restarted in between, and only its work since then is counted.
    """

    interval_s: float
    restarted: bool
    sources: BySource
    datasets: dict[str, BySource]
    mounts: dict[str, BySource]
    latency_s: float | None
    store_calls: float
    peer_received_bytes: float
    peer_sent_bytes: float
    activity: NodeActivity

    @property
    def total(self) -> Reads:
        return total(self.sources)


def total(sources: BySource) -> Reads:
    found = Reads()
    for reads in sources.values():
        found += reads
    return found


def rates_between(before: NodeActivity, after: NodeActivity, interval_s: float) -> Rates:
    restarted = _is_another(before, after)
    if restarted:
        before = NodeActivity()
    datasets = _each(before.datasets, after.datasets, interval_s)
    sources = {source: Reads() for source in SOURCES}
    for by_source in datasets.values():
        for source, reads in by_source.items():
            sources[source] = sources.get(source, Reads()) + reads
    first = _difference(before.first_byte, after.first_byte)
    received = after.peer_received_bytes - before.peer_received_bytes
    return Rates(
        interval_s=interval_s,
        restarted=restarted,
        sources=sources,
        datasets=datasets,
        mounts=_each(before.mounts, after.mounts, interval_s),
        latency_s=first.seconds / first.count if first.count else None,
        store_calls=_difference(before.store, after.store).count / interval_s,
        peer_received_bytes=max(0.0, received) / interval_s,
        peer_sent_bytes=max(0.0, after.peer_sent_bytes - before.peer_sent_bytes) / interval_s,
        activity=after,
    )


def _is_another(before: NodeActivity, after: NodeActivity) -> bool:
    """Whether the proxy was restarted: its start time changed, or its sums went back."""
    if before.began_s and after.began_s:
        return before.began_s != after.began_s
    then, now = before.by_source(), after.by_source()
    return any(now[source].reads < then[source].reads for source in SOURCES)


def _difference(before: Timed, after: Timed) -> Timed:
    return Timed(max(0.0, after.count - before.count), max(0.0, after.seconds - before.seconds))


def _each(
    before: dict[str, BySource], after: dict[str, BySource], interval_s: float
) -> dict[str, BySource]:
    """Rates for each name, by source. A mount that was made again at its path starts at zero."""
    return {
        name: {
            source: _rate(before.get(name, {}).get(source, Reads()), reads, interval_s)
            for source, reads in sources.items()
        }
        for name, sources in after.items()
    }


def _rate(before: Reads, after: Reads, interval_s: float) -> Reads:
    if after.reads < before.reads or after.read_bytes < before.read_bytes:
        before = Reads()
    return Reads(
        (after.reads - before.reads) / interval_s,
        (after.read_bytes - before.read_bytes) / interval_s,
    )


TIMEOUT_S = 5.0


def look(url: str, token: str | None, *, timeout_s: float = TIMEOUT_S) -> NodeActivity:
    """Returns the counters of a proxy. Raises: Unavailable, Denied (it needs another token)."""
    with closing(ControlClient(url, token)) as calls:
        answer = calls.ask("GET", "/metrics", timeout_s=timeout_s)
    if answer.status in (401, 403):
        raise Denied(f"{url}: the proxy needs a token: put it into LODEFS_TOKEN")
    if answer.status != 200:
        raise Unavailable(f"{url}: the proxy answers {answer.status} to /metrics")
    try:
        families = list(
            text_string_to_metric_families(bytes(answer.body).decode("utf-8", "replace"))
        )
    except ValueError as error:
        raise Unavailable(
            f"{url}: /metrics is not in the text format of Prometheus: {error}"
        ) from error
    return activity_of(sample for family in families for sample in family.samples)


class Watcher:
    """Gives the rates since its last reading, each time it is asked."""

    def __init__(
        self, look: Callable[[], NodeActivity], *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Takes the first reading. Raises what ``look`` raises."""
        self._look = look
        self._clock_s = clock_s
        self._last = look()
        self._last_s = clock_s()

    def next(self) -> Rates | None:
        """Returns the rates since the last reading that succeeded. None if the proxy does not
        answer now; it may answer next time. Raises: Denied."""
        try:
            found = self._look()
        except Unavailable:
            return None
        now_s = self._clock_s()
        rates = rates_between(self._last, found, max(now_s - self._last_s, 1e-3))
        self._last, self._last_s = found, now_s
        return rates
