"""The picture of ratios."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from loadtests import headline
from loadtests.bench import mountmeasures
from loadtests.comparison import Comparison, Measure
from loadtests.picture import Group, Panel, picture, times

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
TICKS = (0, 0.5, 1.0)


def bars(text: str, series: int) -> list[ET.Element]:
    """The rectangles of one series; the first is the legend's."""
    root = ET.fromstring(text)
    return [r for r in root.iter(f"{SVG}rect") if r.get("class") == f"s{series}"]


def texts(text: str) -> list[str | None]:
    """All texts of the picture."""
    return [found.text for found in ET.fromstring(text).iter(f"{SVG}text")]


def test_lengths_are_in_proportion() -> None:
    """A bar is as long as its ratio, and one beyond the scale ends there and says so."""
    groups = [Group("a", [0.25]), Group("b", [0.5]), Group("c", [22.0])]
    text = picture(["one"], [Panel("title", "", groups, 1.0, TICKS)])
    _, first, second, third = (float(bar.get("width", "")) for bar in bars(text, 0))
    assert second == pytest.approx(2 * first, abs=0.2)
    assert third == pytest.approx(4 * first, abs=0.4)
    assert {"0.25x", "0.50x", "» 22x"} <= set(texts(text))


def test_series_without_a_figure() -> None:
    """Where a series has no figure there is no bar."""
    text = picture(["one", "two"], [Panel("t", "", [Group("a", [1.0, None])], 1.0, TICKS)])
    assert len(bars(text, 0)) == 2
    assert len(bars(text, 1)) == 1


def test_markup_in_names() -> None:
    """Names with the signs of XML are shown as they are."""
    text = picture(["<b> & co"], [Panel("a < b", "&amp;", [Group('"q"', [1.0])], 1.0, TICKS)])
    assert {"<b> & co", "a < b", "&amp;", '"q"'} <= set(texts(text))


def test_light_and_dark() -> None:
    """The picture carries colours for both schemes and paints no background."""
    text = picture(["one"], [Panel("t", "", [], 1.0, TICKS)])
    assert "prefers-color-scheme:dark" in text
    assert len(bars(text, 0)) == len(list(ET.fromstring(text).iter(f"{SVG}rect"))) == 1


def test_headline() -> None:
    """The picture of README.md is drawn from ratios that docs/benchmarks.md has."""
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    for ratio in (*headline.OTHERS, *headline.DISK):
        assert ratio.said in page
        assert ratio.value in map(float, re.findall(r"([\d.]+)x", ratio.said))
    assert (ROOT / "docs" / "figures.svg").read_text() == headline.drawn()


def test_too_many_series() -> None:
    """More series than colours are refused."""
    with pytest.raises(ValueError, match="5 series"):
        picture(list("abcde"), [])


@pytest.mark.parametrize(
    ("value", "text"), [(0.013, "0.01x"), (0.95, "0.95x"), (3.14, "3.1x"), (1234, "1,234x")]
)
def test_times(value: float, text: str) -> None:
    """A bar's figure has as many digits as matter."""
    assert times(value) == text


def test_picture_of_the_comparison() -> None:
    """The picture of a comparison has a bar for each side's ratio to the local disk, and cold to
    rclone's, and leaves out what it has no label for."""
    result = Comparison("mount")
    for state in ("warm", "again", "cold"):
        for side, value in {"native": 100.0, "lodefs": 90.0, "rclone": 30.0, "x&y": 50.0}.items():
            if (state, side) != ("cold", "native"):
                result.see(Measure("sequential_read", state, "MB/s"), side, value)
                result.see(Measure("unlabelled", state, "MB/s"), side, value)
    text = mountmeasures.drawn(result)
    assert texts(text).count("0.90x") == 2
    assert texts(text).count("0.50x") == 2
    assert texts(text).count("3.0x") == 1
    assert texts(text).count("sequential read") == 2
    assert texts(text).count("sequential read again, from the page cache") == 1
    assert "unlabelled" not in text
