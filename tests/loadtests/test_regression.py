"""Comparing two runs of a benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtests.errors import LoadtestError
from loadtests.regression import changes, read_results, tell
from loadtests.results import Result


def run(rate: float, cost: float) -> Result:
    """A run whose two ratios are as given."""
    result = Result("bench")
    result.add("rate / peer", rate, "x", at_least=0.8)
    result.add("cost / peer", cost, "x", at_most=2.0)
    result.add("rate", 100 * rate, "MB/s")
    result.add("only told / peer", rate, "x")
    return result


@pytest.mark.parametrize(
    ("rate", "cost", "worse"),
    [
        (1.0, 1.0, []),
        (0.91, 1.09, []),
        (0.89, 1.0, ["rate / peer"]),
        (2.0, 1.2, ["cost / peer"]),
        (0.0, 0.5, ["rate / peer"]),
    ],
)
def test_worse_by_more_than_a_tenth(rate: float, cost: float, worse: list[str]) -> None:
    """Each ratio in its own direction; figures that are no ratios are those of a machine."""
    found = changes([run(1.0, 1.0)], [run(rate, cost)])
    assert [change.what for change in found] == ["rate / peer", "cost / peer"]
    assert [change.what for change in found if change.is_worse] == worse


def test_nothing_before() -> None:
    """A ratio that was nothing cannot get worse."""
    assert not [one for one in changes([run(0.0, 0.0)], [run(0.0, 0.0)]) if one.is_worse]


def test_reads_what_was_written(tmp_path: Path) -> None:
    """The file is that of ``--json``; anything else is named."""
    path = tmp_path / "old.json"
    path.write_text(run(1.0, 1.0).json() + "\n")
    assert read_results(path)[0].rows == run(1.0, 1.0).rows
    path.write_text(json.dumps({"name": "bench"}))
    with pytest.raises(LoadtestError, match=r"old\.json"):
        read_results(path)


@pytest.mark.parametrize(("now", "code", "said"), [(1.0, 0, "ok"), (0.5, 1, "WORSE")])
def test_what_is_told(capsys: pytest.CaptureFixture[str], now: float, code: int, said: str) -> None:
    """A ratio that is worse is named, and makes the exit code."""
    assert tell(changes([run(1.0, 1.0)], [run(now, 1.0)])) == code
    assert f"{said}" in capsys.readouterr().err


def test_nothing_to_compare() -> None:
    """Runs that have no ratio together prove nothing."""
    assert tell([]) == 1
