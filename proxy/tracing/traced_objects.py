"""Spans for the calls of any object store, those of S3 with OpenTelemetry's names for them.

Source: https://opentelemetry.io/docs/specs/semconv/object-stores/s3/
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from urllib.parse import urlsplit

from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore, Part
from lodefs.chunkstore.objects.mirrors.mirrored import doubt, is_replaced
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.tracing.spans import Attribute, Span, SpanKind, begin_span, spanned

_S3_METHODS = {
    "get": "GetObject",
    "head": "HeadObject",
    "put": "PutObject",
    "list": "ListObjectsV2",
    "delete": "DeleteObject",
}


def store_attributes(url: str, operation: str, key: str) -> dict[str, Attribute]:
    """What is said of an operation on an object of a store."""
    parts = urlsplit(url)
    if parts.scheme != "s3":
        return {"file.path": f"{url}/{key}"}
    full_key = "/".join(filter(None, (parts.path.strip("/"), key)))
    return {
        "rpc.system.name": "aws-api",
        "rpc.method": f"S3/{_S3_METHODS[operation]}",
        "aws.s3.bucket": parts.netloc,
        "aws.s3.key": full_key,
    }


class TracedObjects:
    """An ObjectStore whose calls are spans of the request that they are made for: with the waiting
    for a turn, and with repetitions."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        with self._call("get", key) as span:
            part = self._inner.get(key, offset=offset, size=size, if_match=if_match)
            if span.is_recorded:
                span.note({"http.response.body.size": len(part.data)})
            return part

    def head(self, key: str) -> ObjectInfo:
        with self._call("head", key):
            return self._inner.head(key)

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        with self._call("put", key):
            return self._inner.put(key, data, if_absent=if_absent)

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        # What the caller does between two objects is none of its parts.
        span = self._begin("list", prefix)
        try:
            yield from self._inner.list(prefix, after=after, limit=limit)
        except Exception as error:
            span.fail(error)
            raise
        finally:
            span.end()

    def delete(self, key: str) -> None:
        with self._call("delete", key):
            self._inner.delete(key)

    @property
    def is_replaced(self) -> bool:
        """As of mirrored.is_replaced."""
        return is_replaced(self._inner)

    def doubt(self, key: str, etag: str | None) -> bool:
        """As of mirrored.doubt."""
        return doubt(self._inner, key, etag)

    def close(self) -> None:
        self._inner.close()

    def _call(self, operation: str, key: str) -> AbstractContextManager[Span]:
        attributes = store_attributes(self.url, operation, key)
        return spanned(f"store.{operation}", SpanKind.CLIENT, attributes)

    def _begin(self, operation: str, key: str) -> Span:
        attributes = store_attributes(self.url, operation, key)
        return begin_span(f"store.{operation}", SpanKind.CLIENT, attributes)
