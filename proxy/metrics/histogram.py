"""Histograms with fixed buckets, counted as plain numbers and rendered on demand."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence

from lodefs.proxy.metrics.exposition import Exemplar, MetricLine, number

LATENCY_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
AGE_BOUNDS_S = (60.0, 600.0, 3600.0, 6 * 3600.0, 86400.0, 3 * 86400.0, 7 * 86400.0, 30 * 86400.0)


class Histogram:
    """Counts values by buckets; ``bounds`` are their inclusive upper ends. For one thread, or under
    the caller's lock."""

    __slots__ = ("bounds", "buckets", "exemplars", "total")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS_S) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.total = 0.0  # sum of all values
        self.exemplars: dict[int, Exemplar] = {}  # the last one of each bucket

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def add(self, value: float, trace_id: str = "") -> None:
        """Counts one value, of a trace if there is one."""
        bucket = bisect_left(self.bounds, value)
        self.buckets[bucket] += 1
        self.total += value
        if trace_id:
            self.exemplars[bucket] = Exemplar(trace_id, value, time.time())

    def add_all(self, other: Histogram) -> None:
        """Adds the counts of another histogram with the same bounds."""
        for bucket, count in enumerate(other.buckets):
            self.buckets[bucket] += count
        self.total += other.total
        self.exemplars |= other.exemplars

    def samples(self, labels: str = "") -> list[MetricLine]:
        comma = "," if labels else ""
        found: list[MetricLine] = []
        cumulated = 0
        for bucket, (bound, count) in enumerate(
            zip((*self.bounds, float("inf")), self.buckets, strict=True)
        ):
            cumulated += count
            line = f'{labels}{comma}le="{number(bound)}"'
            found.append(MetricLine("_bucket", line, cumulated, self.exemplars.get(bucket)))
        found.append(MetricLine("_count", labels, cumulated))
        found.append(MetricLine("_sum", labels, self.total))
        return found
