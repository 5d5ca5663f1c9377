"""Rates of nodes by the second."""

from __future__ import annotations

from typing import Any

from loadtests.cluster.timeline import Timeline


def statuses(*sent: int) -> list[dict[str, Any]]:
    """Nodes that have sent so many MB."""
    nothing = {"peer_fetched_bytes": 0, "store_fetched_bytes": 0}
    return [
        {"number": number, "node": {"peer_sent_bytes": each * 10**6, **nothing}}
        for number, each in enumerate(sent)
    ]


def test_rates_are_those_between_two_looks() -> None:
    """At most once a second, and only of nodes that answered both times."""
    timeline = Timeline()
    timeline.look(5.0, lambda: statuses(10, 20, 30))
    timeline.look(5.5, lambda: statuses(90, 90, 90))
    timeline.look(7.0, lambda: statuses(40, 20))
    timeline.look(8.5, lambda: [*statuses(40), {"number": 1}])
    assert timeline.rows == [
        {"at_s": 2.0, "up": [15, 0], "down": [0, 0], "s3": [0, 0]},
        {"at_s": 3.5, "up": [0], "down": [0], "s3": [0]},
    ]
    assert timeline.lines()[0].split() == [
        "2.0",
        "s",
        "up",
        "15",
        "0",
        "down",
        "0",
        "0",
        "s3",
        "0",
        "0",
    ]
