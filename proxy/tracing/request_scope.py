"""The request that a task or thread works for: its id, and its trace if it has one.

Pool threads, and tasks that a request starts, inherit it. Work that several requests share, such as
a fetch, belongs to the request that began it.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from lodefs.chunkstore.protocol import trace_context
from lodefs.chunkstore.protocol.trace_context import (
    PARENT_HEADER,
    STATE_HEADER,
    current_trace,
    new_trace,
    parse_trace,
)
from lodefs.proxy.tracing.spans import NO_SPAN, NO_TRACER, Span, Tracer, recorded

ID_HEADER = "X-Request-Id"
SCOPE_HEADERS = (ID_HEADER, PARENT_HEADER, STATE_HEADER)
_ID = re.compile(r"[A-Za-z0-9._~:/+=@-]{1,128}")
_ID_BYTES = 8


class RequestScope:
    """One request. ``is_named``: its client, or somebody else, knows its id already. ``span`` is
    its recording."""

    __slots__ = ("_id", "span")

    def __init__(self, given: str = "") -> None:
        """``given`` is the client's id; an id that could not be logged is ignored."""
        self._id = given if _ID.fullmatch(given) else ""
        self.span: Span = NO_SPAN

    @property
    def is_named(self) -> bool:
        """Whether it has an id; most requests never need one."""
        return bool(self._id)

    @property
    def id(self) -> str:
        """Its id, which is made on first use."""
        if not self._id:
            self._id = secrets.token_hex(_ID_BYTES)
        return self._id


current_request: ContextVar[RequestScope | None] = ContextVar("current_request", default=None)


def request_id() -> str:
    """Returns the id of the current request; "" outside of requests."""
    scope = current_request.get()
    return "" if scope is None else scope.id


@contextmanager
def serving(headers: Mapping[str, str], tracer: Tracer = NO_TRACER) -> Iterator[RequestScope]:
    """Makes the request with these headers the current one for a block, and records it if the
    tracer wants that."""
    scope = RequestScope(headers.get(ID_HEADER, ""))
    parent = headers.get(PARENT_HEADER)
    caller = None if parent is None else parse_trace(parent, headers.get(STATE_HEADER, ""))
    is_recorded = tracer.wants(caller)
    if parent is not None and caller is None and not is_recorded:
        caller = new_trace()  # for a malformed header, too
    request, trace = current_request.set(scope), current_trace.set(caller)
    try:
        if is_recorded:
            with recorded(tracer, caller) as scope.span:
                yield scope
        else:
            yield scope
    finally:
        current_request.reset(request)
        current_trace.reset(trace)


def sampled_trace_id() -> str:
    """Returns the trace of the current request if it is recorded; otherwise ""."""
    trace = current_trace.get()
    return trace.trace_id if trace is not None and trace.sampled else ""


def outgoing_headers() -> dict[str, str]:
    """Returns the headers for a request to another node on behalf of the current one: its trace and
    its id; none outside of requests."""
    scope = current_request.get()
    named = {} if scope is None else {ID_HEADER: scope.id}
    return named | trace_context.outgoing_headers()


class RequestFields(logging.Filter):
    """Adds ``request_id``, and ``trace_id`` if there is one, to the lines of a request."""

    def filter(self, record: logging.LogRecord) -> bool:
        scope, trace = current_request.get(), current_trace.get()
        if scope is not None:
            record.request_id = scope.id
        if trace is not None:
            record.trace_id = trace.trace_id
        return True
