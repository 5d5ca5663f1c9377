"""The results of a benchmark: rows of values with their targets, as a table and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Row:
    """One value. ``at_least`` or ``at_most``: its target; None: it is only reported."""

    what: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def verdict(self) -> str:
        """``ok``, ``SHORT``, or "" without a target."""
        if self.at_least is not None:
            return "ok" if self.value >= self.at_least else "SHORT"
        if self.at_most is not None:
            return "ok" if self.value <= self.at_most else "SHORT"
        return ""

    @property
    def asked(self) -> str:
        """The target, for people."""
        if self.at_least is not None:
            return f">= {self.at_least:,.6g}"
        return f"<= {self.at_most:,.6g}" if self.at_most is not None else ""


@dataclass(slots=True)
class Result:
    """All results of one benchmark, and the notes that readers need."""

    name: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self,
        what: str,
        value: float,
        unit: str = "",
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> None:
        """Adds one value."""
        self.rows.append(Row(what, value, unit, at_least, at_most))

    def ratio(self, what: str, ours: float, peers: dict[str, float], at_least: float) -> None:
        """Adds our value and those of peers, and the ratio to the best of theirs."""
        best = max(peers, key=lambda name: peers[name])
        self.add(f"{what} / {best}", ours / peers[best], "x", at_least=at_least)

    def table(self) -> str:
        """The rows as aligned text."""
        cells = [
            (row.what, f"{row.value:,.4g}" if row.value < 1000 else f"{row.value:,.0f}",
             row.unit, row.asked, row.verdict)
            for row in self.rows
        ]  # fmt: skip
        widths = [max((len(cell[i]) for cell in cells), default=0) for i in range(5)]
        lines = [f"== {self.name}"]
        for what, value, unit, asked, verdict in cells:
            lines.append(
                f"  {what:<{widths[0]}}  {value:>{widths[1]}} {unit:<{widths[2]}}"
                f"  {asked:<{widths[3]}}  {verdict}".rstrip()
            )
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])

    def json(self) -> str:
        """One JSON object."""
        rows = [{**asdict(row), "verdict": row.verdict} for row in self.rows]
        return json.dumps({"name": self.name, "rows": rows, "notes": self.notes})
