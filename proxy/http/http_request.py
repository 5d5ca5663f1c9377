"""Reads a request that aiohttp parsed: its body, its headers, and whether it is a plain one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.protocol.trace_context import PARENT_HEADER
from lodefs.proxy.api import routes
from lodefs.proxy.api.fast_path import PlainGet
from lodefs.proxy.api.handlers import HEADERS
from lodefs.proxy.api.responses import Answer
from lodefs.proxy.metrics.server_metrics import NO_SOURCE
from lodefs.proxy.tracing.request_scope import ID_HEADER, SCOPE_HEADERS
from lodefs.proxy.tracing.spans import Attribute, Span

BODY_TIMEOUT_S = 10.0  # for the body to arrive
PIECE_TIMEOUT_S = 60.0  # for the next piece of a body of any size
# Conditions, and headers that differ between requests: the answer would not be the same again.
_NOT_PLAIN = ("If-Match", "If-None-Match", "If-Range", PARENT_HEADER, ID_HEADER)


async def body_of(request: web.BaseRequest, size_bytes_max: int) -> bytes:
    """Returns the body of a request. Raises: InvalidInput if its size is missing or too large, or
    it is encoded or incomplete."""
    size_bytes = request.content_length
    if size_bytes is None or size_bytes > size_bytes_max:
        raise InvalidInput(f"this request needs a Content-Length of at most {size_bytes_max} bytes")
    if "Content-Encoding" in request.headers:
        raise InvalidInput("a body must have no Content-Encoding")
    if not size_bytes:
        return b""
    _continue(request)
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            # request.read() would refuse more than aiohttp's own limit, a MiB
            return await request.content.readexactly(size_bytes)
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        raise InvalidInput("the body is incomplete") from error


async def content_of(request: web.BaseRequest) -> AsyncIterator[bytes]:
    """Yields the body of a request in pieces. Raises: InvalidInput if it is encoded, incomplete or
    does not go on."""
    if "Content-Encoding" in request.headers:
        raise InvalidInput("a body must have no Content-Encoding")
    _continue(request)
    try:
        while not request.content.at_eof():
            async with asyncio.timeout(PIECE_TIMEOUT_S):
                piece = await request.content.readany()
            if piece:
                yield piece
    except TimeoutError as error:
        raise InvalidInput("the body does not go on") from error
    except (ConnectionError, web.RequestPayloadError, HttpProcessingError) as error:
        raise InvalidInput("the body is incomplete") from error


def _continue(request: web.BaseRequest) -> None:
    """Tells a client that waits for it to send the body."""
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def asked_headers(request: web.BaseRequest) -> dict[str, str]:
    """Returns the headers that handlers use; a header sent twice is one list (RFC 9110, 5.3)."""
    return _those_of(request, HEADERS)


def scope_headers(request: web.BaseRequest) -> dict[str, str]:
    return _those_of(request, SCOPE_HEADERS)


def _those_of(request: web.BaseRequest, names: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in names:
        if name in request.headers:
            found[name] = ", ".join(request.headers.getall(name))
    return found


def all_headers(request: web.BaseRequest) -> dict[str, str]:
    """Returns all headers, with names in lower case; a header sent twice is one list."""
    found: dict[str, str] = {}
    for name, value in request.headers.items():
        name = name.lower()
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def is_plain(request: web.BaseRequest, answer: Answer, plain_get: PlainGet) -> bool:
    """Whether the same headers with another range will always get the same kind of answer."""
    special = any(name in request.headers for name in _NOT_PLAIN)
    # A Range in an uncommon spelling is one of the headers for fast_path.py, which would ignore it.
    ranges = len(request.headers.getall("Range", ()))
    if special or ranges != (plain_get.first >= 0):
        return False
    return answer.status in (200, 206) and bool(request.keep_alive)


_TREE = "{repository}@{revision}/{path}"
_NODE = "/nodes/{repository}@{commit}/{ino}"
TEMPLATES: Mapping[str, str] = {
    routes.FILES: f"/files/{_TREE}",
    routes.STAT: f"/stat/{_TREE}",
    routes.LIST: f"/list/{_TREE}",
    routes.TREES: f"/trees/{_TREE}",
    routes.SNAPSHOTS: "/snapshots/{repository}@{revision}",
    routes.NODE: _NODE,
    routes.CHILDREN: f"{_NODE}/children",
    routes.LOOKUP: f"{_NODE}/lookup",
    routes.DATA: f"{_NODE}/data",
}
"""Names of spans by route; other routes give their own name."""


def describe(span: Span, method: str, path: str, label: str, answer: Answer) -> None:
    """Adds request and answer to a span, by OpenTelemetry's conventions
    (https://opentelemetry.io/docs/specs/semconv/http/http-spans/). ``path`` has no query, which may
    contain credentials. ``label`` is the route, as in metrics."""
    template = TEMPLATES.get(label, label)
    span.name = f"{method} {template}"
    sent_bytes = len(answer.body) if answer.pieces is None else answer.size_bytes
    found: dict[str, Attribute] = {
        "http.request.method": method,
        "http.route": template,
        "url.path": path,
        "http.response.status_code": answer.status,
        "http.response.body.size": sent_bytes,
    }
    if answer.source != NO_SOURCE:
        found["lodefs.source"] = answer.source
    if answer.status >= 500:
        found["error.type"] = str(answer.status)
        span.error = f"answered {answer.status}"
    span.note(found)
