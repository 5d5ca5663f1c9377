"""Results of several sides next to each other, and their ratios."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

from loadtests.results import Result, Row

OURS = "lodefs"


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure, the state of caches, and a unit. For seconds, less is better."""

    name: str
    state: str
    unit: str

    @property
    def what(self) -> str:
        """Its name in a row."""
        return f"{self.name}, {self.state}"

    @property
    def less_is_better(self) -> bool:
        """Whether a smaller value is better."""
        return self.unit in ("s", "ms")


@dataclass(frozen=True, slots=True)
class Ask:
    """A target for lodefs: how many times as fast as another side, and a bound."""

    times: Mapping[str, float] = field(default_factory=dict)
    at_least: float | None = None
    at_most: float | None = None


@dataclass(slots=True)
class Comparison(Result):
    """A result with one value for each measure and side: the median of all runs."""

    sides: list[str] = field(default_factory=list)
    against: tuple[str, ...] = ("native", "rclone")
    asks: dict[tuple[str, str], Ask] = field(default_factory=dict)
    _seen: dict[Measure, dict[str, list[float]]] = field(default_factory=dict)

    def see(self, measure: Measure, side: str, value: float) -> None:
        """Adds a value and prints it, since a comparison of mounts takes a quarter of an hour."""
        print(f"{measure.what}: {side} {shown_figure(value)} {measure.unit}", file=sys.stderr)
        if side not in self.sides:
            self.sides.append(side)
        self._seen.setdefault(measure, {}).setdefault(side, []).append(value)

    def measures(self) -> list[Measure]:
        """All measures, in the order of their first values."""
        return list(self._seen)

    def figure(self, measure: Measure, side: str) -> float | None:
        """The median of a side's values; None if it was not measured."""
        values = self._seen.get(measure, {}).get(side)
        return median(values) if values else None

    def times(self, measure: Measure, side: str, other: str) -> float | None:
        """How many times as fast as ``other`` a side is; None if one was not measured."""
        mine, theirs = self.figure(measure, side), self.figure(measure, other)
        if mine is None or theirs is None:
            return None
        if measure.less_is_better:
            mine, theirs = theirs, mine
        return mine / theirs if theirs else None

    def conclude(self) -> None:
        """Makes the rows: every value, every ratio of lodefs, and the targets."""
        for measure in self._seen:
            self.rows += [row for row in self._rows(measure) if row not in self.rows]

    def _rows(self, measure: Measure) -> Iterator[Row]:
        ask = self._ask(measure)
        for side in self.sides:
            value = self.figure(measure, side)
            if value is not None:
                bounds = (ask.at_least, ask.at_most) if side == OURS else (None, None)
                yield Row(f"{measure.what}: {side}", value, measure.unit, *bounds)
        for other in self.against:
            ratio = self.times(measure, OURS, other)
            if ratio is not None:
                what = f"{measure.what}: {OURS} / {other}"
                yield Row(what, ratio, "x", ask.times.get(other))

    def _ask(self, measure: Measure) -> Ask:
        return self.asks.get((measure.name, measure.state), Ask())

    def table(self) -> str:
        """One line for each measure: the value of every side, the ratios, the target."""
        head = ["", "state", "unit", *self.sides, *(f"{OURS} / {name}" for name in self.against)]
        lines = [[*head, "asked", ""]]
        lines += [self._line(measure) for measure in self._seen]
        shown = aligned(lines, left=(0, 1, 2, len(head), len(head) + 1))
        shared = [row for row in self.rows if not self._is_of_a_measure(row)]
        more = Result(self.name, shared, self.notes).table().splitlines()
        return "\n".join([more[0], *(f"  {line}" for line in shown), *more[1:]])

    def _line(self, measure: Measure) -> list[str]:
        ask, rows = self._ask(measure), list(self._rows(measure))
        asked = [f"{times:g}x {other}" for other, times in ask.times.items()]
        asked += [row.asked for row in rows if row.what.endswith(f": {OURS}") and row.asked]
        verdicts = {row.verdict for row in rows}
        verdict = "SHORT" if "SHORT" in verdicts else "ok" if "ok" in verdicts else ""
        return [
            measure.name,
            measure.state,
            measure.unit,
            *(shown_figure(self.figure(measure, side)) for side in self.sides),
            *(shown_times(self.times(measure, OURS, other)) for other in self.against),
            ", ".join(asked),
            verdict,
        ]

    def _is_of_a_measure(self, row: Row) -> bool:
        return any(row.what.startswith(f"{measure.what}: ") for measure in self._seen)


def shown_figure(value: float | None) -> str:
    """A value with about three significant digits; "" for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def shown_times(value: float | None) -> str:
    """A ratio with two decimals below ten, none above."""
    if value is None:
        return ""
    return f"{value:.2f}x" if value < 10 else f"{value:,.0f}x"


def aligned(lines: list[list[str]], *, left: tuple[int, ...]) -> list[str]:
    """Cells of equal width in each column; the named columns are left-aligned, others right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" if number in left else f"{cell:>{width}}"
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
