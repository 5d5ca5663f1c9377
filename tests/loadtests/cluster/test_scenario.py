"""Scenarios: every file of loadtests/scenarios/ is one, and mistakes are named."""

from __future__ import annotations

import pytest

from loadtests.cluster import scenario
from loadtests.cluster.scenario import Changes, assertions, expanded, parse
from loadtests.errors import LoadtestError

SMALL = """
title = "small"
[[dataset]]
name = "a"
files = 2
size = "1MiB"
[reading]
pattern = "everything"
[assert]
origin_egress_ratio_max = 1.05
p50_speedup_min = 3
[quick.reading]
epochs = 2
[[quick.dataset]]
name = "a"
files = 1
size = 5
"""


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", scenario.names())
def test_every_file_is_a_scenario(name: str, quick: bool) -> None:
    """All scenarios that come with lodefs are right, also for four nodes, and ask for something."""
    found = scenario.load(name, Changes(nodes=4, quick=quick))
    assert found.nodes.count == 4
    asked = {each.figure for each in assertions(found)}
    assert {"reads_failed", "bytes_wrong"} <= asked


def test_what_is_asked() -> None:
    """The end of a name says on which side of the value the figure is to be."""
    most, least = assertions(parse(SMALL, Changes()))
    assert (most.figure, most.at_least, most.at_most) == ("origin_egress_ratio", None, 1.05)
    assert (least.figure, least.at_least, least.at_most) == ("p50_speedup", 3, None)


def test_command_line_and_quick_change_a_scenario() -> None:
    """Quick tables lie over the file's, and the command line's over both."""
    plain = parse(SMALL, Changes())
    quick = parse(SMALL, Changes(nodes=3, quick=True, more={"reading": {"via": "mount"}}))
    assert (plain.nodes.count, plain.reading.epochs, plain.reading.via) == (8, 1, "proxy")
    assert (quick.nodes.count, quick.reading.epochs, quick.reading.via) == (3, 2, "mount")
    assert quick.reading.pattern == "everything"
    assert [group.size_bytes for group in quick.groups] == [5]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (SMALL.replace("[reading]", "[reading]\nspeed = 3"), "speed"),
        (SMALL.replace("everything", "nothing"), "pattern"),
        (SMALL.replace("p50_speedup_min", "p51_speedup_min"), "p51_speedup_min"),
        (SMALL.replace("p50_speedup_min", "p50_speedup"), "p50_speedup"),
        (SMALL.replace('"1MiB"', '"1 elephant"'), "1 elephant"),
        (SMALL.replace("[reading]", '[reading]\ngroups = ["b"]'), "b"),
        (SMALL + '[[events]]\ndo = "kill"\nat = 0.5\nnode = 8\n', "node 8"),
        (SMALL + "[nodes]\ncount = 2\nlate = 2\n", "late"),
        ("title = ", "Invalid"),
    ],
)
def test_mistakes_are_named(wrong: str, told: str) -> None:
    """A key, value, figure, node or group of files that there is not is refused by its name."""
    with pytest.raises(LoadtestError, match=told):
        parse(wrong, Changes(), "mine")


def test_an_unknown_name_tells_the_known_ones() -> None:
    """A scenario that there is not is answered with the list."""
    with pytest.raises(LoadtestError, match="cold-read"):
        scenario.load("warm-read")


def test_events_of_each_node() -> None:
    """An event of no node becomes one of each, in even steps, in order with the others."""
    text = SMALL + (
        "[nodes]\ncount = 4\nlate = 1\n"
        '[[events]]\ndo = "restart"\nat = 0.2\n'
        '[[events]]\ndo = "join"\nat = 0.3\n'
        '[[events]]\ndo = "part"\nat = 0\n'
    )
    found = expanded(parse(text, Changes()))
    assert [(event.do, event.node) for event in found] == [
        ("part", -1), ("restart", 0), ("join", 3), ("restart", 1), ("restart", 2), ("restart", 3),
    ]  # fmt: skip
    assert [event.at for event in found] == pytest.approx([0, 0.2, 0.3, 0.4, 0.6, 0.8])
    assert found[0].groups == [[0, 2], [1, 3]]
