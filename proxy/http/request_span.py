"""What a request's span says of it: OpenTelemetry's conventions for HTTP servers.

Source: https://opentelemetry.io/docs/specs/semconv/http/http-spans/
"""

from __future__ import annotations

from collections.abc import Mapping

from lodefs.proxy.api import routes
from lodefs.proxy.api.responses import Answer
from lodefs.proxy.runtime.metrics import NO_SOURCE
from lodefs.proxy.tracing.spans import Attribute, Span

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
"""By route; others are named by their route alone."""


def describe(span: Span, method: str, path: str, label: str, answer: Answer) -> None:
    """Notes what was asked, and how it was answered. ``path``: without its query, which may let its
    reader in. ``label``: the route, as in metrics."""
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
