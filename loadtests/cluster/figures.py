"""The results of a run: what readers saw, what the origin sent, ratios, and verdicts. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtests.cluster.counting import Counts, Sent, repeated_bytes
from loadtests.cluster.timeline import Timeline
from loadtests.results import Result

PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
TOLD_MAX = 5

# Every figure that a scenario may ask something of (with _max or _min behind it): unit, meaning.
FIGURES: dict[str, tuple[str, str]] = {
    "origin_egress_ratio": ("x", "bytes of bodies that S3 sent / bytes of the dataset"),
    "reads_failed": ("", "reads that gave no bytes: an error, a broken answer, or too late"),
    "bytes_wrong": ("B", "bytes of reads whose BLAKE3 is not that of what was pushed"),
    "seconds": ("s", "from the first read to the end of the last, all epochs"),
    "p50_s": ("s", "of a read, from request to last byte"),
    "p95_s": ("s", "the same"),
    "p99_s": ("s", "the same"),
    "longest_s": ("s", "the longest read"),
    "epoch_ratio": ("x", "seconds / seconds of the same run undisturbed"),
    "p50_speedup": ("x", "p50 of reading S3 directly / p50"),
    "p95_speedup": ("x", "the same of p95"),
    "p99_speedup": ("x", "the same of p99"),
    "cached_reads_failed": ("", "of reads of cached files while S3 was out"),
    "cached_p99_s": ("s", "of the same"),
    "cold_longest_s": ("s", "longest read of files that were not cached when S3 went out"),
    "events_missed": ("", "events that were not due before all was read"),
    "peer_rate_ratio": ("x", "median rate of reads from a peer's cache / curl from nginx"),
}


@dataclass(slots=True)
class Seen:
    """What readers saw. ``latencies_s``: of successful reads, from request to last byte."""

    reads: int = 0
    size_bytes: int = 0
    failed: int = 0
    wrong_bytes: int = 0
    retried: int = 0
    latencies_s: list[float] = field(default_factory=list)
    told: list[str] = field(default_factory=list)  # the first errors

    def add(self, other: Seen) -> None:
        """Adds the results of another reader."""
        for name in ("reads", "size_bytes", "failed", "wrong_bytes", "retried"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.latencies_s += other.latencies_s
        self.told = (self.told + other.told)[:TOLD_MAX]


@dataclass(slots=True)
class Outcome:
    """One run of a scenario: ``epochs_s`` in turn, and whatever figures its kind has more."""

    dataset_bytes: int
    nodes: int
    seen: Seen = field(default_factory=Seen)
    egress: Counts = field(default_factory=Counts)
    epochs_s: list[float] = field(default_factory=list)
    more: dict[str, float] = field(default_factory=dict)
    statuses: list[dict[str, Any]] = field(default_factory=list)  # what nodes say of themselves
    timeline: Timeline = field(default_factory=Timeline)
    repeated_bytes: int = 0  # of packs, sent by the origin not for the first time
    egress_by_client: dict[str, int] = field(default_factory=dict)  # by address

    @property
    def seconds(self) -> float:
        """The reads of all epochs."""
        return sum(self.epochs_s)

    def take_egress(self, counts: Counts, bodies: Sequence[Sent]) -> None:
        """What the origin sent, by kind, by client, and how much of it again."""
        self.egress = counts
        self.repeated_bytes = repeated_bytes(bodies)
        for sent in bodies:
            self.egress_by_client[sent.client] = (
                self.egress_by_client.get(sent.client, 0) + sent.size_bytes
            )

    @property
    def egress_ratio(self) -> float:
        """Bytes that the origin sent per byte of the dataset."""
        return self.egress.total_bytes / self.dataset_bytes

    def figures(self) -> dict[str, float]:
        """The results by the names of FIGURES that need no other run."""
        latencies = sorted(self.seen.latencies_s)
        found = {
            "origin_egress_ratio": self.egress_ratio,
            "reads_failed": self.seen.failed,
            "bytes_wrong": self.seen.wrong_bytes,
            "seconds": self.seconds,
        }
        if latencies:
            found |= {f"{name}_s": at(latencies, share) for name, share in PERCENTILES.items()}
            found["longest_s"] = latencies[-1]
        return found | self.more

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        latencies = sorted(self.seen.latencies_s)
        return {
            "origin_egress_ratio": round(self.egress_ratio, 5),
            "origin_egress_bytes": self.egress.size_bytes,
            "origin_requests": self.egress.requests,
            "origin_repeated_bytes": self.repeated_bytes,
            "origin_bytes_by_client": dict(sorted(self.egress_by_client.items())),
            "reads": self.seen.reads,
            "read_bytes": self.seen.size_bytes,
            "reads_failed": self.seen.failed,
            "reads_retried": self.seen.retried,
            "bytes_wrong": self.seen.wrong_bytes,
            "seconds": round(self.seconds, 3),
            "epochs_s": [round(each, 3) for each in self.epochs_s],
            "read_latency_s": {
                name: round(at(latencies, share), 6) if latencies else None
                for name, share in PERCENTILES.items()
            },
            "errors": self.seen.told,
            **{name: round(value, 5) for name, value in self.more.items()},
        }


def at(ordered: Sequence[float], share: float) -> float:
    """The percentile of sorted values by nearest rank: the least that ``share`` of them are not
    above. ValueError for no values."""
    if not ordered:
        raise ValueError("no values")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def compared(ours: Outcome, theirs: Outcome, kind: str) -> dict[str, float]:
    """The results that are ratios to another run: ``undisturbed`` or ``direct``."""
    mine, other = ours.figures(), theirs.figures()
    if kind == "undisturbed":
        return {"epoch_ratio": mine["seconds"] / other["seconds"]}
    return {
        f"{name}_speedup": other[f"{name}_s"] / mine[f"{name}_s"]
        for name in PERCENTILES
        if f"{name}_s" in mine and f"{name}_s" in other
    }


def report(
    name: str,
    title: str,
    figures: Mapping[str, float],
    asked: Mapping[str, tuple[float | None, float | None]],
) -> Result:
    """A table of figures with what is asked (at least, at most). A figure that is asked for and is
    not there falls short: nothing was read."""
    result = Result(f"{name}: {title}")
    for figure, (unit, _) in FIGURES.items():
        at_least, at_most = asked.get(figure, (None, None))
        if figure in figures or figure in asked:
            value = figures.get(figure, math.nan)
            result.add(figure, value, unit, at_least=at_least, at_most=at_most)
    return result


def as_json(
    name: str, outcome: Outcome, others: Mapping[str, Outcome], result: Result
) -> dict[str, Any]:
    """The one object that ``--json`` prints."""
    asserted = [
        {"figure": row.what, "value": None if math.isnan(row.value) else row.value,
         "at_least": row.at_least, "at_most": row.at_most, "ok": row.verdict == "ok"}
        for row in result.rows if row.verdict
    ]  # fmt: skip
    there = {row.what: row.value for row in result.rows if not math.isnan(row.value)}
    ratios = {what: value for what, value in there.items() if what.endswith(("_speedup", "_ratio"))}
    return {
        "scenario": name,
        "nodes": outcome.nodes,
        "dataset_bytes": outcome.dataset_bytes,
        **outcome.as_dict(),
        **ratios,
        "ok": all(each["ok"] for each in asserted),
        "asserted": asserted,
        "compared": {kind: other.as_dict() for kind, other in others.items()},
        "node_status": outcome.statuses,
        "timeline": outcome.timeline.rows,
    }


def dumped(found: Mapping[str, Any]) -> str:
    """The results as one line."""
    return json.dumps(found)
