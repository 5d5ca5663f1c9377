"""Metrics as rates, as lines and as a screen."""

from __future__ import annotations

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.cells import cell_len

from lodefs.activity.node_activity import (
    NodeActivity,
    Rates,
    Watcher,
    activity_of,
    rates_between,
)
from lodefs.activity.screen import Order, Place, Size, as_object, fit, head, line, screen
from lodefs.chunkstore.errors import Unavailable
from tests.support.lodefs.metrics_text import AWKWARD, Figures

PLACE = Place("unix:/run/lodefs/proxy.sock", "12:30:01")
MIB = 1 << 20


def figures() -> Figures:
    """A proxy that has done something."""
    found = Figures()
    found.datasets = {"vision/a": {"cache": (10, MIB), "store": (5, MIB)}, "b": {"direct": (1, 1)}}
    found.mounts = {"/m": {"cache": (1, 10)}}
    return found


def looked(found: Figures) -> NodeActivity:
    """What is known of it."""
    families = text_string_to_metric_families(found.text())
    return activity_of(sample for family in families for sample in family.samples)


def busy(interval_s: float = 2.0) -> Rates:
    """Rates of a proxy that reads."""
    found = figures()
    before = looked(found)
    found.datasets["vision/a"] = {"cache": (30, 5 * MIB), "store": (25, 3 * MIB)}
    found.datasets["b"] = {"direct": (401, 1)}
    found.mounts["/m"] = {"cache": (3, 30)}
    found.first_byte = (4, 0.2)
    return rates_between(before, looked(found), interval_s)


def test_rates() -> None:
    """The difference of two looks, for each second."""
    found = busy()
    assert found.sources["cache"].read_bytes == 2 * MIB
    assert found.sources["store"].reads == 10
    assert found.datasets["b"]["direct"].reads == 200
    assert found.mounts["/m"]["cache"].read_bytes == 10
    assert found.latency_s == pytest.approx(0.05)
    assert not found.restarted


@pytest.mark.parametrize("began_s", [1000.0, 2000.0])
def test_restart(began_s: float) -> None:
    """Sums that begin anew with the proxy are never a negative rate, also if its beginning is not
    known to have changed."""
    then, now = figures(), figures()
    now.began_s = began_s
    now.datasets = {"vision/a": {"cache": (4, 40)}}
    before = looked(then)
    if began_s == then.began_s:
        before.began_s = 0.0
    found = rates_between(before, looked(now), 1.0)
    assert found.restarted
    assert found.sources["cache"].reads == 4
    assert all(one.reads >= 0 and one.read_bytes >= 0 for one in found.sources.values())


def test_watcher_waits_for_a_proxy() -> None:
    """A look that is not answered is none; the next one counts from the last that was."""
    looks: list[NodeActivity | None] = [NodeActivity(), None, looked(figures())]

    def look() -> NodeActivity:
        found = looks.pop(0)
        if found is None:
            raise Unavailable("gone")
        return found

    times = iter([0.0, 10.0])
    watcher = Watcher(look, clock_s=lambda: next(times))
    assert watcher.next() is None
    rates = watcher.next()
    assert rates is not None and rates.interval_s == 10.0


def test_line() -> None:
    """The cells stand below their heads, for people; the same figures for scripts."""
    shown = line(busy())
    assert len(shown) == len(head()) <= 80
    assert shown.split() == ["0", "2.0", "MiB", "0", "1.0", "MiB", "220", "50.0", "3", "8.0", "MiB"]
    found = as_object(busy(), 7.0)
    assert found["bytes_per_s"] == 3.0 * MIB
    assert as_object(None, 7.0).keys() == found.keys()
    json.dumps(found)


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
@pytest.mark.parametrize("lines", [3, 10, 24, None])
def test_screen_fits(columns: int, lines: int | None) -> None:
    """A screen of any size is never wider or higher, whatever the names are."""
    found = figures()
    found.datasets[AWKWARD] = {"store": (1, 1)}
    found.datasets["日本語" * 40] = {"store": (1, 1)}
    found.mounts = {f"/mnt/{number}": {"cache": (number, number)} for number in range(50)}
    rates = rates_between(NodeActivity(), looked(found), 1.0)
    shown = screen(rates, PLACE, Order.BYTES, Size(columns, lines), "note")
    assert max(cell_len(one) for one in shown) <= columns
    assert lines is None or len(shown) == lines
    assert shown[-1] == "note"
    assert all(character.isprintable() for one in shown for character in one)


def test_screen_shows() -> None:
    """Sources with bars, datasets by what is asked for, mounts, other nodes."""
    shown = screen(busy(), PLACE, Order.BYTES, Size(80, None))
    text = "\n".join(shown)
    assert "2 well, 1 down" in text
    assert [one.split()[0] for one in shown if "█" in one] == ["cache", "store"]
    names = [one.partition(" ")[0] for one in shown]
    assert names.index("vision/a") < names.index("b")
    by_reads = [one.split()[:1] for one in screen(busy(), PLACE, Order.READS, Size(80, None))]
    assert by_reads.index(["b"]) < by_reads.index(["vision/a"])
    assert "/m" in names


def test_narrow_screen_keeps_the_figures() -> None:
    """40 columns have each source and dataset with its bytes."""
    shown = screen(busy(), PLACE, Order.BYTES, Size(40, 24))
    assert any(one.startswith("vision/a") and one.endswith("3.0 MiB") for one in shown)


def test_proxy_that_is_gone() -> None:
    """The screen says that the proxy does not answer."""
    assert "the proxy does not answer" in screen(None, PLACE, Order.NAME, Size(40, 5))


def test_fit() -> None:
    """Wide characters count twice, and what is cut ends in …"""
    assert fit("日本", 4) == "日本"
    assert fit("日本語", 4) == "日…"
    assert fit("abc", 2) == "a…"
