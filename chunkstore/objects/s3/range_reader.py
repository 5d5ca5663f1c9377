"""Ranged reads of S3 objects over kept connections that use very little processor time.

boto3 needs more than a millisecond of processor time for a GET, as much as receiving a MiB. So its
first GET is the model: it shows where the bucket answers, in which region, and with which
signature. Later GETs use connections of the same kind (TLS, certificates), and receive bodies with
one call. boto3 handles every answer that is not as expected, including redirects and refusals.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from lodefs.chunkstore.objects.ranges.answers import RangeResponse, range_header
from lodefs.chunkstore.objects.ranges.order import HttpOrder, http_order
from lodefs.chunkstore.objects.ranges.transport import (
    RangeConnection,
    RangeTransport,
    UnsupportedResponse,
    limit_waiting,
)
from lodefs.chunkstore.objects.s3.sigv4 import Credentials, Signer
from lodefs.chunkstore.objects.timed_requests import HttpOptions
from lodefs.chunkstore.protocol.http_head import encode_request
from lodefs.chunkstore.protocol.trace_context import outgoing_headers
from lodefs.chunkstore.system.systemd.watchdog import Transfer

ERROR_SIZE_BYTES_MAX = 64 * 1024
_SIGNED = re.compile(r"AWS4-HMAC-SHA256 Credential=[^,]+/\d{8}/([^/,]+)/s3/aws4_request,")
_FORM = re.compile(r"[!-~]+")  # characters of a request line


class RequestTemplate(NamedTuple):
    """The constant parts of a request, learned from one of boto3's."""

    url: str  # the endpoint without a path
    host: str  # as in the Host header
    path: str  # the path before a key
    region: str


def request_template(url: str, headers: Mapping[str, str], key: str) -> RequestTemplate | None:
    """Returns what all GETs share with this signed one of ``key``, as in a request line with its
    query; None if it has unknown parts."""
    parts = urlsplit(url)
    key, _, query = key.partition("?")
    signed = _SIGNED.match(headers.get("authorization", ""))
    if (
        signed is None
        or parts.query != query
        or "x-amz-s3session-token" in headers  # S3 Express uses other credentials
        or not parts.path.endswith(f"/{key}")
        or not _FORM.fullmatch(parts.path)
    ):
        return None
    host = parts.netloc.rpartition("@")[2]
    path = parts.path.removesuffix(key)
    return RequestTemplate(f"{parts.scheme}://{parts.netloc}", host, path, signed.group(1))


class RangeReader:
    """Reads ranges of the objects of one bucket with GETs. Many threads may use it at once."""

    def __init__(
        self,
        model: RequestTemplate,
        connect: Callable[[], Any],
        credentials: Callable[[], Credentials],
        options: HttpOptions,
        *,
        ca_file: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``connect`` returns an open connection like those of http.client, with ``sock`` and
        ``close``. ``ca_file`` has the certificates to check servers with, if the check is the
        usual one."""
        self._model = model
        self._connect = connect
        self._credentials = credentials
        self._signer = Signer(model.host, model.region)
        self._options = options
        self._ca_file = ca_file
        self._clock = clock
        self._transport = RangeTransport(options.connections_max)

    def get(
        self,
        key: str,
        offset: int,
        size_bytes: int,
        if_match: str | None,
        transfer: Transfer,
    ) -> RangeResponse:
        """Returns the answer to a GET of a range; a negative ``offset`` asks for the last bytes.

        Raises: UnsupportedResponse; OSError, also if the connection ends within the answer.
        """
        request = self._request(key, offset, size_bytes, if_match)
        with self._transport.ask(None, self._connected, request, transfer) as answer:
            head = answer.head
            most = size_bytes if head.status == 206 else ERROR_SIZE_BYTES_MAX
            if head.body_size_bytes > most:
                raise UnsupportedResponse(f"{head.body_size_bytes} bytes exceed {most}")
            return RangeResponse(head.status, head.headers, answer.read())

    def order(self, key: str, first: int, size_bytes: int, if_match: str) -> HttpOrder | None:
        """Returns the same GET as an order for another process, if that can make it."""
        request = self._request(key, first, size_bytes, if_match)
        url, options, ca_file = self._model.url, self._options, self._ca_file
        return http_order(url, request, first, size_bytes, if_match, options, ca_file)

    def keep_open(self, count: int) -> None:
        """Keeps ``count`` idle connections open. Raises: OSError and what ``connect`` raises."""
        self._transport.keep_open(None, self._connected, count)

    def close(self) -> None:
        """Closes the idle connections now, and the others once they are idle."""
        self._transport.close()

    def _request(self, key: str, offset: int, size_bytes: int, if_match: str | None) -> bytes:
        target = self._model.path + key
        path, _, query = target.partition("?")
        headers = self._signer.headers(path, self._credentials(), self._clock(), query=query)
        headers |= {"range": range_header(offset, size_bytes), "user-agent": "lodefs"}
        headers["accept-encoding"] = "identity"
        if if_match is not None:
            headers["if-match"] = if_match
        headers |= outgoing_headers()  # not signed: only x-amz-* and the host must be signed
        return encode_request("GET", target, headers.items())

    def _connected(self) -> RangeConnection:
        owner = self._connect()
        limit_waiting(owner.sock, self._options.read_timeout_s)
        return RangeConnection(owner, owner.sock)
