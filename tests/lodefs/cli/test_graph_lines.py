"""Graphs of commits in characters."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lodefs.cli.graph_lines import GraphLines

History = Mapping[str, str]  # each commit, newest first, and the names of its parents


def drawn(history: History) -> list[str]:
    graph = GraphLines()
    lines: list[str] = []
    for commit, parents in history.items():
        first, _, after = graph.commit(commit, list(parents))
        lines += [f"{first} {commit}", *after]
    return lines


@pytest.mark.parametrize(
    ("history", "lines"),
    [
        ({"c": "b", "b": "a", "a": ""}, ["* c", "* b", "* a"]),
        (
            {"m": "bc", "c": "a", "b": "a", "a": ""},
            ["* m", "|\\", "| * c", "* | b", "|/", "* a"],
        ),
        (  # a merge of what is an ancestor of the other side
            {"m": "ba", "b": "a", "a": ""},
            ["* m", "|\\", "* | b", "|/", "* a"],
        ),
        (  # two branches over a third that goes on
            {"m": "bc", "n": "bd", "b": "a", "c": "a", "d": "a", "a": ""},
            [
                "* m",
                "|\\",
                "| | * n",
                "| | |\\",
                "|_|/ /",
                "* | | b",
                "| * | c",
                "|/ /",
                "| * d",
                "|/",
            ],
        ),
        (  # histories without a common beginning
            {"m": "bc", "b": "", "c": "a", "a": ""},
            ["* m", "|\\", "* | b", " /", "* c", "* a"],
        ),
        (
            {"m": "bcd", "d": "", "c": "", "b": ""},
            ["* m", "|\\", "|\\ \\", "| * | d", "|  /", "| * c", "* b"],
        ),
    ],
)
def test_graphs(history: History, lines: list[str]) -> None:
    """Lines of history part at merges, from where they come, and join at their common parent."""
    assert drawn(history)[: len(lines)] == lines
