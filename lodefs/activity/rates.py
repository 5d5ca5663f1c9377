"""Rates: what happened between two looks at a proxy, which may have been restarted meanwhile."""

from __future__ import annotations

import msgspec

from lodefs.activity.node_activity import SOURCES, BySource, NodeActivity, Reads, Timed


class Rates(msgspec.Struct, frozen=True):
    """Between two looks. All but ``activity``, which is the later look, is for each second.

    ``latency_s``: the mean time until the first byte of an answer; None: there was none.
    ``restarted``: the proxy began anew meanwhile, and only what it did since is counted.
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
        """Of all sources."""
        return total(self.sources)


def total(sources: BySource) -> Reads:
    """The sum of all sources."""
    found = Reads()
    for reads in sources.values():
        found += reads
    return found


def rates_between(before: NodeActivity, after: NodeActivity, interval_s: float) -> Rates:
    """The rates of ``interval_s`` seconds."""
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
    """Whether the proxy was restarted: it began at another time, or its sums went back."""
    if before.began_s and after.began_s:
        return before.began_s != after.began_s
    then, now = before.by_source(), after.by_source()
    return any(now[source].reads < then[source].reads for source in SOURCES)


def _difference(before: Timed, after: Timed) -> Timed:
    return Timed(max(0.0, after.count - before.count), max(0.0, after.seconds - before.seconds))


def _each(
    before: dict[str, BySource], after: dict[str, BySource], interval_s: float
) -> dict[str, BySource]:
    """For each name, by source. A mount that was made anew at the same place begins at zero."""
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
