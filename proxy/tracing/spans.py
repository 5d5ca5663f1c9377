"""Spans: what a request did and waited for, for traces.

A request is recorded, or not, from its first byte on; its work in any thread or task then adds
spans. Without a recording, a span costs one look at a context variable. Names and attributes follow
OpenTelemetry: https://opentelemetry.io/docs/specs/semconv/
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
    """The numbers of spans that were delivered and that were dropped."""

    exported: int = 0
    dropped: int = 0


class Tracer(Protocol):
    """Records spans. For any thread; nothing here waits or raises."""

    def wants(self, caller: TraceContext | None) -> bool:
        """Whether to record a request; ``caller`` is the trace that it came with, if any."""

    def ended(self, span: Span) -> None:
        """Takes a finished span, or drops it."""

    def counts(self) -> SpanCounts:
        """Returns what happened to the spans so far."""


class NoTracer:
    """Records nothing."""

    def wants(self, caller: TraceContext | None) -> bool:  # noqa: ARG002
        return False

    def ended(self, span: Span) -> None:
        """Implements Tracer."""

    def counts(self) -> SpanCounts:
        return SpanCounts()


NO_TRACER: Tracer = NoTracer()
current_tracer: ContextVar[Tracer | None] = ContextVar("current_tracer", default=None)
"""The tracer of the current request of this task or thread; None: not recorded."""


class Span:
    """One piece of a trace. ``trace`` names the trace and this span. ``parent_id`` is its parent
    span, 16 hex digits, or "" for the first span of a trace. Times are Unix nanoseconds. ``error``
    is the failure, or "". Without a tracer nothing is kept."""

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
        """Discards the span, since nothing was done."""
        self._tracer = None

    def end(self) -> None:
        if self._tracer is not None and not self.end_ns:
            self.end_ns = max(time.time_ns(), self.begin_ns)  # clocks may be set back
            self._tracer.ended(self)


NO_SPAN = Span(None, TraceContext("", ""))


def begin_span(
    name: str,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Mapping[str, Attribute] | None = None,
) -> Span:
    """Returns a span of the current request; NO_SPAN if it is not recorded."""
    tracer, parent = current_tracer.get(), current_trace.get()
    if tracer is None or parent is None:
        return NO_SPAN
    trace = parent._replace(span_id=secrets.token_hex(_SPAN_ID_BYTES))
    return Span(
        tracer, trace, parent_id=parent.span_id, name=name, kind=kind, attributes=attributes
    )


@contextmanager
def within(span: Span) -> Iterator[None]:
    """Makes spans that begin in the block children of the span."""
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
    """Yields a span that lasts as long as the block, and fails with it."""
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
    """Yields the span of a request while it is served, in its caller's trace or a new one."""
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
