"""Spans: what a request did and waited for, for those who record traces.

A request is recorded, or it is not, from its first byte on; what it starts, in any thread or task,
then adds spans of its own. Where nothing is recorded, a span is one look at a context variable.
Names and attributes follow OpenTelemetry: https://opentelemetry.io/docs/specs/semconv/
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import NamedTuple, Protocol

from lodefs.chunkstore.protocol.trace_context import TraceContext, current_trace

Attribute = str | int | float | bool
_SPAN_ID_BYTES = 8


class SpanKind(Enum):
    """Whether a span answers a request, makes one, or neither."""

    SERVER = "server"
    CLIENT = "client"
    INTERNAL = "internal"


class SpanCounts(NamedTuple):
    """How many spans went to who wants them, and how many did not."""

    exported: int = 0
    dropped: int = 0


class Tracer(Protocol):
    """Who records spans. For any thread; nothing here waits or raises."""

    def wants(self, caller: TraceContext | None) -> bool:
        """Whether to record a request; ``caller``: the trace that it came with, if it did."""

    def ended(self, span: Span) -> None:
        """Takes a span that has ended, or drops it."""

    def counts(self) -> SpanCounts:
        """What became of the spans so far."""


class NoTracer:
    """Records nothing."""

    def wants(self, caller: TraceContext | None) -> bool:  # noqa: ARG002
        return False

    def ended(self, span: Span) -> None:
        """As of Tracer."""

    def counts(self) -> SpanCounts:
        return SpanCounts()


NO_TRACER: Tracer = NoTracer()
current_tracer: ContextVar[Tracer | None] = ContextVar("current_tracer", default=None)
"""Who records the request that this task or thread works for; None: nobody."""


class Span:
    """One piece of a trace. ``trace`` names the trace and this span; ``parent_id``: the span that
    it is a part of, 16 hex digits, "" for the first of a trace. Times are Unix, in nanoseconds.
    ``error``: what went wrong, or "". Without a tracer nothing is kept."""

    __slots__ = (
        *("attributes", "begin_ns", "end_ns", "error", "kind", "name", "parent_id", "trace"),
        "_tracer",
    )

    def __init__(
        self,
        tracer: Tracer | None,
        trace: TraceContext,
        *,
        parent_id: str = "",
        name: str = "",
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> None:
        self._tracer = tracer
        self.trace = trace
        self.parent_id = parent_id
        self.name = name
        self.kind = kind
        self.attributes: dict[str, Attribute] = dict(attributes or {})
        self.error = ""
        self.begin_ns = time.time_ns()
        self.end_ns = 0

    @property
    def is_recorded(self) -> bool:
        return self._tracer is not None

    def note(self, attributes: Mapping[str, Attribute]) -> None:
        if self._tracer is not None:
            self.attributes |= attributes

    def fail(self, error: BaseException) -> None:
        if self._tracer is not None:
            self.attributes["error.type"] = type(error).__name__
            self.error = str(error)[:500] or type(error).__name__

    def drop(self) -> None:
        """It is none: nothing was done."""
        self._tracer = None

    def end(self) -> None:
        if self._tracer is not None and not self.end_ns:
            self.end_ns = max(time.time_ns(), self.begin_ns)  # clocks are set back
            self._tracer.ended(self)


NO_SPAN = Span(None, TraceContext("", ""))


def begin_span(
    name: str,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Mapping[str, Attribute] | None = None,
) -> Span:
    """A span of the request that is worked for; NO_SPAN if nobody records that."""
    tracer, parent = current_tracer.get(), current_trace.get()
    if tracer is None or parent is None:
        return NO_SPAN
    trace = parent._replace(span_id=secrets.token_hex(_SPAN_ID_BYTES))
    return Span(
        tracer, trace, parent_id=parent.span_id, name=name, kind=kind, attributes=attributes
    )


@contextmanager
def within(span: Span) -> Iterator[None]:
    """What is begun in the block is a part of the span."""
    if not span.is_recorded:
        yield
        return
    token = current_trace.set(span.trace)
    try:
        yield
    finally:
        current_trace.reset(token)


@contextmanager
def spanned(
    name: str,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Mapping[str, Attribute] | None = None,
) -> Iterator[Span]:
    """A span as long as the block, which fails with it."""
    span = begin_span(name, kind, attributes)
    try:
        with within(span):
            yield span
    except BaseException as error:
        span.fail(error)
        raise
    finally:
        span.end()


@contextmanager
def recorded(tracer: Tracer, caller: TraceContext | None) -> Iterator[Span]:
    """The span of a request, for as long as it is served, of its caller's trace or of a new one."""
    trace = caller or TraceContext(secrets.token_hex(16), "", sampled=True)
    trace = trace._replace(span_id=secrets.token_hex(_SPAN_ID_BYTES))
    parent_id = caller.span_id if caller is not None else ""
    span = Span(tracer, trace, parent_id=parent_id, kind=SpanKind.SERVER)
    who = current_tracer.set(tracer)
    try:
        with within(span):
            yield span
    finally:
        current_tracer.reset(who)
        span.end()
