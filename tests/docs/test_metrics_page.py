"""docs/metrics.md against the code, in both directions, and against a real scrape."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from lodefs.proxy.metrics.metric_names import ALL
from tests.support.proxy.fake_node import DictNode, start_proxy
from tests.support.proxy.scrape import samples

DOCS = Path(__file__).parents[2] / "docs"
_ENTRY = re.compile(r"^- `(lodefs_\w+)` \((\w+)((?:;[^)]*)?)\): \S", re.MULTILINE)
_NAME = re.compile(r"\blodefs_[a-z0-9_]+")
_ENDINGS = ("_bucket", "_count", "_sum")


def _documented() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Type and labels by name, as the page's lists have them."""
    rows = _ENTRY.findall((DOCS / "metrics.md").read_text())
    assert len({name for name, _, _ in rows}) == len(rows)
    return {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def test_the_page_lists_each_metric_as_it_is() -> None:
    """Each metric stands there once, with its type and labels, and nothing else does."""
    assert _documented() == {one.name: (one.kind, one.labels) for one in ALL}


def test_a_scrape_shows_nothing_that_the_page_lacks() -> None:
    """Each line of a real scrape is of a metric of the page, with the labels that it says, in
    Prometheus' format and in OpenMetrics."""
    node = DictNode({b"a": b"x" * 100})
    with start_proxy(node) as proxy, proxy.client() as client:
        client.get("/files/demo@main/a")
        plain = client.get("/metrics")
        open_ = client.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    known = _documented()
    page = (DOCS / "metrics.md").read_text()
    seen = samples(plain.body)
    assert len(seen) > 100
    for name, labels in seen:
        base = next((name.removesuffix(end) for end in _ENDINGS if name.endswith(end)), name)
        if base.startswith("process_"):
            assert base in page
            continue
        kind, names = known[base if base in known else name]
        extra = {"le"} if kind == "histogram" and name.endswith("_bucket") else set()
        assert {label for label, _ in labels} == {*names, *extra}
    assert (open_.header("Content-Type") or "").startswith("application/openmetrics-text")
    families = {family.name: family.type for family in openmetrics(open_.body.decode())}  # type: ignore[no-untyped-call]
    for name, (kind, _) in known.items():
        base = name.removesuffix("_total")
        assert families.get(base, kind) == kind


def test_all_pages_name_metrics_that_there_are() -> None:
    """Every metric that any page, chart or alert names is one of the list."""
    known = {one.name for one in ALL}
    shown = known | {f"{name}{end}" for name in known for end in _ENDINGS}
    for page in sorted(DOCS.glob("*.md")):
        named = set(_NAME.findall(page.read_text()))
        assert not {name for name in named if name not in shown and not _is_other(name)}, page


def _is_other(name: str) -> bool:
    """Names that begin like metrics: of Debian packages, and of Slurm's plugins."""
    return name in {"lodefs_0", "lodefs_pre_submit", "lodefs_spank"}
