"""Spans reach a collector by OTLP over HTTP; one that is away costs nothing but them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.protocol.trace_context import TraceContext
from lodefs.proxy.config import Config
from lodefs.proxy.service.app import open_tracer
from lodefs.proxy.tracing import otlp_tracer
from lodefs.proxy.tracing.otlp_tracer import OtlpTracer
from lodefs.proxy.tracing.request_scope import serving
from lodefs.proxy.tracing.spans import NO_TRACER, SpanCounts, SpanKind, spanned

TRACE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", True)
HEADERS = TRACE.headers
Received = Queue[tuple[str, ExportTraceServiceRequest]]


@contextmanager
def collector() -> Iterator[tuple[str, Received]]:
    """A small one: its URL, and what it received, with the path."""
    received: Received = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.put((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            server.shutdown()
            thread.join()


def test_spans_arrive_as_they_were() -> None:
    """Ids, parents, kinds, attributes, errors and the resource; the last ones when it is closed."""
    with collector() as (url, received):
        tracer = OtlpTracer(f"{url}/", ratio=0, version="1.2")
        with serving(HEADERS, tracer) as scope:
            scope.span.name = "GET /files"
            with pytest.raises(ValueError), spanned("store.get", SpanKind.CLIENT, {"n": 3}):
                raise ValueError("broken")
        assert not tracer.wants(None)
        tracer.close(timeout_s=60)
        assert tracer.counts() == SpanCounts(exported=2)
        path, request = received.get(timeout=60)
    assert path == "/v1/traces"
    (resources,) = request.resource_spans
    said = {one.key: one.value.string_value for one in resources.resource.attributes}
    assert (said["service.name"], said["service.version"]) == ("lodefs-proxy", "1.2")
    part, whole = resources.scope_spans[0].spans
    assert part.trace_id.hex() == whole.trace_id.hex() == TRACE.trace_id
    assert whole.parent_span_id.hex() == TRACE.span_id
    assert part.parent_span_id == whole.span_id
    assert (part.name, part.kind, whole.kind) == ("store.get", 3, 2)
    assert {one.key for one in part.attributes} == {"n", "error.type"}
    assert (part.status.code, part.status.message) == (2, "broken")
    assert whole.start_time_unix_nano <= part.start_time_unix_nano <= whole.end_time_unix_nano


def test_a_collector_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests end as always; spans beyond the queue are dropped, and counted, as are the rest
    when the proxy ends."""
    monkeypatch.setattr(otlp_tracer, "WAITING_MAX", 10)
    tracer = OtlpTracer("http://127.0.0.1:1", ratio=1, version="1")
    for _ in range(50):
        with serving({}, tracer):
            pass
    assert tracer.counts().dropped > 0
    begun_s = time.monotonic()
    tracer.close(timeout_s=0.1)
    assert time.monotonic() - begun_s < 30
    tracer._thread.join(60)
    with serving({}, tracer):
        pass
    assert tracer.counts() == SpanCounts(dropped=51)


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a collector nothing of it is loaded; without the extra the error says what to
    install; what is no URL, or holds a password, is refused."""
    plain = Config.from_mapping({"store": "/s"})
    with open_tracer(plain) as tracer:
        assert tracer is NO_TRACER
    wanted = Config.from_mapping({"store": "/s", "otlp_endpoint": "http://collector:4318"})
    monkeypatch.setitem(sys.modules, "lodefs.proxy.tracing.otlp_tracer", None)
    with pytest.raises(InvalidInput, match=r"pip install 'lodefs\[otel\]'"), open_tracer(wanted):
        pass
    for bad in ("collector:4318", "http://", "ftp://x", "http://u:p@x", "http://x:99999", 5):
        with pytest.raises(InvalidInput, match=r"otlp_endpoint: must be"):
            Config.from_mapping({"store": "/s", "otlp_endpoint": bad})
    for ratio in (-1, 2, "x", True):
        with pytest.raises(InvalidInput, match="trace_ratio"):
            Config.from_mapping({"store": "/s", "trace_ratio": ratio})
