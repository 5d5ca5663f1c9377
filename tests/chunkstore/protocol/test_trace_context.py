"""Trace contexts are read strictly, as W3C Trace Context wants, and passed on as they came."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.protocol.trace_context import (
    TraceContext,
    current_trace,
    new_trace,
    outgoing_headers,
    parse_trace,
    trace_of_environment,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_passed_on_as_it_came() -> None:
    """Ids, the flag and the state of other systems come out as they went in."""
    trace = parse_trace(PARENT, "rojo=1,congo=t61")
    assert trace == TraceContext(TRACE, SPAN, True, "rojo=1,congo=t61")
    assert trace.headers == {"traceparent": PARENT, "tracestate": "rojo=1,congo=t61"}
    assert trace.lines == f"traceparent: {PARENT}\r\ntracestate: rojo=1,congo=t61\r\n".encode()


@pytest.mark.parametrize(
    ("parent", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-fe", False),
        (f"00-{TRACE}-{SPAN}-ff", True),
        (f"cc-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),
    ],
)
def test_flags_and_later_versions(parent: str, sampled: bool) -> None:
    """Of the flags only the one that is known counts; of a later version, its beginning."""
    assert parse_trace(parent) == TraceContext(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "garbage",
        PARENT.upper(),
        f" {PARENT}",
        f"{PARENT}\n",
        f"{PARENT}-more",
        f"{PARENT}, {PARENT}",
        f"ff-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE[:-1]}\u0663-{SPAN}-01",
    ],
)
def test_what_is_malformed_is_no_trace(parent: str) -> None:
    """Nothing is guessed."""
    assert parse_trace(parent) is None


@pytest.mark.parametrize("state", ["", "a=1\r\nHost: evil", "a=é", "a" * 513])
def test_a_state_that_cannot_be_a_header_is_left_out(state: str) -> None:
    """The trace itself goes on."""
    trace = parse_trace(PARENT, state)
    assert trace is not None
    assert trace.headers == {"traceparent": PARENT}


def test_new_traces_are_good_ones() -> None:
    """What begins here is read by the same rules, and is never the same twice."""
    trace = new_trace()
    assert parse_trace(trace.headers["traceparent"]) == trace != new_trace()


def test_of_a_job() -> None:
    """A job's environment names its trace, or none."""
    assert trace_of_environment({"TRACEPARENT": PARENT}) == TraceContext(TRACE, SPAN, True)
    assert trace_of_environment({"TRACEPARENT": "x"}) is trace_of_environment({}) is None


def test_outgoing() -> None:
    """Requests outside of a trace have no headers of it."""
    assert outgoing_headers() == {}
    token = current_trace.set(TraceContext(TRACE, SPAN))
    try:
        assert outgoing_headers() == {"traceparent": f"00-{TRACE}-{SPAN}-00"}
    finally:
        current_trace.reset(token)
