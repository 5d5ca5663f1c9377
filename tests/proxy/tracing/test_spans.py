"""A recorded request says what it waited for, from node to node to the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.objects.interface import ObjectStore, Part
from lodefs.chunkstore.protocol.trace_context import TraceContext, current_trace
from lodefs.proxy.metrics.server_metrics import MetricInputs
from lodefs.proxy.tracing.request_scope import outgoing_headers, serving
from lodefs.proxy.tracing.spans import NO_SPAN, Span, SpanKind, begin_span, spanned
from lodefs.proxy.tracing.traced_objects import TracedObjects, store_attributes
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.object_store_suite import ObjectStoreSuite
from tests.support.proxy.cluster import cluster_of, slow_clock_s
from tests.support.proxy.fake_node import Content, DictNode, start_proxy
from tests.support.proxy.memory_tracer import MemoryTracer
from tests.support.proxy.rig import Rig, read_path

TRACE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", True)
PARENT = TRACE.headers["traceparent"]
FILES: dict[bytes, Content] = {b"a.txt": b"hello world"}


class TestTracedObjects(ObjectStoreSuite):
    """A recorded store is a store as any other."""

    @pytest.fixture
    def objects(self) -> Iterator[ObjectStore]:
        with serving({}, MemoryTracer(all_requests=True)):
            yield TracedObjects(MemoryObjects())


def test_from_node_to_node_to_the_store(tmp_path: Path) -> None:
    """Each piece has its caller's span as its parent, also across nodes, and the store is sent
    the span of the call to it."""
    big = Random(1).randbytes(200_000)  # 20 packs: each node owns some
    rig = Rig(tmp_path, {b"big": big}, chunk_size_bytes=2_000, pack_chunks=5)
    seen: list[str] = []

    def note(_key: str, part: Part) -> Part:
        trace = current_trace.get()
        seen.append(trace.span_id if trace is not None else "")
        return part

    rig.objects.answer = note
    rig.store.objects = TracedObjects(rig.objects)
    tracer = MemoryTracer()

    async def run() -> None:
        async with cluster_of(rig, 2, clock_s=slow_clock_s, tracer=tracer) as members:
            seen.clear()
            with serving({"traceparent": PARENT}, tracer) as scope:
                scope.span.name = "read"
                await read_path(members[0].node, b"big")

    asyncio.run(run())
    spans = {span.trace.span_id: span for span in tracer.spans}
    assert {span.trace.trace_id for span in tracer.spans} == {TRACE.trace_id}
    (root,) = [span for span in tracer.spans if span.parent_id == TRACE.span_id]
    assert (root.name, root.kind) == ("read", SpanKind.SERVER)
    by_name: dict[str, list[Span]] = {}
    for span in tracer.spans:
        assert span is root or span.parent_id in spans
        assert span.begin_ns <= span.end_ns
        by_name.setdefault(span.name, []).append(span)
    assert {spans[span.parent_id].name for span in by_name["GET peers"]} == {"peer.get"}
    calls = [span for span in by_name["store.get"] if span.kind is SpanKind.CLIENT]
    assert {spans[span.parent_id].name for span in calls} >= {"read", "GET peers"}
    assert {*seen} == {span.trace.span_id for span in calls}
    asked = by_name["peer.get"][0].attributes
    assert (asked["http.request.method"], asked["server.address"]) == ("GET", "127.0.0.1")
    assert asked["http.response.status_code"] == 200


def test_a_request_over_http(tmp_path: Path) -> None:
    """Its span has the names of OpenTelemetry, no query, and the error if there is one; who is
    asked for by no recorded trace is not recorded."""
    node, tracer = DictNode({**FILES, b"bad": b"12345"}), MemoryTracer()
    node.failures[b"bad"] = (0, RuntimeError("a mistake"))
    unrecorded = TraceContext("1" * 32, TRACE.span_id).headers["traceparent"]
    with start_proxy(node, inputs=MetricInputs(tracer=tracer)) as proxy:
        with proxy.client() as client:
            assert client.get("/files/demo@main/a.txt?secret=1", traceparent=PARENT).status == 200
            proxy.until(lambda: len(tracer.spans) == 1)
            assert client.get("/files/demo@main/bad", traceparent=PARENT).status == 500
        proxy.until(lambda: len(tracer.spans) == 2)
        with proxy.client() as client:
            client.get("/files/demo@main/a.txt", traceparent=unrecorded)
            client.get("/files/demo@main/a.txt")
            said = client.get("/metrics").body.decode()
    good, bad = tracer.spans
    assert good.name == "GET /files/{repository}@{revision}/{path}"
    assert good.attributes["url.path"] == "/files/demo@main/a.txt"
    assert good.attributes["http.response.status_code"] == 200
    assert good.attributes["http.response.body.size"] == 11
    assert (good.error, bool(bad.error), bad.attributes["error.type"]) == ("", True, "500")
    assert 'lodefs_trace_spans_total{outcome="exported"} 2' in said


@pytest.mark.parametrize("parent", [None, "nonsense"])
def test_a_trace_that_begins_here(parent: str | None) -> None:
    """A request without a trace, or with a malformed one, has a new one, which it passes on; its
    parts are no more when it has ended."""
    tracer = MemoryTracer(all_requests=True)
    with serving({} if parent is None else {"traceparent": parent}, tracer):
        with spanned("part") as part:
            sent = outgoing_headers()["traceparent"]
        with pytest.raises(NotFound), spanned("other"):
            raise NotFound("no such thing")
    assert begin_span("later") is NO_SPAN
    first, other, whole = tracer.spans
    assert first is part
    assert sent == f"00-{whole.trace.trace_id}-{part.trace.span_id}-01"
    assert (whole.parent_id, first.parent_id) == ("", whole.trace.span_id)
    assert (other.error, other.attributes["error.type"]) == ("no such thing", "NotFound")


def test_names_of_the_stores_calls() -> None:
    """Calls to S3 are told by S3's names."""
    said = store_attributes("s3://bucket/some/prefix", "list", "repos/")
    assert said["rpc.method"] == "S3/ListObjectsV2"
    assert (said["aws.s3.bucket"], said["aws.s3.key"]) == ("bucket", "some/prefix/repos/")
    assert store_attributes("/srv/store", "get", "a") == {"file.path": "/srv/store/a"}
