"""The parts of a dashboard, as plain data; grafana/render.py turns them into Grafana's JSON."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

NODES = 'job=~"$job", instance=~"$instance"'  # the selector in every query about nodes
RATE = "[$__rate_interval]"


class Look(Enum):
    """How a panel shows its queries."""

    LINES = "lines"
    STACKED = "stacked"
    FIGURE = "figure"  # the newest value, large
    TABLE = "table"  # the newest values, a row for each series


class Query(NamedTuple):
    """A query of Prometheus, and the names of its series: ``{{label}}`` is a label's value."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """One picture. ``unit``: Grafana's name for it. ``columns``: its width, of 24 in a row.
    ``columns_shown``: the labels that a table shows, in this order."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    look: Look = Look.LINES
    columns: int = 8
    columns_shown: tuple[str, ...] = ()


class Row(NamedTuple):
    """Panels below a heading."""

    title: str
    panels: tuple[Panel, ...]


class Variable(NamedTuple):
    """A choice at the top of a board: the values of a label of a metric's series."""

    name: str
    label: str
    metric: str
    of_label: str


class Board(NamedTuple):
    """A dashboard. ``uid``: its permanent name in links."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    @property
    def panels(self) -> list[Panel]:
        """All panels, in their order."""
        return [panel for row in self.rows for panel in row.panels]


JOB = Variable("job", "Job", "lodefs_build_info", "job")
INSTANCE = Variable("instance", "Node", 'lodefs_build_info{job=~"$job"}', "instance")


def rate(metric: str, by: str = "", more: str = "") -> str:
    """The sum of a counter's rates, by labels. ``more``: further selectors."""
    selectors = f"{NODES}, {more}" if more else NODES
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({metric}{{{selectors}}}{RATE}))"


def quantile(share: float, histogram: str, by: str = "", more: str = "") -> str:
    """A quantile of a classic histogram, by labels."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', labels, more)})"


def quantiles(histogram: str, by: str = "", more: str = "") -> tuple[Query, ...]:
    """Median and 99th percentile."""
    suffix = f" {{{{{by}}}}}" if by else ""
    return (
        Query(quantile(0.5, histogram, by, more), f"median{suffix}"),
        Query(quantile(0.99, histogram, by, more), f"99 %{suffix}"),
    )


def average(summary: str, by: str, more: str) -> str:
    """The mean of a summary or histogram, by labels."""
    return f"{rate(f'{summary}_sum', by, more)} / ({rate(f'{summary}_count', by, more)} > 0)"


def gauge(metric: str, by: str = "", more: str = "") -> str:
    """The sum of a gauge, by labels."""
    selectors = f"{NODES}, {more}" if more else NODES
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} ({metric}{{{selectors}}})"
