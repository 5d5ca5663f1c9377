"""Ranged reads that another process carries out: what it needs for one, and no secret but the
signature of that one request.

Only the plain case is ordered. The process that carries an order out reports everything else, and
the store is then asked in the usual way, with its retries.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import msgspec

from lodefs.chunkstore.errors import LodefsError


class HttpOrder(msgspec.Struct, frozen=True, array_like=True):
    """A GET over HTTP/1.1. ``ca_file``: the certificates that a server's is checked against; "":
    no TLS. ``first`` and ``etag``: what the answer must begin with and be of."""

    host: str
    port: int
    ca_file: str
    request: bytes
    first: int
    etag: str
    connect_timeout_s: float
    read_timeout_s: float  # without a single byte
    transfer_timeout_s: float  # of the whole answer


Done = Callable[[int, float, type[LodefsError] | None], None]
"""Is told how an order ended: bytes that came, seconds, error."""


class RangeOrder(NamedTuple):
    """A range to be read: by a request, or from an open file's ``offset`` on. Who has it carried
    out calls ``done``, so that it counts as a call of the store."""

    http: HttpOrder | None
    fd: int = -1
    offset: int = 0
    done: Done = lambda _size_bytes, _seconds, _error: None


class OrderSource(Protocol):
    """A store whose ranges other processes can read."""

    def range_order(
        self, key: str, offset: int, size_bytes: int, if_match: str
    ) -> AbstractContextManager[RangeOrder | None]:
        """The order for a range of an object as it was at an ETag, which is a call of the store
        until the block ends; None if only ``get`` can read it, or the store is not to be asked now.
        Raises: NotFound, Changed and others, as ``get``."""
        ...


def range_order(
    objects: object, key: str, offset: int, size_bytes: int, if_match: str
) -> AbstractContextManager[RangeOrder | None]:
    """As of OrderSource; None for a store that is none."""
    source: OrderSource | None = objects if hasattr(objects, "range_order") else None
    if source is None:
        return nullcontext()
    return source.range_order(key, offset, size_bytes, if_match)
