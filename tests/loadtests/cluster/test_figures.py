"""Percentiles, ratios and verdicts of a run."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from loadtests.cluster.counting import Counts
from loadtests.cluster.figures import Outcome, Seen, as_json, at, compared, dumped, report

DURATIONS = st.lists(st.floats(0, 1e3), min_size=1)


def outcome(latencies_s: list[float], *, seconds: float = 2.0, sent: int = 0) -> Outcome:
    """A run of two nodes that read 100 bytes."""
    seen = Seen(reads=len(latencies_s), latencies_s=latencies_s)
    return Outcome(100, 2, seen, Counts({"packs": 1}, {"packs": sent}), [seconds])


@given(DURATIONS, st.floats(0.01, 1))
def test_percentile_by_nearest_rank(values: list[float], share: float) -> None:
    """A percentile is one of the values, with at least that share of them not above it, and
    less than that share below it."""
    values.sort()
    found = at(values, share)
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6
    assert sum(value < found for value in values) < share * len(values)


def test_known_percentiles() -> None:
    """Of 1 to 100 the percentiles are their numbers."""
    values = [float(number) for number in range(1, 101)]
    assert [at(values, share) for share in (0.5, 0.95, 0.99, 1)] == [50, 95, 99, 100]


def test_egress_ratio_is_of_all_bodies() -> None:
    """Everything that S3 sent counts, errors and lists too."""
    found = outcome([], sent=100)
    found.egress.add("lists", 1, 3)
    found.egress.add("errors", 2, 2)
    assert found.egress_ratio == 1.05


def test_ratios_to_other_runs() -> None:
    """Slower than undisturbed is above 1; faster than the others is a speedup above 1."""
    ours, theirs = outcome([1.0, 2.0], seconds=3), outcome([4.0, 8.0], seconds=2)
    assert compared(ours, theirs, "undisturbed") == {"epoch_ratio": 1.5}
    speedups = compared(ours, theirs, "direct")
    assert speedups == {"p50_speedup": 4, "p95_speedup": 4, "p99_speedup": 4}


def test_one_object_with_what_is_asked() -> None:
    """The JSON has the figures, each that is asked for with its verdict, and the whole verdict."""
    found = outcome([0.25], sent=110)
    asked = {"origin_egress_ratio": (None, 1.05), "reads_failed": (None, 0.0)}
    result = report("cold", "a title", found.figures(), asked)
    told = json.loads(dumped(as_json("cold", found, {}, result)))
    assert told["origin_egress_ratio"] == 1.1
    assert told["read_latency_s"] == {"p50": 0.25, "p95": 0.25, "p99": 0.25}
    assert (told["reads_failed"], told["bytes_wrong"], told["seconds"]) == (0, 0, 2)
    assert [each["ok"] for each in told["asserted"]] == [False, True]
    assert told["ok"] is False


def test_a_figure_that_is_not_there_falls_short() -> None:
    """Where nothing was read, nothing that is asked of reads is reached, and the JSON is valid."""
    empty = outcome([])
    result = report("cold", "a title", empty.figures(), {"p50_s": (None, 1.0)})
    told = json.loads(dumped(as_json("cold", empty, {}, result)))
    assert told["ok"] is False
    assert told["read_latency_s"] == {"p50": None, "p95": None, "p99": None}


def test_what_readers_saw_adds_up() -> None:
    """Sums and lists of two readers; of their errors the first few."""
    one = Seen(2, 20, 1, 5, 3, [0.1, 0.2], ["a"] * 4)
    one.add(Seen(1, 10, 0, 1, 1, [0.3], ["b"] * 4))
    assert one == Seen(3, 30, 1, 6, 4, [0.1, 0.2, 0.3], [*"aaaab"])
