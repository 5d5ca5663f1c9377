"""Metrics of Docker's plugin, the mounter and the CSI driver, read from files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lodefs.chunkstore.protocol.figures.component_counts import ComponentFigures, read_newest
from lodefs.proxy.metrics import metric_names as names
from lodefs.proxy.metrics.exposition import Family, MetricLine, label_text, labelled


def component_families(*directories: Path) -> Iterator[Family]:
    """Yields the families of the components that count in directories. Removes files of ended
    ones."""
    found = read_newest(*directories, sweep=True)
    yield labelled(names.COMPONENT_INFO, {(one.component, one.version): 1 for one in found})
    yield labelled(names.COMPONENT_START, {(one.component,): one.started_s for one in found})
    yield Family(names.COMPONENT_REQUESTS, [line for one in found for line in _requests(one)])
    errors = {
        (one.component, operation, error): count
        for one in found
        for operation, calls in one.calls.items()
        for error, count in calls.errors.items()
    }
    yield labelled(names.COMPONENT_ERRORS, errors)
    volumes = {
        (one.component, state): count for one in found for state, count in one.volumes.items()
    }
    yield labelled(names.COMPONENT_VOLUMES, volumes)


def _requests(figures: ComponentFigures) -> Iterator[MetricLine]:
    for operation, calls in figures.calls.items():
        labels = label_text(names.COMPONENT_REQUESTS.labels, (figures.component, operation))
        yield MetricLine("_count", labels, calls.count)
        yield MetricLine("_sum", labels, calls.spent_s)
