"""Metrics: names, and figures that add up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lodefs.proxy.runtime.counters import Counter as Figure
from lodefs.proxy.runtime.metrics import LATENCY_BOUNDS_S, NODE_METRICS, Metrics, StoreCalls
from tests.support.proxy.fake_node import DictNode, Reply, start_proxy

DOCS = Path(__file__).parents[3] / "docs"


def samples(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Values by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def labels(route: str, status: str) -> frozenset[tuple[str, str]]:
    return frozenset({("route", route), ("status", status)})


def test_requests_are_counted_by_route_and_status() -> None:
    """Hot or not, each answer counts once, with its bytes and its time."""
    node = DictNode({b"a": b"x" * 1000}, extents=True)
    target = f"/files/demo@{node.commit}/a"
    with start_proxy(node) as proxy, proxy.client() as client:

        def get(path: str, **headers: str) -> Reply:
            proxy.until(lambda: all(one.idle for one in proxy.server.connections))
            return client.get(path, **headers)

        for _ in range(5):
            get(target, Range="bytes=0-99")
        get("/files/demo@main/none")
        get("/nowhere")
        reply = get("/metrics")
        hot = proxy.server.metrics.fast_answers
    node.close()
    found = samples(reply.body)
    assert (reply.header("Content-Type") or "").startswith("text/plain")
    assert found["lodefs_http_requests_total", labels("files", "2xx")] == 5
    assert found["lodefs_http_requests_total", labels("files", "4xx")] == 1
    assert found["lodefs_http_requests_total", labels("other", "4xx")] == 1
    assert found["lodefs_http_sent_bytes_total", labels("files", "2xx")] == 5 * 100
    assert found["lodefs_http_request_seconds_count", labels("files", "2xx")] == 5
    assert found["lodefs_http_hot_answers_total", frozenset()] == hot == 4
    assert found["lodefs_http_connections", frozenset({("door", "unix")})] == 1
    assert found["lodefs_build_info", frozenset({("version", "test")})] == 1


def test_the_nodes_figures_are_shown_where_it_has_them() -> None:
    """Known figures of Node.status() appear under their names; others do not."""
    status: dict[str, object] = {one.key: number for number, one in enumerate(NODE_METRICS, 7)}
    shown = Metrics("test", lambda: {**status, "store": "memory:", "other": 1}).text()[0]
    found = samples(shown)
    for number, one in enumerate(NODE_METRICS, 7):
        name = f"{one.name}_total" if one.kind == "counter" else one.name
        assert found[name, frozenset()] == number
    empty = samples(Metrics("test", dict).text()[0])
    assert not [name for name, _ in empty if name.startswith("lodefs_cache")]


def test_names_follow_the_rules() -> None:
    """Every metric is lodefs', counters do not say so twice, and none of the node's is lost."""
    names = [one.name for one in NODE_METRICS]
    assert len(set(names)) == len(names)
    assert all(name.startswith("lodefs_") and not name.endswith("_total") for name in names)
    assert {one.key for one in NODE_METRICS} >= set(Figure)


def test_latency_buckets() -> None:
    """A time falls into the first bucket that holds it, and buckets add up."""
    metrics = Metrics("test", dict)
    counter = metrics.counter("files", 206)
    for elapsed_s in (0.0, LATENCY_BOUNDS_S[0], 0.3, 1000.0):
        counter.add(elapsed_s=elapsed_s, sent_bytes=10)
    found = samples(metrics.text()[0])

    def bucket(bound: str) -> float:
        return found["lodefs_http_request_seconds_bucket", labels("files", "2xx") | {("le", bound)}]

    assert bucket(str(LATENCY_BOUNDS_S[0])) == 2
    assert bucket("0.25") == 2
    assert bucket("0.5") == 3
    assert bucket("60.0") == 3
    assert bucket("+Inf") == 4
    assert metrics.counter("files", 200) is counter
    assert (metrics.requests(), metrics.sent_bytes()) == (4, 40)


def test_calls_to_the_store() -> None:
    """Calls are counted by operation and outcome, with bytes and time."""
    calls = StoreCalls()
    calls.add("get", "ok", size_bytes=100, elapsed_s=0.5)
    calls.add("get", "ok", size_bytes=50, elapsed_s=0.25)
    calls.add("get", "Unavailable", size_bytes=0, elapsed_s=1.0)
    found = samples(Metrics("test", dict, calls).text()[0])
    good = frozenset({("operation", "get"), ("outcome", "ok")})
    bad = frozenset({("operation", "get"), ("outcome", "Unavailable")})
    assert found["lodefs_store_calls_total", good] == 2
    assert found["lodefs_store_bytes_total", good] == 150
    assert found["lodefs_store_seconds_total", good] == 0.75
    assert found["lodefs_store_calls_total", bad] == 1


@pytest.mark.parametrize("document", ["operations.md", "protocol.md"])
def test_documents_name_metrics_that_there_are(document: str) -> None:
    """Every metric in a document is one of the proxy's, by the name that Prometheus sees."""
    calls = StoreCalls()
    calls.add("get", "ok", size_bytes=1, elapsed_s=0.1)
    metrics = Metrics("test", lambda: dict.fromkeys((one.key for one in NODE_METRICS), 1), calls)
    metrics.counter("files", 200).add(elapsed_s=0.1, sent_bytes=1)
    text = metrics.text()[0].decode()
    families = {family.name for family in text_string_to_metric_families(text)}
    shown = families | {name for name, _ in samples(text.encode())}
    named = re.findall(r"\blodefs_[a-z_]+", (DOCS / document).read_text())
    assert named
    assert set(named) <= shown - {name for name in families if f"{name}_total" in shown}
