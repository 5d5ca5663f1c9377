"""Compares the ratios of a benchmark with those of an earlier run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtests.errors import LoadtestError
from loadtests.results import Result, Row

WORSE_MAX = 0.10  # for a ratio: on a quiet machine, runs of one version differ by less
RATIO_UNITS = ("x", "")


@dataclass(frozen=True, slots=True)
class Change:
    """A ratio that both runs have. ``times``: how many times as good the new one is."""

    benchmark: str
    what: str
    before: float
    now: float
    times: float

    @property
    def is_worse(self) -> bool:
        """Whether it is worse by more than runs of one version differ."""
        return self.times < 1 - WORSE_MAX

    def __str__(self) -> str:
        verdict = "WORSE" if self.is_worse else "ok"
        return (
            f"  {verdict:5}  {self.benchmark}: {self.what}: "
            f"{self.before:.4g} before, {self.now:.4g} now"
        )


def read_results(path: Path) -> list[Result]:
    """The output of ``./run bench --json``. Raises: LoadtestError for anything else."""
    try:
        found = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        return [Result(one["name"], [_row(row) for row in one["rows"]]) for one in found]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadtestError(f"{path} is no output of ./run bench --json: {error!r}") from error


def _row(row: dict[str, object]) -> Row:
    fields = {name: row[name] for name in ("what", "value", "unit", "at_least", "at_most")}
    return Row(**fields)  # type: ignore[arg-type]  # as Result.json wrote them


def changes(before: Iterable[Result], now: Sequence[Result]) -> list[Change]:
    """The ratios that both runs have. Only rows without a unit of their own, of which something is
    asked: figures in bytes and seconds are those of a machine, and a row of which nothing is asked
    does not say which way is better."""
    old = {(one.name, row.what): row for one in before for row in one.rows}
    found = []
    for one in now:
        for row in one.rows:
            was = old.get((one.name, row.what))
            if was is None or row.unit not in RATIO_UNITS or not row.asked:
                continue
            found.append(Change(one.name, row.what, was.value, row.value, _times(was, row)))
    return found


def _times(was: Row, row: Row) -> float:
    """How many times as good a row is as before; 1 if both are zero."""
    better, worse = (row.value, was.value) if row.at_least is not None else (was.value, row.value)
    if better == worse:
        return 1.0
    return better / worse if worse > 0 else float("inf")


def tell(found: Sequence[Change]) -> int:
    """Prints the changes. Returns 1 if a ratio got worse, or if there is none to compare."""
    print("== compared" if found else "no ratio is in both runs", file=sys.stderr)
    for change in found:
        print(change, file=sys.stderr)
    return int(not found or any(change.is_worse for change in found))
