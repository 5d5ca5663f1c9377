"""A request's place in a distributed trace, and how programs pass it on.

Source: W3C Trace Context, https://www.w3.org/TR/trace-context/. Lodefs passes a trace on unchanged;
only a program that records spans replaces its caller's span by its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import NamedTuple

PARENT_HEADER, STATE_HEADER = "traceparent", "tracestate"
PARENT_VARIABLE, STATE_VARIABLE = "TRACEPARENT", "TRACESTATE"  # in a program's environment
_PARENT = re.compile(
    r"(?P<version>(?!ff)[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})-"
    r"(?P<span>(?!0{16})[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<more>-[!-~]*)?"
)
_STATE = re.compile(r"[ -~]{1,512}")
_SAMPLED = 1


class TraceContext(NamedTuple):
    """Ids in lower-case hex: that of the trace (32 digits), and that of the current span (16).
    ``sampled``: whether the caller records it. ``state``: entries of other systems."""

    trace_id: str
    span_id: str
    sampled: bool = False
    state: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """Returns the headers that pass it on, of version 00."""
        found = {PARENT_HEADER: f"00-{self.trace_id}-{self.span_id}-{self.sampled:02x}"}
        if self.state:
            found[STATE_HEADER] = self.state
        return found

    @property
    def lines(self) -> bytes:
        """Returns these headers as lines of HTTP/1.1."""
        return "".join(f"{name}: {value}\r\n" for name, value in self.headers.items()).encode()


current_trace: ContextVar[TraceContext | None] = ContextVar("current_trace", default=None)
"""The trace of the request that this task or thread works for, or None."""


def parse_trace(parent: str, state: str = "") -> TraceContext | None:
    """Parses the two headers. Returns None if the first is malformed, and drops a malformed state.
    Of an unknown version the beginning counts, as the standard requires."""
    found = _PARENT.fullmatch(parent)
    if found is None or (found["version"] == "00" and found["more"] is not None):
        return None
    sampled = bool(int(found["flags"], 16) & _SAMPLED)
    kept = state if _STATE.fullmatch(state) else ""
    return TraceContext(found["trace"], found["span"], sampled, kept)


def new_trace() -> TraceContext:
    """Returns a trace that begins here, and that nobody records."""
    return TraceContext(os.urandom(16).hex(), os.urandom(8).hex())


def trace_of_environment(environ: Mapping[str, str]) -> TraceContext | None:
    """Returns the trace of a program's job, from its environment; None if there is none, or it is
    malformed."""
    return parse_trace(environ.get(PARENT_VARIABLE, ""), environ.get(STATE_VARIABLE, ""))


def outgoing_headers() -> dict[str, str]:
    """Returns the headers for a request on behalf of the current one; none without a trace."""
    trace = current_trace.get()
    return {} if trace is None else trace.headers
