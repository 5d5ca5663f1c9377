"""The pictures of dashboards: drawn of figures, whatever their names and gaps."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from grafana.boards import BOARDS
from loadtests.dashboards import figures, pictures
from loadtests.dashboards.figures import BoardFigures, PanelFigures, Series

GRAFANA = Path(__file__).parents[2] / "grafana"
NAME = "<b>\"two\" & 'more'</b>"
LINES = [Series(NAME, [(0.0, 1.0), (2.0, 3.0)]), Series("b", [(0.0, 5.0), (4.0, 2.0)])]


def test_a_picture_shows_what_was_measured(tmp_path: Path) -> None:
    """Each look is drawn, names stay text, and a panel without data says so."""
    looks = ["lines", "stacked", "table", "figure"]
    panels = [PanelFigures(f"{NAME} {look}", "Bps", look, 6, LINES) for look in looks]
    panels.append(PanelFigures("nothing", "s", "figure", 6, []))
    path = tmp_path / "figures.json"
    figures.write(path, [BoardFigures("lodefs-x", NAME, [("row", panels)])])
    assert pictures.main([str(path), str(tmp_path / "out")]) == 0
    root = ET.fromstring((tmp_path / "out/lodefs-x.svg").read_text())
    texts = ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {f"{NAME} {look}" for look in looks} <= set(texts)
    assert "no data" in texts and "3 B/s" in texts
    paths = [one.get("d") for one in root.iter("{http://www.w3.org/2000/svg}path")]
    assert len(paths) == 2 * (3 + len(LINES))


def test_stacked_lines_are_sums() -> None:
    """Each is added to those before it, at the times that both have."""
    first, second = pictures.stacked(LINES)
    assert first.points == LINES[0].points
    assert second.points == [(0.0, 6.0), (4.0, 2.0)]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.986, "percentunit", "98.6 %"),
        (0.0045, "s", "4.5 ms"),
        (3 << 30, "bytes", "3 GiB"),
        (1530, "short", "1.53 k"),
        (12.0, "reqps", "12 /s"),
        (None, "s", "no data"),
    ],
)
def test_units(value: float | None, unit: str, text: str) -> None:
    """A value is shown with its unit, in three digits."""
    assert pictures.shown(value, unit) == text


def test_each_dashboard_has_its_picture() -> None:
    """The README shows one of each."""
    said = (GRAFANA / "README.md").read_text()
    for board in BOARDS:
        assert f"(pictures/{board.uid}.svg)" in said
        assert (GRAFANA / "pictures" / f"{board.uid}.svg").stat().st_size < 100_000
