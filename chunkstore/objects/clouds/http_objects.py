"""Objects in a bucket of a cloud with an HTTP API: Google Cloud Storage, Azure Blobs.

A CloudApi defines each request and answer (gcs.py, azure.py). This module carries requests out by
urllib3, each within its time, and gives reads of ranges to other processes as orders. Wrappers add
retries, limits and counts.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from lodefs.chunkstore.errors import (
    AlreadyExists,
    Changed,
    DeadlineExceeded,
    LodefsError,
    NotFound,
    Unavailable,
    Unsupported,
)
from lodefs.chunkstore.objects.interface import (
    Md5Buffers,
    ObjectInfo,
    Part,
    check_key,
    check_prefix,
)
from lodefs.chunkstore.objects.ranges.answers import RangeResponse, part_of, range_header
from lodefs.chunkstore.objects.ranges.order import SIZE_BYTES_MAX, RangeOrder, http_order
from lodefs.chunkstore.objects.s3.errors import PastTheEnd
from lodefs.chunkstore.objects.timed_requests import (
    ANSWER_SIZE_BYTES_MAX,
    HttpOptions,
    ThreadTransfer,
    TimedRequests,
    watched,
)
from lodefs.chunkstore.protocol.http_head import encode_request
from lodefs.chunkstore.protocol.trace_context import outgoing_headers
from lodefs.chunkstore.types import Buffer

LIST_KEYS_MAX = 1000  # in one answer


class HttpRequest(NamedTuple):
    """A request. ``target`` is the path and query, as in the request line. ``before`` and ``after``
    enclose the bytes of an object that is put."""

    method: str
    target: str
    headers: dict[str, str]
    before: bytes = b""
    after: bytes = b""


class Page(NamedTuple):
    """One page of a listing: objects and, with a delimiter, prefixes of others. The next page is at
    ``token``; "" after the last one."""

    found: list[ObjectInfo]
    prefixes: list[str]
    token: str


class Listing(NamedTuple):
    """A request for one page of a listing. ``start`` is the first key, if the server can begin at
    one. ``delimiter`` ends prefixes; "" lists all objects."""

    prefix: str
    start: str = ""
    delimiter: str = ""
    keys_max: int = LIST_KEYS_MAX
    token: str = ""


class Written(NamedTuple):
    """The answer to a put: the object's ETag, and the MD5 of the bytes that arrived, if the server
    reports it."""

    etag: str
    md5: bytes | None


class CloudApi(Protocol):
    """The requests and answers of one cloud for the objects of one bucket. Keys are those of the
    bucket. All methods are pure, except that ``signed`` may fetch credentials. For any thread."""

    url: str  # of the bucket, for messages
    endpoint: str  # http(s)://HOST[:PORT]
    etag_header: str  # the header of a read's answer that changes whenever the bytes do
    has_suffix_ranges: bool  # knows "the last N bytes"
    has_start: bool  # lists from a given key on
    check: str  # what to check if nothing answers

    def signed(self, request: HttpRequest, body_bytes: int | None) -> HttpRequest:
        """Returns a request with credentials. ``body_bytes`` is None if it has no body. Raises:
        Denied, Unavailable, Unsupported if a library is missing."""
        ...

    def get(self, key: str, wanted: str, if_match: str | None) -> HttpRequest:
        """Returns a GET of the range ``wanted``, a Range header."""
        ...

    def head(self, key: str) -> HttpRequest: ...

    def put(self, key: str, *, if_absent: bool) -> HttpRequest: ...

    def delete(self, key: str) -> HttpRequest: ...

    def list(self, listing: Listing) -> HttpRequest: ...

    def info(self, key: str, answer: RangeResponse) -> ObjectInfo:
        """Returns the content of an answer to ``head``. Raises: ValueError, LookupError."""
        ...

    def written(self, answer: RangeResponse) -> Written:
        """Returns the content of an answer to ``put``. Raises: ValueError, LookupError."""
        ...

    def page(self, answer: RangeResponse) -> Page:
        """Returns the content of an answer to ``list``. Raises: ValueError, LookupError."""
        ...

    def is_taken(self, answer: RangeResponse) -> bool:
        """Whether a put is refused because the key exists."""
        ...

    def refusal(self, answer: RangeResponse, what: str) -> LodefsError:
        """Returns the error for an answer of another status than 2xx; ``what`` begins its
        message."""
        ...


class HttpObjects:
    """Objects below ``prefix`` in a bucket."""

    def __init__(self, api: CloudApi, prefix: str, options: HttpOptions) -> None:
        """Opens no connection."""
        self.url = f"{api.url}/{prefix}".rstrip("/")
        self._api = api
        self._base = f"{prefix}/" if prefix else ""
        self._options = options
        current = ThreadTransfer()
        self._http = _Http(api.endpoint, options, current)
        self._requests = TimedRequests(
            options,
            current,
            lambda error, what: _translated(error, what, api.check),
            lambda _: False,  # a refusal is no error of the client
            api.check,
        )

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        check_key(key)
        if size == 0:
            return self._nothing_of(key, if_match)
        try:
            if offset >= 0 or self._api.has_suffix_ranges:
                size_bytes = -offset if offset < 0 else size
                part = self._get(key, offset, size_bytes, if_match)
                cut = memoryview(part.data)[:size] if len(part.data) > size else part.data
                return Part(cut, part.object_size_bytes, part.etag)
            return self._get_end(key, -offset, size, if_match)
        except PastTheEnd:
            return self._nothing_of(key, if_match)
        except Changed:
            self._info(key, if_match)  # Azure says the same of an object that is not there
            raise

    def _get_end(self, key: str, end_bytes: int, size: int, if_match: str | None) -> Part:
        """Returns a part of the last ``end_bytes``, from a server that must be told where they
        begin."""
        info = self._info(key, if_match)
        first = max(info.size_bytes - end_bytes, 0)
        try:
            return self._get(key, first, min(end_bytes, size), info.etag)
        except Changed as error:
            if if_match is not None:
                raise
            raise Unavailable(f"{key} in {self.url} was replaced while it was read") from error

    def _get(self, key: str, offset: int, size_bytes: int, if_match: str | None) -> Part:
        what = f"cannot read {key} in {self.url}"
        wanted = range_header(offset, size_bytes)
        request = self._api.get(self._base + key, wanted, if_match)
        with self._requests.operation(what, size_bytes):
            answer = self._ask(request, what, size_bytes_max=size_bytes)
            if answer.status == 206:
                return part_of(answer, key, offset, if_match, self._api.etag_header)
        etag = answer.headers.get(self._api.etag_header, "")
        if if_match is not None and etag != if_match:
            raise Changed(f"{key} has the ETag {etag}, not {if_match}")
        if offset > 0:
            raise Unsupported(f"{what}: the server ignores ranges ({wanted}); lodefs needs them")
        return Part(answer.data, len(answer.data), etag)  # the whole object, which is not larger

    @contextmanager
    def range_order(
        self, key: str, offset: int, size_bytes: int, if_match: str
    ) -> Iterator[RangeOrder | None]:
        """Implements OrderSource, unless requests go through an HTTP proxy."""
        if self._http.is_proxied or not 0 < size_bytes <= SIZE_BYTES_MAX:
            yield None
            return
        wanted = range_header(offset, size_bytes)
        request = self._api.get(self._base + check_key(key), wanted, if_match)
        signed = self._api.signed(request, None)
        host, ca_file = urlsplit(self._api.endpoint).netloc, ssl.get_default_verify_paths().cafile
        headers = {"host": host, **_FIXED, **signed.headers, **outgoing_headers()}
        get = encode_request(signed.method, signed.target, headers.items())
        where, etag_header = self._api.endpoint, self._api.etag_header
        http = http_order(
            where, get, offset, size_bytes, if_match, self._options, ca_file or "", etag_header
        )
        yield None if http is None else RangeOrder(http)

    def head(self, key: str) -> ObjectInfo:
        return self._info(check_key(key), None)

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        what = f"cannot write {check_key(key)} in {self.url}"
        request = self._api.put(self._base + key, if_absent=if_absent)
        body = [memoryview(one).cast("B") for one in data if len(one)]
        parts = [memoryview(request.before), *body, memoryview(request.after)]
        with self._requests.operation(what):
            answer = self._send(request, body=parts)
            if if_absent and self._api.is_taken(answer):
                raise AlreadyExists(f"{key} exists already in {self.url}")
            if answer.status >= 300:
                raise self._api.refusal(answer, what)
            written = self._api.written(answer)
        if isinstance(data, Md5Buffers) and written.md5 != data.md5:
            self._check_arrived(key, b"".join(body), written.etag, if_absent=if_absent)
        return written.etag

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        return islice(self._list(self._base + prefix, after and self._base + after, limit), limit)

    def delete(self, key: str) -> None:
        what = f"cannot delete {check_key(key)} in {self.url}"
        with self._requests.operation(what):
            answer = self._send(self._api.delete(self._base + key))
            if answer.status >= 300 and answer.status != 404:
                raise self._api.refusal(answer, what)

    def close(self) -> None:
        self._http.close()
        self._requests.close()

    def _ask(
        self, request: HttpRequest, what: str, *, size_bytes_max: int = ANSWER_SIZE_BYTES_MAX
    ) -> RangeResponse:
        """Returns the answer to a request without a body, if that is 2xx."""
        answer = self._send(request, size_bytes_max=size_bytes_max)
        if answer.status >= 300:
            raise self._api.refusal(answer, what)
        return answer

    def _send(
        self,
        request: HttpRequest,
        *,
        size_bytes_max: int = ANSWER_SIZE_BYTES_MAX,
        body: Sequence[memoryview] | None = None,
    ) -> RangeResponse:
        body_bytes = None if body is None else sum(map(len, body))
        answer = self._http.ask(self._api.signed(request, body_bytes), size_bytes_max, body)
        self._requests.is_reached = True
        return answer

    def _info(self, key: str, if_match: str | None) -> ObjectInfo:
        what = f"cannot look up {key} in {self.url}"
        with self._requests.operation(what, 0):
            info = self._api.info(key, self._ask(self._api.head(self._base + key), what))
        if if_match is not None and info.etag != if_match:
            raise Changed(f"{key} has the ETag {info.etag}, not {if_match}")
        return info

    def _nothing_of(self, key: str, if_match: str | None) -> Part:
        info = self._info(key, if_match)
        return Part(b"", info.size_bytes, info.etag)

    def _check_arrived(self, key: str, body: bytes, etag: str, *, if_absent: bool) -> None:
        """Checks an object whose MD5, as the server tells it, is not the one that was expected.
        Raises: AlreadyExists or, if it may be put again, Unavailable."""
        try:
            if self.get(key, size=len(body) + 1, if_match=etag).data == body:
                return
        except (Changed, NotFound):
            pass
        what = f"{key} in {self.url} differs from the object that was put there"
        raise AlreadyExists(what) if if_absent else Unavailable(what)

    def _list(self, prefix: str, after: str, limit: int | None) -> Iterator[ObjectInfo]:
        """Yields the objects of the bucket with a prefix, after a key."""
        if self._api.has_start or after < prefix:
            start = after if self._api.has_start else ""
            keys_max = LIST_KEYS_MAX if limit is None else min(limit + bool(start), LIST_KEYS_MAX)
            for page in self._pages(Listing(prefix, start, "", max(keys_max, 1))):
                yield from (self._own(one) for one in page.found if one.key > after)
            return
        for level in levels_of(prefix, after):
            for page in self._pages(Listing(level, "", "/")):
                below: dict[str, ObjectInfo | None] = dict.fromkeys(page.prefixes)
                below |= {one.key: one for one in page.found}
                for key in sorted(one for one in below if one > after):
                    info = below[key]
                    yield from self._list(key, "", limit) if info is None else (self._own(info),)

    def _own(self, info: ObjectInfo) -> ObjectInfo:
        return ObjectInfo(info.key[len(self._base) :], info.size_bytes, info.etag)

    def _pages(self, listing: Listing) -> Iterator[Page]:
        what = f"cannot list {listing.prefix[len(self._base) :]} in {self.url}"
        is_more = True
        while is_more:
            with self._requests.operation(what, 0):
                page = self._api.page(self._ask(self._api.list(listing), what))
            yield page
            listing = listing._replace(token=page.token)
            is_more = bool(page.token)


def levels_of(prefix: str, after: str) -> list[str]:
    """Returns the prefixes to list with the delimiter "/", in this order, for all keys that begin
    with ``prefix`` and follow ``after``: what else they show lies before ``after``, or was shown
    before."""
    if not after.startswith(prefix):
        return []  # all keys with the prefix lie before it
    cuts = [n + 1 for n in range(len(prefix), len(after)) if after[n] == "/"]
    return [*(after[:cut] for cut in reversed(cuts)), prefix]


_FIXED = {"user-agent": "lodefs", "accept-encoding": "identity"}


class _Http:
    """Sends requests to one endpoint over kept connections: the only user of urllib3."""

    def __init__(self, endpoint: str, options: HttpOptions, current: ThreadTransfer) -> None:
        import urllib3
        from urllib3.connection import HTTPConnection, HTTPSConnection
        from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

        self._endpoint = endpoint
        proxy = _proxy_of(endpoint)
        self.is_proxied = proxy is not None
        timeout = urllib3.Timeout(options.connect_timeout_s, options.read_timeout_s)
        given: dict[str, Any] = {"maxsize": options.connections_max, "timeout": timeout}
        self._manager = (
            urllib3.PoolManager(**given) if proxy is None else urllib3.ProxyManager(proxy, **given)
        )
        classes = {"http": HTTPConnection, "https": HTTPSConnection}
        pools = {"http": HTTPConnectionPool, "https": HTTPSConnectionPool}
        self._manager.pool_classes_by_scheme = {
            scheme: type(
                "WatchedPool", (pool,), {"ConnectionCls": watched(classes[scheme], current)}
            )
            for scheme, pool in pools.items()
        }

    def ask(
        self,
        request: HttpRequest,
        size_bytes_max: int = ANSWER_SIZE_BYTES_MAX,
        body: Sequence[memoryview] | None = None,
    ) -> RangeResponse:
        """Returns the answer, of at most ``size_bytes_max`` (a refusal may have more). Raises:
        errors of urllib3, OSError."""
        headers = {**_FIXED, **request.headers, **outgoing_headers()}
        if body is not None:
            headers["content-length"] = str(sum(map(len, body)))
        response: Any = self._manager.urlopen(
            request.method,
            self._endpoint + request.target,
            body=body or None,
            headers=headers,
            redirect=False,
            retries=False,
            preload_content=False,
            decode_content=False,
        )
        found = {name.lower(): value for name, value in response.headers.items()}
        most = size_bytes_max if response.status < 300 else ANSWER_SIZE_BYTES_MAX
        try:
            data = b"" if request.method == "HEAD" else _body(response, found, most)
        except BaseException:
            response.close()  # what is left of the answer must not be taken for the next one
            raise
        finally:
            response.release_conn()
        return RangeResponse(response.status, found, data)

    def close(self) -> None:
        self._manager.clear()


def _body(response: Any, headers: Mapping[str, str], most: int) -> bytes:
    """Returns the body of an answer of urllib3. Raises: urllib3's HTTPError if it has more than
    ``most`` bytes, does not say how many it has, or ends early."""
    from urllib3.exceptions import HTTPError

    has_end = "content-length" in headers or "transfer-encoding" in headers
    if not has_end and response.status != 204:
        raise HTTPError("the answer does not say where it ends")
    data: bytes = response.read(most + 1)
    if len(data) > most:
        raise HTTPError(f"the server sends more than the {most} bytes that were asked for")
    response.read(1)  # raises if the connection ended within the body
    return data


def _proxy_of(endpoint: str) -> str | None:
    """Returns the URL of the HTTP proxy that the environment names for an endpoint (HTTPS_PROXY,
    NO_PROXY)."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(endpoint)
    proxy = getproxies().get(parts.scheme)
    return None if proxy is None or proxy_bypass(parts.netloc) else proxy


def _translated(error: Exception, what: str, check: str) -> Exception:
    """Returns the error of lodefs for one of urllib3, or for an answer that cannot be read."""
    from urllib3.exceptions import HTTPError, NameResolutionError
    from urllib3.exceptions import TimeoutError as LateError

    if isinstance(error, LateError | TimeoutError):
        return DeadlineExceeded(f"{what}: no answer came in time; {check}")
    if isinstance(error, NameResolutionError):
        return Unavailable(f"{what}: the host's name is unknown ({error}); {check}")
    if isinstance(error, HTTPError | OSError):
        return Unavailable(f"{what}: {error}; {check}")
    if isinstance(error, ValueError | LookupError):
        return Unavailable(f"{what}: the answer is malformed ({error!r})")
    return error
