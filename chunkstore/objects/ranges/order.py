"""Ranged reads that another process carries out. An order has all that the read needs, and no
secret except what authenticates that one request (a signature, or the token of a cloud).

Only the plain case is ordered. The process that carries out an order reports everything else, and
the store is then asked in the usual way, with its retries.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.objects.timed_requests import HttpOptions

SIZE_BYTES_MAX = 64 * 1024 * 1024  # of a range


class HttpOrder(msgspec.Struct, frozen=True, array_like=True):
    """A GET over HTTP/1.1. ``ca_file`` has the certificates to check the server's against; "" means
    no TLS. The answer must begin at ``first`` and have the ETag ``etag``."""

    host: str
    port: int
    ca_file: str
    request: bytes
    first: int
    etag: str
    connect_timeout_s: float
    read_timeout_s: float  # maximum time without a byte
    transfer_timeout_s: float  # for the whole answer
    etag_header: str = "etag"  # the answer's header, in lower case


def http_order(
    endpoint: str,
    request: bytes,
    first: int,
    size_bytes: int,
    etag: str,
    options: HttpOptions,
    ca_file: str,
    etag_header: str = "etag",
) -> HttpOrder | None:
    """Returns the order for a GET to ``endpoint``, http(s)://HOST[:PORT]; None if that needs TLS
    and no ``ca_file`` has the certificates."""
    url = urlsplit(endpoint)
    is_tls = url.scheme == "https"
    if url.hostname is None or (is_tls and not ca_file):
        return None
    return HttpOrder(
        url.hostname,
        url.port or (443 if is_tls else 80),
        ca_file if is_tls else "",
        request,
        first,
        etag,
        options.connect_timeout_s,
        options.read_timeout_s,
        options.answer_s(size_bytes),
        etag_header,
    )


Done = Callable[[int, float, type[LodefsError] | None], None]
"""Called when an order ends, with the bytes that came, the seconds, and the error."""


class RangeOrder(NamedTuple):
    """A range to be read by a request, or from an open file's ``offset`` on. The process that has
    it carried out calls ``done``, so that it counts as a call of the store."""

    http: HttpOrder | None
    fd: int = -1
    offset: int = 0
    done: Done = lambda _size_bytes, _seconds, _error: None


class OrderSource(Protocol):
    """A store whose ranges other processes can read."""

    def range_order(
        self, key: str, offset: int, size_bytes: int, if_match: str
    ) -> AbstractContextManager[RangeOrder | None]:
        """Yields the order for a range of an object with the given ETag. It counts as a call of the
        store until the block ends. It yields None if only ``get`` can read the range, or the store
        must not be asked now. Raises: NotFound, Changed and others, as ``get`` does."""
        ...


def range_order(
    objects: object, key: str, offset: int, size_bytes: int, if_match: str
) -> AbstractContextManager[RangeOrder | None]:
    """Calls the store's ``range_order``; yields None if the store is not an OrderSource."""
    source: OrderSource | None = objects if hasattr(objects, "range_order") else None
    if source is None:
        return nullcontext()
    return source.range_order(key, offset, size_bytes, if_match)
