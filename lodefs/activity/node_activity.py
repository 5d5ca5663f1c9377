"""What a proxy has done since it began, as its metrics say (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lodefs.activity.exposition import Sample

SOURCES = ("direct", "cache", "peers", "store")  # where bytes for readers come from, nearest first


class Reads(msgspec.Struct):
    """Reads, and their bytes."""

    reads: float = 0
    read_bytes: float = 0

    def __add__(self, other: Reads) -> Reads:
        return Reads(self.reads + other.reads, self.read_bytes + other.read_bytes)


BySource = dict[str, Reads]


class Timed(msgspec.Struct):
    """How often something was done, and the seconds that it took in all."""

    count: float = 0
    seconds: float = 0.0


class NodeActivity(msgspec.Struct):
    """Sums since the proxy began (``began_s``, Unix), and how things are now.

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
        """Reads of all datasets, by source; each of SOURCES is there."""
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
    """What samples of /metrics say; what they do not say is zero."""
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
    activity.requests_now = max(0, activity.requests_now - 1)  # without the one that asks
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
