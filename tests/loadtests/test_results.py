"""Figures, ratios and what is asked of them."""

from __future__ import annotations

import json

import pytest

from loadtests.comparison import Ask, Comparison, Measure
from loadtests.results import Result, Row

SPEED = Measure("sequential", "warm", "MB/s")
DELAY = Measure("first byte", "cold", "ms")


@pytest.fixture
def comparison() -> Comparison:
    """Three sides, one measure where more is better and one where less is."""
    result = Comparison(
        "mount",
        asks={
            ("sequential", "warm"): Ask({"native": 0.9, "rclone": 3}, at_least=100),
            ("first byte", "cold"): Ask(at_most=10),
        },
    )
    for side, speeds in {"native": (200, 1), "lodefs": (190,), "rclone": (50, 60, 90)}.items():
        for speed in speeds:
            result.see(SPEED, side, speed)
    result.see(DELAY, "lodefs", 20.0)
    result.see(DELAY, "rclone", 30.0)
    result.see(DELAY, "peer", 5.0)
    return result


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (Row("a", 1, "x", at_least=1), "ok"),
        (Row("a", 0.99, "x", at_least=1), "SHORT"),
        (Row("a", 1, "s", at_most=1), "ok"),
        (Row("a", 1.01, "s", at_most=1), "SHORT"),
        (Row("a", 1, "s"), ""),
    ],
)
def test_verdict(row: Row, verdict: str) -> None:
    """A figure at the bound reaches it, and one that nothing is asked of has no verdict."""
    assert row.verdict == verdict


def test_ratio_to_the_best_peer() -> None:
    """The ratio is to the fastest peer, which the row names."""
    result = Result("push")
    result.ratio("lodefs", 30.0, {"slow": 5.0, "fast": 20.0}, at_least=2)
    (row,) = result.rows
    assert (row.what, row.value, row.verdict) == ("lodefs / fast", 1.5, "SHORT")


def test_json_holds_what_the_table_shows() -> None:
    """A result's JSON has every row with its verdict, and the notes."""
    result = Result("push", notes=["versions"])
    result.add("memory", 301, "MiB", at_most=300)
    decoded = json.loads(result.json())
    assert decoded["notes"] == ["versions"]
    assert decoded["rows"][0]["verdict"] == "SHORT"
    assert "SHORT" in result.table()


def test_figure_is_the_median(comparison: Comparison) -> None:
    """Several figures of a side become their median; a side not measured has none."""
    assert comparison.figure(SPEED, "rclone") == 60
    assert comparison.figure(SPEED, "native") == 100.5
    assert comparison.figure(SPEED, "peer") is None


def test_times_as_fast(comparison: Comparison) -> None:
    """More is better in a rate, less in a time; without both figures there is no ratio."""
    assert comparison.times(SPEED, "lodefs", "rclone") == pytest.approx(190 / 60)
    assert comparison.times(DELAY, "lodefs", "rclone") == pytest.approx(1.5)
    assert comparison.times(DELAY, "lodefs", "native") is None


def test_rows_of_a_comparison(comparison: Comparison) -> None:
    """Every figure and ratio becomes one row, with what is asked on lodefs' own alone."""
    comparison.add("aside", 1.0)
    comparison.conclude()
    comparison.conclude()
    verdicts = {row.what: row.verdict for row in comparison.rows}
    assert verdicts == {
        "aside": "",
        "sequential, warm: native": "",
        "sequential, warm: lodefs": "ok",
        "sequential, warm: rclone": "",
        "sequential, warm: lodefs / native": "ok",
        "sequential, warm: lodefs / rclone": "ok",
        "first byte, cold: lodefs": "SHORT",
        "first byte, cold: rclone": "",
        "first byte, cold: peer": "",
        "first byte, cold: lodefs / rclone": "",
    }
    assert len(comparison.rows) == len(verdicts)


def test_table_of_a_comparison(comparison: Comparison) -> None:
    """A measure is one line with all sides; rows of no measure and notes follow."""
    comparison.add("aside", 1.0)
    comparison.notes.append("two processors")
    comparison.conclude()
    title, head, sequential, first, *rest = comparison.table().splitlines()
    assert title == "== mount"
    assert head.split()[:6] == ["state", "unit", "native", "lodefs", "rclone", "peer"]
    assert sequential.endswith("0.9x native, 3x rclone, >= 100  ok")
    assert first.endswith("<= 10                           SHORT")
    assert [line.split()[0] for line in rest] == ["aside", "note:"]
