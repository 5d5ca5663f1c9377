"""Rates as lines: one for each look, under a head."""

from __future__ import annotations

from lodefs.activity.node_activity import SOURCES
from lodefs.activity.rates import Rates
from lodefs.cli.text import size

_COLUMN_CHARS = 10
_COLUMNS = (*SOURCES, "reads/s", "ms", "requests", "fetching")
GONE = "the proxy does not answer"
RESTARTED = "the proxy was restarted"


def head() -> str:
    """Above the lines."""
    return "".join(f"{name:>{_COLUMN_CHARS}}" for name in _COLUMNS)


def line(rates: Rates) -> str:
    """Bytes a second by source; reads a second; the mean time to the first byte; requests that are
    answered and bytes that are fetched now."""
    latency = "-" if rates.latency_s is None else f"{rates.latency_s * 1000:.1f}"
    cells = [
        *(compact(rates.sources[source].read_bytes) for source in SOURCES),
        f"{rates.total.reads:,.0f}",
        latency,
        f"{rates.activity.requests_now:,.0f}",
        compact(rates.activity.fetching_bytes_now),
    ]
    return "".join(f"{cell:>{_COLUMN_CHARS}}" for cell in cells)


def compact(size_bytes: float) -> str:
    """``12.3 MiB``; ``0`` for nothing."""
    return size(int(size_bytes)) if size_bytes >= 1 else "0"


def as_object(rates: Rates | None, time_s: float) -> dict[str, object]:
    """For scripts; all figures are null while the proxy does not answer."""
    if rates is None:
        return dict.fromkeys(_KEYS) | {"time_s": round(time_s, 3), "proxy_answers": False}
    now = rates.activity
    values: dict[str, object] = {
        "time_s": round(time_s, 3),
        "proxy_answers": True,
        "interval_s": round(rates.interval_s, 3),
        "restarted": rates.restarted,
        "reads_per_s": round(rates.total.reads, 3),
        "bytes_per_s": round(rates.total.read_bytes, 1),
        "sources": {
            source: {
                "reads_per_s": round(rates.sources[source].reads, 3),
                "bytes_per_s": round(rates.sources[source].read_bytes, 1),
            }
            for source in SOURCES
        },
        "latency_s": None if rates.latency_s is None else round(rates.latency_s, 6),
        "store_calls_per_s": round(rates.store_calls, 3),
        "peer_received_bytes_per_s": round(rates.peer_received_bytes, 1),
        "peer_sent_bytes_per_s": round(rates.peer_sent_bytes, 1),
        "requests": int(now.requests_now),
        "fetching_bytes": int(now.fetching_bytes_now),
        "waiting_units": int(now.waiting_units_now),
    }
    assert values.keys() == set(_KEYS)
    return values


_KEYS = ("time_s", "proxy_answers", "interval_s", "restarted", "reads_per_s", "bytes_per_s",
         "sources", "latency_s", "store_calls_per_s", "peer_received_bytes_per_s",
         "peer_sent_bytes_per_s", "requests", "fetching_bytes", "waiting_units")  # fmt: skip
