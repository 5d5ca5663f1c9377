"""``python -m loadtests.dashboards.pictures FIGURES FOLDER``: a picture (SVG) of each dashboard.

Drawn of what `./run loadtest dashboards --figures FIGURES` wrote: real answers of a real
Prometheus, in Grafana's grid, without Grafana. SVG 1.1 as text, without a library.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from loadtests.dashboards import figures
from loadtests.dashboards.figures import BoardFigures, PanelFigures, Series

WIDTH = 1200
COLUMNS = 24
GAP = 8
ROW_HEIGHT = 34
HEIGHT, FIGURE_HEIGHT = 190, 90
TITLE_HEIGHT = 26
AXIS_WIDTH = 72
LEGEND_LINE_HEIGHT = 14
LEGEND_LINES_MAX = 3
POINTS_MAX = 60  # of a line: more are not seen
COLOURS = (
    *("#0969da", "#bf8700", "#8250df", "#1a7f37", "#cf222e", "#0e8a8a", "#bc4c00", "#6e7781"),
)
STYLE = (
    "<style>text{font:11px 'DejaVu Sans',sans-serif;fill:#1f2328}.faint{fill:#59636e}"
    ".row{font-size:14px;font-weight:600}.big{font-size:24px;font-weight:600}"
    ".title{font-weight:600}.card{fill:#fff;stroke:#d1d9e0}.grid{stroke:#e6eaef}</style>"
)
_SCALES = {"bytes": (1024, ("B", "KiB", "MiB", "GiB", "TiB"))}
_SCALES |= {"Bps": _SCALES["bytes"], "binBps": _SCALES["bytes"], "decbytes": _SCALES["bytes"]}


def picture(board: BoardFigures) -> str:
    """The SVG text of a dashboard."""
    parts: list[str] = []
    y = 44.0
    for title, panels in board.rows:
        parts.append(f'<text class="row" x="{GAP}" y="{y + 20:g}">{escape(title)}</text>')
        y += ROW_HEIGHT
        x, line = 0, 0.0
        for panel in panels:
            if x + panel.columns > COLUMNS:
                x, y, line = 0, y + line, 0.0
            height = FIGURE_HEIGHT if panel.look == "figure" and panel.columns < 6 else HEIGHT
            parts += _panel(panel, x * WIDTH / COLUMNS, y, height)
            x += panel.columns
            line = max(line, height)
        y += line
    size = f'width="{WIDTH}" height="{y + GAP:g}" viewBox="0 0 {WIDTH} {y + GAP:g}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(board.title)}</title>",
        STYLE,
        f'<rect width="{WIDTH}" height="{y + GAP:g}" fill="#f6f8fa"/>',
        f'<text class="row" x="{GAP}" y="26">{escape(board.title)}</text>',
    ]
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def _panel(panel: PanelFigures, left: float, top: float, height: float) -> Iterator[str]:
    width = panel.columns * WIDTH / COLUMNS - GAP
    yield f'<svg x="{left + GAP / 2:g}" y="{top:g}" width="{width:g}" height="{height - GAP:g}">'
    yield f'<rect class="card" x=".5" y=".5" width="{width - 1:g}" height="{height - GAP - 1:g}"/>'
    yield f'<text class="title" x="8" y="18">{escape(panel.title)}</text>'
    if panel.look == "figure":
        value = _newest(panel.series[0]) if panel.series else None
        yield f'<text class="big" x="8" y="58">{escape(shown(value, panel.unit))}</text>'
    elif panel.look == "table":
        yield from _table(panel, width, height)
    else:
        yield from _lines(panel, width, height - GAP)
    yield "</svg>"


def _table(panel: PanelFigures, width: float, height: float) -> Iterator[str]:
    for n, one in enumerate(panel.series[: int(height - TITLE_HEIGHT) // 18 - 1]):
        y = TITLE_HEIGHT + 18 * (n + 1)
        name = _cut(one.name, width - 90)
        yield f'<text class="faint" x="8" y="{y}">{escape(name)}</text>'
        value = escape(shown(_newest(one), panel.unit))
        yield f'<text x="{width - 8:g}" y="{y}" text-anchor="end">{value}</text>'


def _lines(panel: PanelFigures, width: float, height: float) -> Iterator[str]:
    series = stacked(panel.series) if panel.look == "stacked" else panel.series
    legend = list(_legend(panel.series, width))
    bottom = height - 12 - LEGEND_LINE_HEIGHT * len(legend)
    most = max((value for one in series for _, value in one.points), default=0.0) or 1.0
    end_s = max((at_s for one in series for at_s, _ in one.points), default=1.0) or 1.0
    right = width - 10
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * (bottom - TITLE_HEIGHT - 8)
        yield f'<path class="grid" d="M{AXIS_WIDTH} {y:.1f}H{right:g}"/>'
        value = escape(shown(share * most, panel.unit))
        at = f'x="{AXIS_WIDTH - 5}" y="{y + 4:.1f}" text-anchor="end"'
        yield f'<text class="faint" {at}>{value}</text>'

    def place(point: tuple[float, float]) -> str:
        x = AXIS_WIDTH + point[0] / end_s * (right - AXIS_WIDTH)
        y = bottom - point[1] / most * (bottom - TITLE_HEIGHT - 8)
        return f"{x:.0f} {y:.1f}"

    order = list(enumerate(series))
    for n, one in reversed(order) if panel.look == "stacked" else order:
        step = -(-len(one.points) // POINTS_MAX) or 1
        points = list(map(place, one.points[::step]))
        colour, fill = COLOURS[n % len(COLOURS)], "none"
        if panel.look == "stacked" and points:  # the sums of fewer are drawn over those of more
            fill = colour
            points = [_at_bottom(points[0], bottom), *points, _at_bottom(points[-1], bottom)]
        path = "L".join(points)
        yield f'<path d="M{path}" fill="{fill}" stroke="{colour}" stroke-width="1.4"/>'
    for n, words in enumerate(legend):
        y = height - 8 - LEGEND_LINE_HEIGHT * (len(legend) - 1 - n)
        yield f'<text class="faint" x="8" y="{y:g}">{words}</text>'


def _at_bottom(point: str, bottom: float) -> str:
    return f"{point.partition(' ')[0]} {bottom:.1f}"


def _legend(series: Sequence[Series], width: float) -> Iterator[str]:
    """Lines of names, each behind a mark of its colour, as far as there is room."""
    line, used, lines = "", 0.0, 1
    for n, one in enumerate(series):
        name = _cut(one.name, width / 2)
        needed = 7.0 * (len(name) + 3)
        if used + needed > width - 16 and line:
            yield line
            line, used, lines = "", 0.0, lines + 1
            if lines > LEGEND_LINES_MAX:
                return
        colour = COLOURS[n % len(COLOURS)]
        line += f'<tspan style="fill:{colour}">■</tspan> {escape(name)}   '
        used += needed
    if line:
        yield line


def stacked(series: Sequence[Series]) -> list[Series]:
    """Stacks series: each value includes the sum of those before it at the same time."""
    sums: dict[float, float] = {}
    made = []
    for one in series:
        points = []
        for at_s, value in one.points:
            sums[at_s] = sums.get(at_s, 0.0) + value
            points.append((at_s, sums[at_s]))
        made.append(Series(one.name, points))
    return made


def _newest(one: Series) -> float | None:
    return one.points[-1][1] if one.points else None


def _cut(name: str, width: float) -> str:
    room = max(4, int(width / 6.6))
    return name if len(name) <= room else name[: room - 1] + "…"


def shown(value: float | None, unit: str) -> str:
    """A value with Grafana's unit, in three digits."""
    if value is None:
        return "no data"
    if unit in ("percentunit", "percent"):
        return f"{value * (100 if unit == 'percentunit' else 1):.3g} %"
    if unit in ("s", "dtdurations"):
        return f"{value * 1000:.3g} ms" if 0 < abs(value) < 1 else f"{value:.3g} s"
    base, names = _SCALES.get(unit, (1000, ("", "k", "M", "G", "T")))
    power = 0
    while abs(value) >= base and power < len(names) - 1:
        value, power = value / base, power + 1
    per_second = "/s" if unit.endswith("ps") else ""
    return f"{value:.3g} {names[power]}{per_second}".rstrip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the pictures; always 0."""
    parser = argparse.ArgumentParser(prog="loadtests.dashboards.pictures", description=__doc__)
    parser.add_argument("figures", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    for board in figures.read(options.figures):
        (options.folder / f"{board.uid}.svg").write_text(picture(board))
    return 0


if __name__ == "__main__":
    sys.exit(main())
