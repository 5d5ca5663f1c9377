"""Spans for the calls of any object store; those of S3 have OpenTelemetry's names.

Source: https://opentelemetry.io/docs/specs/semconv/object-stores/s3/
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar
from urllib.parse import urlsplit

from lodefs.chunkstore.objects.delegating import DelegatingStore, StoreCall
from lodefs.chunkstore.objects.interface import ObjectInfo, Part
from lodefs.chunkstore.objects.mirrored import is_replaced, report_corruption
from lodefs.chunkstore.objects.schemes import scheme_of
from lodefs.proxy.tracing.spans import Attribute, SpanKind, begin_span, spanned

T = TypeVar("T")

_S3_METHODS = {
    "get": "GetObject",
    "head": "HeadObject",
    "put": "PutObject",
    "list": "ListObjectsV2",
    "delete": "DeleteObject",
}


def store_attributes(url: str, operation: str, key: str) -> dict[str, Attribute]:
    """Returns the attributes of an operation on an object of a store."""
    parts = urlsplit(url)
    if parts.scheme != "s3":
        return {"url.full" if scheme_of(url) else "file.path": f"{url}/{key}"}
    full_key = "/".join(filter(None, (parts.path.strip("/"), key)))
    return {
        "rpc.system.name": "aws-api",
        "rpc.method": f"S3/{_S3_METHODS[operation]}",
        "aws.s3.bucket": parts.netloc,
        "aws.s3.key": full_key,
    }


class TracedObjects(DelegatingStore):
    """An ObjectStore whose calls are spans of their request, including the wait for a turn and the
    retries."""

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        # The caller's work between two objects is not part of the span.
        attributes = store_attributes(self.url, "list", prefix)
        span = begin_span("store.list", SpanKind.CLIENT, attributes)
        try:
            yield from self.inner.list(prefix, after=after, limit=limit)
        except Exception as error:
            span.fail(error)
            raise
        finally:
            span.end()

    @property
    def is_replaced(self) -> bool:
        return is_replaced(self.inner)

    def report_corruption(self, key: str, etag: str | None) -> bool:
        return report_corruption(self.inner, key, etag)

    def _call(self, call: StoreCall, ask: Callable[[], T]) -> T:
        attributes = store_attributes(self.url, call.operation, call.key)
        with spanned(f"store.{call.operation}", SpanKind.CLIENT, attributes) as span:
            answer = ask()
            if span.is_recorded and isinstance(answer, Part):
                span.note({"http.response.body.size": len(answer.data)})
            return answer
