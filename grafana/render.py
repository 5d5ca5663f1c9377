"""``python -m grafana.render``: writes the dashboards as the JSON that Grafana loads.

grafana-foundation-sdk, Grafana's own library for dashboards as code, makes the JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    GridPos,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana.boards import BOARDS
from grafana.panels import Board, Look, Panel, Query, Variable

DASHBOARDS = Path(__file__).parent / "dashboards"
RUNBOOKS = "https://lodefs.dev/docs/runbooks"
TAG = "lodefs"
HEIGHT = 8
FIGURE_HEIGHT = 4
WIDTH = 24
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

_Builder = timeseries.Panel | stat.Panel | table.Panel


def render(board: Board) -> str:
    """The JSON of a dashboard, with a newline at its end."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Source").type("prometheus")
        )
    )
    for variable in board.variables:
        made = made.with_variable(_variable(variable))
    for other in BOARDS:
        if other is not board:
            made = made.link(_link(other.title, f"/d/{other.uid}", keeps_choices=True))
    made = made.link(_link("Runbooks", RUNBOOKS, keeps_choices=False))
    y = 0
    for row in board.rows:
        made = made.with_row(dashboard.Row(row.title).grid_pos(GridPos(h=1, w=WIDTH, x=0, y=y)))
        y += 1
        for panel, place in _placed(row.panels, y):
            made = made.with_panel(_panel(panel).grid_pos(place))
            y = max(y, place.y + place.h)
    return JSONEncoder(sort_keys=True, indent=2).encode(made.build()) + "\n"


def _placed(panels: tuple[Panel, ...], y: int) -> list[tuple[Panel, GridPos]]:
    """Panels from left to right, on as many lines as they need."""
    placed, x, line_height = [], 0, 0
    for panel in panels:
        if x + panel.columns > WIDTH:
            x, y, line_height = 0, y + line_height, 0
        height = FIGURE_HEIGHT if panel.look is Look.FIGURE and panel.columns < 6 else HEIGHT
        placed.append((panel, GridPos(h=height, w=panel.columns, x=x, y=y)))
        x += panel.columns
        line_height = max(line_height, height)
    return placed


def _panel(panel: Panel) -> _Builder:
    made: _Builder
    if panel.look is Look.FIGURE:
        made = stat.Panel()
    elif panel.look is Look.TABLE:
        made = table.Panel().with_transformation(_columns(panel))
    else:
        made = _lines(is_stacked=panel.look is Look.STACKED)
    made = made.title(panel.title).description(panel.description).unit(panel.unit)
    made = made.datasource(_SOURCE)
    for number, query in enumerate(panel.queries):
        made = made.with_target(_target(query, chr(ord("A") + number), panel.look))
    return made


def _lines(*, is_stacked: bool) -> timeseries.Panel:
    legend = (
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(show_legend=True)
    )
    made = timeseries.Panel().legend(legend).min(0).line_width(1)
    if is_stacked:
        stacking = common.StackingConfig().mode(StackingMode.NORMAL)
        made = made.stacking(stacking).fill_opacity(30)
    return made


def _target(query: Query, ref_id: str, look: Look) -> prometheus.Dataquery:
    made = (
        prometheus.Dataquery()
        .datasource(_SOURCE)
        .expr(query.expression)
        .legend_format(query.legend)
        .ref_id(ref_id)
    )
    if look is Look.LINES or look is Look.STACKED:
        return made.range()
    return made.instant().format(
        PromQueryFormat.TABLE if look is Look.TABLE else PromQueryFormat.TIME_SERIES
    )


def _columns(panel: Panel) -> DataTransformerConfig:
    """The columns of a table: the labels that it shows, in order, and the value if it matters."""
    names = {name: number for number, name in enumerate(panel.columns_shown)}
    return DataTransformerConfig(
        id_val="filterFieldsByName",
        options={"include": {"names": [*names, "Value"][: len(names) + (len(names) < 2)]}},
    )


def _variable(variable: Variable) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(_SOURCE)
        .query(f"label_values({variable.metric}, {variable.of_label})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(multi=True)
        .include_all(include_all=True)
        .all_value(".*")
    )


def _link(title: str, url: str, *, keeps_choices: bool) -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink(title)
        .type(DashboardLinkType.LINK)
        .url(url)
        .include_vars(keeps_choices)
        .keep_time(keeps_choices)
    )


def files() -> dict[Path, str]:
    """All dashboards, as their paths and texts."""
    return {DASHBOARDS / f"{board.uid}.json": render(board) for board in BOARDS}


def main(argv: list[str]) -> int:
    """Writes the files; with ``--check``, only checks that they are up to date."""
    wrong: list[str] = []
    for path, text in files().items():
        if not path.exists() or path.read_text() != text:
            wrong.append(path.name)
            if "--check" not in argv:
                path.write_text(text)
    if "--check" in argv and wrong:
        text = f"out of date: {', '.join(wrong)}; python -m grafana.render writes them"
        print(text, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
