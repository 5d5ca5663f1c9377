"""A Tracer that keeps its spans, for tests."""

from __future__ import annotations

from lodefs.chunkstore.protocol.trace_context import TraceContext
from lodefs.proxy.tracing.spans import Span, SpanCounts


class MemoryTracer:
    """Records what its caller records, and else all or nothing. ``spans``: in the order of their
    ends."""

    def __init__(self, *, all_requests: bool = False) -> None:
        self.spans: list[Span] = []
        self._all = all_requests

    def wants(self, caller: TraceContext | None) -> bool:
        """As of Tracer."""
        return caller.sampled if caller is not None else self._all

    def ended(self, span: Span) -> None:
        """As of Tracer."""
        self.spans.append(span)

    def counts(self) -> SpanCounts:
        """As of Tracer."""
        return SpanCounts(len(self.spans))
