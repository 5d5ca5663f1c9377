"""Sends spans to a collector, by OTLP over HTTP. Needs the extra ``lodefs[otel]``; nothing else
imports OpenTelemetry.

Requests only put their spans into a queue; one thread sends them. A collector that is slow or away
loses spans, which are counted, but never delays a reader.
"""

from __future__ import annotations

import logging
import random
import socket
import threading
from collections import deque
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.trace import SpanKind as OtlpKind
from opentelemetry.trace.status import Status, StatusCode

from lodefs.chunkstore.protocol.trace_context import TraceContext
from lodefs.proxy.tracing.spans import Span, SpanCounts, SpanKind

WAITING_MAX = 4096  # spans; further ones are dropped
BATCH_MAX = 512
EVERY_S = 1.0
TIMEOUT_S = 10.0  # for one batch with its retries
CLOSE_TIMEOUT_S = 3.0
_KINDS = {
    SpanKind.SERVER: OtlpKind.SERVER,
    SpanKind.CLIENT: OtlpKind.CLIENT,
    SpanKind.INTERNAL: OtlpKind.INTERNAL,
}
_log = logging.getLogger("lodefs.proxy")


class OtlpTracer:
    """A Tracer that sends to the collector at ``endpoint``, such as http://localhost:4318. It
    records requests of a trace if their caller does, and a random share ``ratio`` of others."""

    def __init__(self, endpoint: str, *, ratio: float, version: str) -> None:
        self._endpoint = endpoint
        self._ratio = ratio
        # It logs a line for each batch
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        url = f"{endpoint.rstrip('/')}/v1/traces"
        self._exporter = OTLPSpanExporter(url, timeout=TIMEOUT_S)
        own = {
            "service.name": "lodefs-proxy",
            "service.version": version,
            "host.name": socket.gethostname(),
        }
        self._resource = Resource(own).merge(OTELResourceDetector().detect())
        self._scope = InstrumentationScope("lodefs", version)
        self._changed = threading.Condition()  # guards the fields below
        self._waiting: deque[Span] = deque()
        self._exported = self._dropped = 0
        self._closed = self._is_failing = False
        self._thread = threading.Thread(target=self._work, name="lodefs-spans", daemon=True)
        self._thread.start()

    def wants(self, caller: TraceContext | None) -> bool:
        return caller.sampled if caller is not None else random.random() < self._ratio

    def ended(self, span: Span) -> None:
        with self._changed:
            if self._closed or len(self._waiting) >= WAITING_MAX:
                self._dropped += 1
                return
            self._waiting.append(span)
            if len(self._waiting) == BATCH_MAX:
                self._changed.notify()

    def counts(self) -> SpanCounts:
        return SpanCounts(self._exported, self._dropped)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Sends waiting spans, within ``timeout_s``; drops the rest."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout_s)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            if batch:
                self._send(batch)

    def _next(self) -> list[Span] | None:
        """Returns the spans to send, after a while at most; None at the end."""
        with self._changed:
            if len(self._waiting) < BATCH_MAX and not self._closed:
                self._changed.wait(EVERY_S)
            if self._closed and not self._waiting:
                return None
            count = min(BATCH_MAX, len(self._waiting))
            return [self._waiting.popleft() for _ in range(count)]

    def _send(self, batch: Sequence[Span]) -> None:
        why = ""
        try:
            result = self._exporter.export([self._encoded(span) for span in batch])
            is_sent = result is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end this thread
            is_sent, why = False, f": {error!r}"
        with self._changed:
            if is_sent:
                self._exported += len(batch)
            else:
                self._dropped += len(batch)
        if is_sent == self._is_failing:  # log once at the beginning and once at the end
            self._is_failing = not is_sent
            if is_sent:
                _log.info("the collector at %s accepts spans again", self._endpoint)
            else:
                _log.warning("the collector at %s does not accept spans%s", self._endpoint, why)

    def _encoded(self, span: Span) -> ReadableSpan:
        parent = _context(span.trace.trace_id, span.parent_id) if span.parent_id else None
        return ReadableSpan(
            span.name,
            _context(span.trace.trace_id, span.trace.span_id),
            parent,
            self._resource,
            span.attributes,
            kind=_KINDS[span.kind],
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
            start_time=span.begin_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )


def _context(trace_id: str, span_id: str) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=flags)
