"""Docker's plugin, the mounter and the CSI driver at one scrape of the node's proxy."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.protocol.figures.component_counts import ComponentCounts
from lodefs.proxy.metrics import exposition
from lodefs.proxy.service.component_families import component_families
from tests.support.proxy.scrape import Samples, labels_of, samples


def scraped(directory: Path) -> Samples:
    return samples(exposition.text(component_families(directory)))


def test_a_component_is_shown_with_all_that_it_counts(tmp_path: Path) -> None:
    """Calls and their time by operation, errors by class, volumes by state, version and start;
    nothing of it once the component has ended."""
    counts = ComponentCounts("docker", ["Mount", "Get"], version="1.2", directories=[tmp_path])
    with closing(counts):
        with suppress(Unavailable), counts.call("Mount"):
            raise Unavailable("x")
        counts.publish({"mounted": 2, "dead": 0})
        found = scraped(tmp_path)

    def value(name: str, **labels: str) -> float:
        return found[f"lodefs_component_{name}", labels_of(component="docker", **labels)]

    assert value("info", version="1.2") == 1
    assert value("start_time_seconds") > 1e9
    assert value("request_seconds_count", operation="Mount") == 1
    assert value("request_seconds_sum", operation="Mount") > 0
    assert value("request_seconds_count", operation="Get") == 0
    assert value("errors_total", operation="Mount", error="Unavailable") == 1
    assert [value("volumes", state=state) for state in ("mounted", "dead")] == [2, 0]
    assert scraped(tmp_path) == {}
    assert scraped(tmp_path / "missing") == {}
