"""Metrics: names, and figures that add up."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lodefs.proxy.http.tokens import create_token
from lodefs.proxy.metrics import exposition, metric_names
from lodefs.proxy.metrics import metric_names as names
from lodefs.proxy.metrics.counters import Counter as Figure
from lodefs.proxy.metrics.counters import Counts
from lodefs.proxy.metrics.exposition import Definition, labelled
from lodefs.proxy.metrics.histogram import LATENCY_BOUNDS_S
from lodefs.proxy.metrics.node_families import PARTS, PLAIN, SHOWN_OTHERWISE, node_families
from lodefs.proxy.metrics.repository_reads import Source
from lodefs.proxy.metrics.server_metrics import (
    BUSY_AGE_S,
    BUSY_STREAMS,
    MetricInputs,
    Metrics,
    MetricSettings,
)
from lodefs.proxy.metrics.store_calls import StoreCalls
from tests.support.proxy.fake_node import DictNode, Reply, start_proxy
from tests.support.proxy.scrape import PLAIN_LABELS, Samples, labels_of, samples

DOCS = Path(__file__).parents[3] / "docs"


def of_route(route: str, status: str, source: str) -> frozenset[tuple[str, str]]:
    return labels_of(route=route, status=status, source=source)


def test_requests_are_counted_by_route_status_and_source() -> None:
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
    good = of_route("files", "2xx", "cache")
    assert (reply.header("Content-Type") or "").startswith("text/plain")
    assert found["lodefs_http_request_seconds_count", good] == 5
    assert found["lodefs_http_request_seconds_count", of_route("files", "4xx", "none")] == 1
    assert found["lodefs_http_request_seconds_count", of_route("other", "4xx", "none")] == 1
    assert found["lodefs_http_sent_bytes_total", good] == 5 * 100
    first = labels_of(route="files", source="cache")
    assert found["lodefs_http_first_byte_seconds_count", first] == 5
    assert found["lodefs_http_hot_answers_total", PLAIN_LABELS] == hot == 4
    assert found["lodefs_http_connections", labels_of(listener="unix")] == 1
    hot_reads = labels_of(repository="demo", source="cache")
    assert found["lodefs_reads_total", hot_reads] == 4  # this node counts hot ones alone
    assert found["lodefs_read_bytes_total", hot_reads] == 400


def _of_status(status: dict[str, object]) -> Samples:
    return samples(Metrics("test", lambda: status).text()[0])


def test_the_nodes_figures_are_shown_where_it_has_them() -> None:
    """Known figures of Node.status() appear under their names; others do not."""
    keys = [*PLAIN, *PARTS]
    status: dict[str, object] = {key: number for number, key in enumerate(keys, 1000)}
    found = _of_status({**status, "store": "memory:", "other": 1})
    for key, definition in PLAIN.items():
        assert found[definition.name, PLAIN_LABELS] == status[key]
    failed = PARTS.pop(Figure.PEER_FAILED)
    for key, (definition, label) in PARTS.items():
        assert found[definition.name, frozenset({(definition.labels[0], label)})] == status[key]
    PARTS[Figure.PEER_FAILED] = failed
    peers: dict[str, object] = {"peers": [{"self": True}, {"state": "late"}, {"state": "late"}]}
    found = _of_status(peers)
    assert found["lodefs_peer_nodes", labels_of(state="late")] == 2
    assert found["lodefs_peer_nodes", labels_of(state="well")] == 0
    assert not [name for name, _ in found if name.startswith("lodefs_cache_used")]


def test_a_denied_request_to_a_peer_fails_once() -> None:
    """Denied requests are among the failed of /status, and not among those of /metrics."""
    found = _of_status({Figure.PEER_FAILED: 5, Figure.PEER_DENIED: 2, Figure.PEER_BUSY: 1})
    kinds = {"failed": 3, "denied": 2, "busy": 1}
    for kind, count in kinds.items():
        assert found["lodefs_peer_failures_total", labels_of(kind=kind)] == count


def test_names_follow_the_rules() -> None:
    """Every metric is lodefs', counters end in _total and others do not, units come last and are
    base units, and no figure of a node is forgotten or shown twice."""
    for one in metric_names.ALL:
        assert one.name.startswith("lodefs_")
        assert one.name.endswith("_total") == (one.kind == "counter"), one.name
        assert not one.name.endswith(("_s", "_ms", "_s_total", "_ms_total", "_mib", "_kib"))
        if one.kind in ("histogram", "summary"):
            assert one.name.endswith(("_seconds", "_bytes"))
        assert not {"le", "quantile"} & set(one.labels)
    shown = [*PLAIN, *PARTS, *SHOWN_OTHERWISE]
    assert len(set(shown)) == len(shown)
    assert set(shown) >= set(Figure)


def test_latency_buckets() -> None:
    """A time falls into the first bucket that holds it, and buckets add up, hot ones too."""
    metrics = Metrics("test", dict)
    counter = metrics.counter("files", 206, "cache")
    for elapsed_s in (0.0, LATENCY_BOUNDS_S[0], 0.3):
        counter.add(elapsed_s)
        counter.sent_bytes += 10
    metrics.hot_counter("files", "demo").add(1000.0)
    found = samples(metrics.text()[0])
    labels = of_route("files", "2xx", "cache")

    def bucket(bound: str) -> float:
        return found["lodefs_http_request_seconds_bucket", labels | {("le", bound)}]

    assert bucket(str(LATENCY_BOUNDS_S[0])) == 2
    assert bucket("0.25") == 2
    assert bucket("0.5") == 3
    assert bucket("60.0") == 3
    assert bucket("+Inf") == found["lodefs_http_request_seconds_count", labels] == 4
    assert found["lodefs_http_request_seconds_sum", labels] == 1000.3001
    assert metrics.counter("files", 200, "cache") is counter
    assert (metrics.requests(), metrics.sent_bytes()) == (4, 30)


def test_calls_to_the_store() -> None:
    """Calls are counted by operation and outcome, with bytes and time; repeated ones by cause."""
    calls = StoreCalls()
    calls.add("get", "ok", size_bytes=100, elapsed_s=0.5)
    calls.add("get", "ok", size_bytes=50, elapsed_s=0.25)
    calls.add("get", "Unavailable", size_bytes=0, elapsed_s=1.0)
    calls.retried("throttled")
    found = samples(Metrics("test", dict, None, MetricInputs(calls)).text()[0])
    good = labels_of(operation="get", outcome="ok")
    bad = labels_of(operation="get", outcome="Unavailable")
    assert found["lodefs_store_request_seconds_count", good] == 2
    assert found["lodefs_store_request_bytes_total", labels_of(operation="get")] == 150
    assert found["lodefs_store_request_seconds_sum", good] == 0.75
    assert found["lodefs_store_request_seconds_count", bad] == 1
    assert found["lodefs_store_retries_total", labels_of(reason="throttled")] == 1
    assert found["lodefs_store_retries_total", labels_of(reason="failed")] == 0


def test_what_is_saved_never_falls() -> None:
    """What readers got beyond what the store sent is saved, in bytes and money; a fetch ahead of
    its readers takes nothing back."""
    calls, counts = StoreCalls(), Counts()
    prices = MetricSettings(price_per_1000_gets=1.0, price_per_gb=1e9)  # 0.001 a get, 1 a byte
    metrics = Metrics("test", dict, counts, MetricInputs(calls, prices))

    def saved() -> tuple[float, float, float]:
        found = samples(metrics.text()[0])
        names = ("store_saved_bytes", "store_cost", "store_saved_cost")
        first, second, third = (found[f"lodefs_{name}_total", PLAIN_LABELS] for name in names)
        return first, second, third

    calls.add("get", "ok", size_bytes=100, elapsed_s=0.1)
    assert saved() == (0, 100.001, 0)
    counts.reads.of("a")[Source.DIRECT].add(70, 2)
    counts.reads.of("b")[Source.STORE].add(80)
    assert saved() == pytest.approx((50, 100.001, 50.002))
    calls.add("get", "ok", size_bytes=500, elapsed_s=0.1)
    assert saved()[0] == 50


def test_histograms_of_a_node() -> None:
    """Ages of evicted files and times of fetches are shown by source."""
    counts = Counts()
    counts.evicted(10, 30.0)
    counts.evicted(10, -5.0)  # the clock was set back
    families = {one.definition.name: one.samples for one in node_families({}, counts)}
    ages = families["lodefs_cache_evicted_age_seconds"]
    assert [one.value for one in ages if one.ending == "_count"] == [2]
    assert [one.value for one in ages if one.ending == "_sum"] == [30.0]
    assert {one.labels for one in families["lodefs_fetch_seconds"] if one.ending == "_sum"} == {
        'source="peers"',
        'source="store"',
    }


def test_a_busy_proxy_makes_its_metrics_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """From so many requests at once on, scrapes share what was made within the last second, each
    format its own; with fewer, each scrape makes its own."""
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    metrics = Metrics("test", dict)
    streams = metrics.endpoint("tcp")

    def shown(accept: str = "") -> float:
        text = metrics.text(accept)[0].decode()
        return samples(text.removesuffix("# EOF\n").encode())[
            "lodefs_http_broken_bodies_total", PLAIN_LABELS
        ]

    streams.streams = BUSY_STREAMS
    assert shown() == 0
    metrics.broken_bodies = 1
    assert shown() == 1
    streams.streams = BUSY_STREAMS + 1
    metrics.broken_bodies = 2
    assert shown() == 1
    assert shown("application/openmetrics-text") == 2
    now_s += BUSY_AGE_S
    assert shown() == 2
    metrics.broken_bodies = 3
    now_s += BUSY_AGE_S * 0.9
    assert shown() == 2
    streams.streams = BUSY_STREAMS
    assert shown() == 3


def test_definitions_are_plain() -> None:
    """Each metric says what it is in a few words."""
    for one in metric_names.ALL:
        assert isinstance(one, Definition)
        assert 10 < len(one.text) <= 80


def test_a_token_sees_its_own_repositories() -> None:
    """Of others there is nothing, their mounts included, however their mountpoints are named; all
    else stays as it is."""
    bad = 'a,repository="mine"\r{repository="mine",\\"'
    whole = b"".join(
        [
            exposition.text([labelled(names.READS, {("mine", "cache"): 1})]),
            exposition.text([labelled(names.MOUNT_INFO, {("/m", "mine", "c", "0", "1"): 1})]),
        ]
    )
    hidden = exposition.text(
        [
            labelled(names.READ_BYTES, {("secret", "cache"): 3, ("se\\cret", "store"): 4}),
            labelled(names.READ_BYTES, {("other", "cache"): 2}),  # the sum of many
            labelled(names.USER_BYTES, {("1001", "cache"): 5}),
            labelled(names.MIRROR_UP, {("s3://bucket/prefix",): 1}),
            labelled(names.JOB_READ_BYTES, {("77", "cache"): 1}),
            labelled(names.MOUNT_INFO, {(bad, "secret", "c", "0", "1"): 1}),
            labelled(names.MOUNT_START, {(bad,): 1, ("/m",): 2}),
        ]
    )
    seen = exposition.readable(whole + hidden, lambda repo: repo == "mine")
    assert seen.startswith(whole)
    left = [line for line in seen[len(whole) :].split(b"\n") if not line.startswith(b"#")]
    assert left == [b'lodefs_mount_start_time_seconds{mountpoint="/m"} 2', b""]


def test_labels_that_name_are_known() -> None:
    """Every label of a metric names something that not everybody may know, or has values that are
    known before."""
    plain = {"component", "error", "kind", "layer", "listener", "operation", "outcome", "pool"}
    plain |= {"reason", "route", "source", "state", "status", "version", "python"}
    plain |= {"cache_format", "mount_counts_format"}
    for one in metric_names.ALL:
        assert set(one.labels) <= plain | set(exposition.NAMING_LABELS), one


def test_a_limited_token_at_a_real_proxy(tmp_path: Path) -> None:
    """A scrape with a token for another repository names none of this one."""
    tokens = tmp_path / "tokens"
    tokens_of = {name: create_token(tokens, name, [name], now_s=0) for name in ("demo", "else")}
    with (
        start_proxy(DictNode({b"a": b"x"}), tokens_file=tokens) as proxy,
        proxy.client(tcp=True) as client,
    ):
        own = {"Authorization": f"Bearer {tokens_of['demo']}"}
        assert client.get("/files/demo@main/a", **own).body == b"x"
        proxy.call(lambda: proxy.server.metrics.counts.direct(1, 10, "demo"))
        others = {"Authorization": f"Bearer {tokens_of['else']}"}
        mine, theirs = (client.get("/metrics", **one).body for one in (own, others))
    assert b'repository="demo"' in mine
    assert b"demo" not in theirs
    assert b"lodefs_http_request_seconds_count" in theirs
