"""The answers to the queries of all panels in a run, as JSON from which pictures are drawn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from grafana.boards import BOARDS
from grafana.panels import Look, Panel, Query
from loadtests.dashboards import shortened
from loadtests.services.prometheus import Prometheus

POINTS = 120  # of a series
SERIES_MAX = 8  # of a panel, the largest
_LABEL = re.compile(r"\{\{(\w+)\}\}")


class Series(msgspec.Struct, frozen=True):
    """Its name in the legend; seconds since the run began and values."""

    name: str
    points: list[tuple[float, float]]


class PanelFigures(msgspec.Struct, frozen=True):
    """The series of a panel. ``look``: see Look."""

    title: str
    unit: str
    look: str
    columns: int
    series: list[Series]


class BoardFigures(msgspec.Struct, frozen=True):
    """A dashboard's panels, by row."""

    uid: str
    title: str
    rows: list[tuple[str, list[PanelFigures]]]


def taken(server: Prometheus, begin_s: float, end_s: float) -> list[BoardFigures]:
    """What all panels of all dashboards show at a time (Unix)."""
    return [
        BoardFigures(
            board.uid,
            board.title,
            [
                (row.title, [_panel(server, panel, begin_s, end_s) for panel in row.panels])
                for row in board.rows
            ],
        )
        for board in BOARDS
    ]


def _panel(server: Prometheus, panel: Panel, begin_s: float, end_s: float) -> PanelFigures:
    found = [
        one for query in panel.queries for one in _series(server, panel, query, begin_s, end_s)
    ]
    found.sort(key=lambda one: -max((abs(value) for _, value in one.points), default=0.0))
    return PanelFigures(
        panel.title, panel.unit, panel.look.value, panel.columns, found[:SERIES_MAX]
    )


def _series(
    server: Prometheus, panel: Panel, query: Query, begin_s: float, end_s: float
) -> list[Series]:
    asked = shortened.query(query.expression, end_s - begin_s)
    step_s = max((end_s - begin_s) / POINTS, 1.0)
    return [
        Series(_name(panel, query, one["metric"]), _points(one["values"], begin_s))
        for one in server.query_range(asked, begin_s, end_s, step_s)
    ]


def _name(panel: Panel, query: Query, labels: dict[str, str]) -> str:
    if panel.look is Look.TABLE:
        shown = (_shown(name, labels) for name in panel.columns_shown)
        return "  ".join(filter(None, shown)) or query.legend
    return _LABEL.sub(lambda found: _shown(found[1], labels), query.legend) or panel.title


def _shown(label: str, labels: dict[str, str]) -> str:
    """A label's value; of a mountpoint, which lies in the run's own folder, the end."""
    value = labels.get(label, "")
    return "/" + "/".join(Path(value).parts[-2:]) if label == "mountpoint" and value else value


def _points(values: Sequence[Sequence[Any]], begin_s: float) -> list[tuple[float, float]]:
    """Drops values that are not numbers, such as a quantile of nothing."""
    found = ((round(at_s - begin_s, 1), float(text)) for at_s, text in values)
    return [(at_s, float(f"{value:.4g}")) for at_s, value in found if value - value == 0]


def write(path: Path, boards: Sequence[BoardFigures]) -> None:
    """As JSON."""
    path.write_bytes(msgspec.json.encode(boards))


def read(path: Path) -> list[BoardFigures]:
    """Raises: msgspec.ValidationError."""
    return msgspec.json.decode(path.read_bytes(), type=list[BoardFigures])
