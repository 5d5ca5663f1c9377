"""Ranged reads of S3 objects over kept connections, with next to no work for the processor.

boto3 needs more than a millisecond of processor time for a GET, as much as receiving a MiB. So
its first GET is taken as the model: where the bucket answers, in which region, by which signature.
The next ones are written to connections of the same making (TLS, certificates), and their bodies
received with one call. Whatever is not as plain as expected is left to boto3, redirects and
refusals included.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from lodefs.chunkstore.objects.range_order import HttpOrder
from lodefs.chunkstore.objects.range_transport import (
    RangeConnection,
    RangeTransport,
    UnsupportedResponse,
    limit_waiting,
)
from lodefs.chunkstore.objects.sigv4 import Credentials, Signer
from lodefs.chunkstore.protocol.http_head import encode_request
from lodefs.chunkstore.protocol.trace_context import outgoing_headers
from lodefs.chunkstore.system.watchdog import Transfer
from lodefs.chunkstore.types import Buffer

SIZE_BYTES_MAX = 64 * 1024 * 1024  # of a body
ERROR_SIZE_BYTES_MAX = 64 * 1024
_SIGNED = re.compile(r"AWS4-HMAC-SHA256 Credential=[^,]+/\d{8}/([^/,]+)/s3/aws4_request,")
_FORM = re.compile(r"[!-~]+")  # what may stand in a request line


class RequestTemplate(NamedTuple):
    """The constant parts of a request, learned from one of boto3's."""

    url: str  # of the endpoint, without path
    host: str  # as in the Host header
    path: str  # what stands before a key
    region: str


class Timeouts(NamedTuple):
    """Seconds: to connect, without a byte, of a whole answer."""

    connect_s: float
    read_s: float
    transfer_s: float


class RangeResponse(NamedTuple):
    """``headers`` by lower-case name."""

    status: int
    headers: Mapping[str, str]
    data: Buffer


def request_template(url: str, headers: Mapping[str, str], key: str) -> RequestTemplate | None:
    """What all GETs share with this signed one of ``key``; None if it has unknown parts."""
    parts = urlsplit(url)
    signed = _SIGNED.match(headers.get("authorization", ""))
    if (
        signed is None
        or parts.query
        or "x-amz-s3session-token" in headers  # S3 Express: other credentials
        or not parts.path.endswith(f"/{key}")
        or not _FORM.fullmatch(parts.path)
    ):
        return None
    host = parts.netloc.rpartition("@")[2]
    path = parts.path.removesuffix(key)
    return RequestTemplate(f"{parts.scheme}://{parts.netloc}", host, path, signed.group(1))


class RangeReader:
    """GETs of ranges of the objects of one bucket. Safe for many threads."""

    def __init__(
        self,
        model: RequestTemplate,
        connect: Callable[[], Any],
        credentials: Callable[[], Credentials],
        *,
        timeouts: Timeouts,
        connections_max: int,
        ca_file: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``connect`` gives an open connection as http.client makes it: with ``sock`` and
        ``close``. ``connections_max``: idle ones that are kept. ``ca_file``: the certificates that
        servers' are checked against, if they are checked in the usual way."""
        self._model = model
        self._connect = connect
        self._credentials = credentials
        self._signer = Signer(model.host, model.region)
        self._timeouts = timeouts
        self._ca_file = ca_file
        self._clock = clock
        self._transport = RangeTransport(connections_max)

    def get(
        self,
        key: str,
        wanted: str,
        size_bytes: int,
        *,
        if_match: str | None,
        transfer: Transfer,
    ) -> RangeResponse:
        """The answer to a GET of ``wanted``, a Range header of at most ``size_bytes``.

        Raises: UnsupportedResponse, OSError (also if the connection ends within the answer).
        """
        request = self._request(key, wanted, if_match)
        with self._transport.ask(None, self._connected, request, transfer) as answer:
            head = answer.head
            most = size_bytes if head.status == 206 else ERROR_SIZE_BYTES_MAX
            if head.body_size_bytes > most:
                raise UnsupportedResponse(f"{head.body_size_bytes} bytes are more than {most}")
            return RangeResponse(head.status, head.headers, answer.read())

    def order(
        self, key: str, wanted: str, first: int, if_match: str, timeout_s: float
    ) -> HttpOrder | None:
        """The same GET for another process, if that can make it; within ``timeout_s``."""
        url = urlsplit(self._model.url)
        is_tls = url.scheme == "https"
        if url.hostname is None or (is_tls and not self._ca_file):
            return None
        return HttpOrder(
            url.hostname,
            url.port or (443 if is_tls else 80),
            self._ca_file if is_tls else "",
            self._request(key, wanted, if_match),
            first,
            if_match,
            *self._timeouts._replace(transfer_s=timeout_s),
        )

    def close(self) -> None:
        """Closes the connections, those in use when they become idle."""
        self._transport.close()

    def _request(self, key: str, wanted: str, if_match: str | None) -> bytes:
        path = self._model.path + key
        headers = self._signer.headers(path, self._credentials(), self._clock())
        headers |= {"range": wanted, "user-agent": "lodefs", "accept-encoding": "identity"}
        if if_match is not None:
            headers["if-match"] = if_match
        headers |= outgoing_headers()  # not signed: only x-amz-* and the host must be
        return encode_request("GET", path, headers.items())

    def _connected(self) -> RangeConnection:
        owner = self._connect()
        limit_waiting(owner.sock, self._timeouts.read_s)
        return RangeConnection(owner, owner.sock)
