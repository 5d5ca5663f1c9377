"""The request that a task or thread works for: its id, and its trace if it has one.

Threads of the pools, and tasks that a request starts, inherit it. What several requests share, such
as a fetch, works for the one that began it.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from lodefs.chunkstore.nodeapi import trace_context
from lodefs.chunkstore.nodeapi.trace_context import (
    PARENT_HEADER,
    STATE_HEADER,
    TraceContext,
    current_trace,
    new_trace,
    parse_trace,
)

ID_HEADER = "X-Request-Id"
SCOPE_HEADERS = (ID_HEADER, PARENT_HEADER, STATE_HEADER)
_ID = re.compile(r"[A-Za-z0-9._~:/+=@-]{1,128}")
_ID_BYTES = 8


class RequestScope:
    """One request. ``is_named``: whether its client, or anybody else, knows its id by now."""

    __slots__ = ("_id",)

    def __init__(self, given: str = "") -> None:
        """``given``: the id that the client sent; one that could not be logged is not taken."""
        self._id = given if _ID.fullmatch(given) else ""

    @property
    def is_named(self) -> bool:
        """Whether it has an id: most requests never need one."""
        return bool(self._id)

    @property
    def id(self) -> str:
        """Its id; made when somebody asks for it first."""
        if not self._id:
            self._id = secrets.token_hex(_ID_BYTES)
        return self._id


current_request: ContextVar[RequestScope | None] = ContextVar("current_request", default=None)


def request_id() -> str:
    """The id of the request that is worked for; "" outside of requests."""
    scope = current_request.get()
    return "" if scope is None else scope.id


@contextmanager
def serving(headers: Mapping[str, str]) -> Iterator[RequestScope]:
    """Within it, the request with these headers is worked for."""
    scope = RequestScope(headers.get(ID_HEADER, ""))
    request, trace = current_request.set(scope), current_trace.set(_trace_of(headers))
    try:
        yield scope
    finally:
        current_request.reset(request)
        current_trace.reset(trace)


def _trace_of(headers: Mapping[str, str]) -> TraceContext | None:
    """The trace that a client sent; a new one for a header that is not as it should be."""
    parent = headers.get(PARENT_HEADER)
    if parent is None:
        return None
    return parse_trace(parent, headers.get(STATE_HEADER, "")) or new_trace()


def sampled_trace_id() -> str:
    """The trace of the request that is worked for, if somebody records it; else ""."""
    trace = current_trace.get()
    return trace.trace_id if trace is not None and trace.sampled else ""


def outgoing_headers() -> dict[str, str]:
    """The headers for a request to another node on behalf of the current one: its trace and its
    id; none outside of requests."""
    scope = current_request.get()
    named = {} if scope is None else {ID_HEADER: scope.id}
    return named | trace_context.outgoing_headers()


class RequestFields(logging.Filter):
    """Adds ``request_id``, and ``trace_id`` if there is one, to the lines of a request."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Every line passes."""
        scope, trace = current_request.get(), current_trace.get()
        if scope is not None:
            record.request_id = scope.id
        if trace is not None:
            record.trace_id = trace.trace_id
        return True
