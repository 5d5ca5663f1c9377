"""Ranged reads that another process carries out: what it needs for one, and no secret but the
signature of that one request.

Only the plain case is ordered. The process that carries an order out reports everything else, and
the store is then asked in the usual way, with its retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol

import msgspec

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.objects.limiting import Limited
from lodefs.chunkstore.objects.observing import Observation


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


class RangeOrder(NamedTuple):
    """A range to be read: by a request, or from an open file's ``offset`` on."""

    http: HttpOrder | None
    fd: int = -1
    offset: int = 0


class OrderSource(Protocol):
    """A store whose ranges other processes can read."""

    def range_order(
        self, key: str, offset: int, size_bytes: int, if_match: str
    ) -> AbstractContextManager[RangeOrder | None]:
        """The order for a range of an object as it was at an ETag; None if only ``get`` can read
        it. Raises: NotFound, Changed and others, as ``get``."""
        ...


class RangeOrders:
    """Orders for the ranges of one store, within its limit of calls at once. For any thread."""

    def __init__(
        self,
        source: OrderSource,
        limited: Limited,
        observe: Callable[[Observation], None] | None = None,
    ) -> None:
        self._source = source
        self._limited = limited
        self._observe = observe

    @contextmanager
    def order(
        self, key: str, offset: int, size_bytes: int, if_match: str
    ) -> Iterator[RangeOrder | None]:
        """As of OrderSource; the order counts as a call until the block ends. None also while the
        store wants fewer requests. Raises: Unavailable (too many calls), and as OrderSource."""
        if not self._limited.pace.is_free:
            yield None
            return
        with (
            self._limited.turn(),
            self._source.range_order(key, offset, size_bytes, if_match) as order,
        ):
            yield order

    def carried_out(
        self, size_bytes: int, seconds: float, error: type[LodefsError] | None = None
    ) -> None:
        """Counts an order as a call of the store."""
        if self._observe is not None:
            self._observe(Observation("get", size_bytes, seconds, error))
