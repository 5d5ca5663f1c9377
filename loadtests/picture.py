"""A picture (SVG) of ratios as bars, for a page with a light or a dark background.

SVG 1.1 as text, without a library. Colours follow the reader's scheme by a media query inside the
picture, which browsers also obey in ``<img>``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH = 860
MARGIN = 20
LABEL_WIDTH = 300  # the bars begin to the right of it
VALUE_WIDTH = 64  # room for a bar's value after its end
BAR_HEIGHT = 12
GROUP_GAP = 12
HEADER_HEIGHT = 62
PANEL_GAP = 26
LEGEND_HEIGHT = 30

# light and dark shades of each series, told apart also by those who see no red or green
COLOURS = (("#0969da", "#58a6ff"), ("#bf8700", "#d29922"), ("#6e7781", "#8b949e"),
           ("#8250df", "#bc8cff"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Group:
    """One measure: a label and one ratio for each series, None where there is none."""

    label: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Panel:
    """Groups with one title and scale, from 0 to ``limit``, at which longer bars are cut."""

    title: str
    subtitle: str
    groups: Sequence[Group]
    limit: float
    ticks: Sequence[float]
    reference: float = 1.0


def picture(series: Sequence[str], panels: Sequence[Panel]) -> str:
    """The SVG text. ``series`` names what the values of every group are of, four at most."""
    if len(series) > len(COLOURS):
        raise ValueError(f"{len(series)} series are more than {len(COLOURS)}")
    top = float(MARGIN)
    parts = list(_legend(series, top))
    top += LEGEND_HEIGHT
    for panel in panels:
        parts += _panel(panel, top)
        top += _height(panel) + PANEL_GAP
    height = top - PANEL_GAP + MARGIN
    size = f'width="{WIDTH}" height="{height:g}" viewBox="0 0 {WIDTH} {height:g}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape('; '.join(panel.title for panel in panels))}</title>",
        _style(len(series)),
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _style(count: int) -> str:
    def rules(shade: int, page: str, text: str, faint: str, line: str) -> str:
        bars = "".join(f".s{n}{{fill:{COLOURS[n][shade]}}}" for n in range(count))
        return (
            f"text{{fill:{text}}}.faint{{fill:{faint}}}.grid{{stroke:{line}}}"
            f".one{{stroke:{text}}}.value{{stroke:{page}}}{bars}"
        )

    return (
        "<style>text{font:12px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}"
        ".title{font-size:15px;font-weight:600}.one{stroke-dasharray:4 3}"
        ".value{font-size:10.5px;paint-order:stroke;stroke-width:2px}"
        f"{rules(0, '#ffffff', '#1f2328', '#59636e', '#d1d9e0')}@media(prefers-color-scheme:dark)"
        f"{{{rules(1, '#0d1117', '#e6edf3', '#9198a1', '#3d444d')}}}</style>"
    )


def _legend(series: Sequence[str], top: float) -> Iterator[str]:
    left = float(MARGIN)
    for number, name in enumerate(series):
        yield (
            f'<rect class="s{number}" x="{left:g}" y="{top:g}" width="14" height="14" rx="3"/>'
            f'<text x="{left + 20:g}" y="{top + 11.5:g}">{escape(name)}</text>'
        )
        left += 44 + 7 * len(name)


def _height(panel: Panel) -> float:
    return HEADER_HEIGHT + sum(_group_height(group) for group in panel.groups)


def _group_height(group: Group) -> float:
    return BAR_HEIGHT * len(_present(group)) + GROUP_GAP


def _present(group: Group) -> list[tuple[int, float]]:
    return [(number, value) for number, value in enumerate(group.values) if value is not None]


def _panel(panel: Panel, top: float) -> Iterator[str]:
    yield f'<text class="title" x="{MARGIN}" y="{top + 16:g}">{escape(panel.title)}</text>'
    yield f'<text class="faint" x="{MARGIN}" y="{top + 34:g}">{escape(panel.subtitle)}</text>'
    first, last = top + HEADER_HEIGHT - 6, top + _height(panel) - GROUP_GAP + 4
    for tick in panel.ticks:
        x, kind = _x(tick, panel), "one" if tick == panel.reference else "grid"
        yield f'<line class="{kind}" x1="{x:g}" x2="{x:g}" y1="{first:g}" y2="{last:g}"/>'
        yield (
            f'<text class="faint value" x="{x:g}" y="{first - 5:g}" text-anchor="middle">'
            f"{tick:g}x</text>"
        )
    y = top + HEADER_HEIGHT
    for group in panel.groups:
        yield from _group(group, panel, y)
        y += _group_height(group)


def _group(group: Group, panel: Panel, top: float) -> Iterator[str]:
    bars = _present(group)
    middle = top + BAR_HEIGHT * len(bars) / 2 + 4
    yield (
        f'<text x="{MARGIN + LABEL_WIDTH - 12}" y="{middle:g}" text-anchor="end">'
        f"{escape(group.label)}</text>"
    )
    for place, (number, value) in enumerate(bars):
        y, left = top + place * BAR_HEIGHT, _x(0, panel)
        right = max(_x(min(value, panel.limit), panel), left + 1)
        yield (
            f'<rect class="s{number}" x="{left:g}" y="{y:g}" width="{right - left:.1f}" '
            f'height="{BAR_HEIGHT - 2}" rx="2"/>'
            f'<text class="value" x="{right + 5:.1f}" y="{y + BAR_HEIGHT - 3:g}">'
            f"{'» ' if value > panel.limit else ''}{times(value)}</text>"
        )


def _x(value: float, panel: Panel) -> float:
    left = MARGIN + LABEL_WIDTH
    return left + value / panel.limit * (WIDTH - MARGIN - VALUE_WIDTH - left)


def times(value: float) -> str:
    """The label of a bar, with significant digits only."""
    if value >= 10:
        return f"{value:,.0f}x"
    return f"{value:.1f}x" if value >= 2 else f"{value:.2f}x"
