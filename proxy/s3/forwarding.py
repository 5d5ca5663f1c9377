"""Passes reads of foreign buckets on to another S3, and signs them again.

Only what is listed here is passed on: operations that read and list objects, and a few headers.
Nothing is cached. Of the other side's errors only the code is passed back, since their text may
name the node's own credentials.
"""

from __future__ import annotations

import http.client
import logging
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import quote, quote_from_bytes

from lodefs.chunkstore.errors import DeadlineExceeded, Unavailable
from lodefs.chunkstore.objects.open_url import parse_endpoint
from lodefs.chunkstore.objects.s3.sigv4 import Credentials, Signer
from lodefs.proxy.api.responses import FOREIGN_CONTENT, Answer, Headers
from lodefs.proxy.runtime.thread_pools import Pool
from lodefs.proxy.s3.errors import S3Error
from lodefs.proxy.s3.request import S3Request

THREADS = 16
CALLS_MAX = 64  # calls that may wait for a thread
FORWARDS_MAX = 128  # at a time
DEADLINE_S = 40.0  # for each piece
PIECE_BYTES = 256 << 10
DOCUMENT_BYTES_MAX = 8 << 20  # for an answer without a length
ERROR_BYTES_MAX = 64 << 10
_OBJECT_QUERY = frozenset({"partNumber", "versionId", "x-id", *(
    f"response-{name}" for name in ("content-type", "content-language", "expires", "cache-control",
                                    "content-disposition", "content-encoding"))})  # fmt: skip
_LIST_QUERY = frozenset({"list-type", "prefix", "delimiter", "max-keys", "marker", "start-after",
                         "continuation-token", "encoding-type", "fetch-owner", "x-id"})  # fmt: skip
_ASKED = ("range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since",
          "x-amz-checksum-mode")  # fmt: skip
_ANSWERED = frozenset({
    "content-type", "content-range", "content-encoding", "content-language", "content-disposition",
    "cache-control", "expires", "etag", "last-modified", "accept-ranges", "x-amz-version-id",
    "x-amz-storage-class", "x-amz-mp-parts-count", "x-amz-bucket-region",
})  # fmt: skip
_ANSWERED_BEGINNINGS = ("x-amz-meta-", "x-amz-checksum-")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
_NUMBER = re.compile(r"[0-9]{1,18}\Z")
_CODE = re.compile(rb"<Code>([A-Za-z]{1,64})</Code>")
_CODE_OF_STATUS = {403: "AccessDenied", 404: "NoSuchKey", 412: "PreconditionFailed",
                   416: "InvalidRange"}  # fmt: skip
# Codes of the other side that concern this node's own signature.
_OWN_FAULTS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken",
                         "InvalidToken", "AuthorizationHeaderMalformed"})  # fmt: skip
T = TypeVar("T")
_log = logging.getLogger("lodefs.proxy")


class OtherS3(Protocol):
    """The S3 of foreign buckets."""

    def ask(self, request: RawRequest) -> RawAnswer:
        """Returns the head of an answer. Blocks. Raises: Unavailable, DeadlineExceeded, Denied."""


class Forwarder:
    """Passes reads on. For use on the event loop only."""

    def __init__(self, other: OtherS3) -> None:
        self._other = other
        self._pool = Pool("forward", threads=THREADS, queue_calls_max=CALLS_MAX)
        self.running = 0

    async def answer(self, asked: S3Request) -> Answer:
        """Returns the answer of the other S3. The client's key must be allowed to read the bucket.
        Raises: S3Error, Unavailable, DeadlineExceeded."""
        request = request_of(asked)
        if self.running >= FORWARDS_MAX:
            raise Unavailable("there are too many reads of other buckets at once")
        body = _Body(self, self._other)
        try:
            return await body.begin(request, asked)
        except BaseException:
            await body.aclose()
            raise

    async def run(self, call: Callable[[], T]) -> T:
        """Runs a blocking call in a thread, and returns its result."""
        return await self._pool.bounded("the other S3's answer", DEADLINE_S, call)


class _Body:
    """The rest of an answer: pieces as in proxy.node.Pieces. Closing it ends the connection."""

    def __init__(self, forwarder: Forwarder, other: OtherS3) -> None:
        self._forwarder = forwarder
        self._other = other
        self._raw: RawAnswer | None = None
        self._left_bytes = 0
        self._closed = False
        forwarder.running += 1

    async def begin(self, request: RawRequest, asked: S3Request) -> Answer:
        """Returns the answer, with its first piece."""
        raw = await self._forwarder.run(lambda: self._ask(request))
        given = dict(raw.headers)
        if raw.status == 304:
            await self.aclose()
            return Answer(304, _passed_on(raw, ("content-type", "content-range")))
        if raw.status not in (200, 206):
            raise _refusal(raw.status, await self._whole(ERROR_BYTES_MAX))
        length = given.get("content-length", "")
        length = length if _NUMBER.match(length) else ""
        if asked.method == "HEAD":
            await self.aclose()
            size = [("Content-Length", length)] if length else []
            return Answer(raw.status, [*_passed_on(raw), *size], size_bytes=int(length or 0))
        if not length:
            document = await self._whole(DOCUMENT_BYTES_MAX)
            return Answer(raw.status, _passed_on(raw), document)
        self._left_bytes = size_bytes = int(length)
        headers = [*_passed_on(raw), ("Content-Length", length), *FOREIGN_CONTENT]
        if not size_bytes:
            await self.aclose()
            return Answer(raw.status, headers)
        first = await anext(self)
        return Answer(raw.status, headers, pieces=self, first=first, size_bytes=size_bytes)

    def _ask(self, request: RawRequest) -> RawAnswer:
        raw = self._raw = self._other.ask(request)
        if self._closed:  # closed meanwhile
            raw.close()
        return raw

    async def _whole(self, size_bytes_max: int) -> bytes:
        """Returns all of a short body. Raises: Unavailable if it is longer."""
        found = b""
        while piece := await self._forwarder.run(lambda: self._read(PIECE_BYTES)):
            found += piece
            if len(found) > size_bytes_max:
                raise Unavailable("the other S3's answer is too long")
        await self.aclose()
        return found

    def _read(self, size_bytes: int) -> bytes:
        assert self._raw is not None
        return self._raw.read(size_bytes)

    def __aiter__(self) -> _Body:
        return self

    async def __anext__(self) -> bytes:
        if not self._left_bytes:
            raise StopAsyncIteration
        wanted = min(self._left_bytes, PIECE_BYTES)
        piece = await self._forwarder.run(lambda: self._read(wanted))
        if not piece:
            raise Unavailable("the other S3's answer was incomplete")
        self._left_bytes -= len(piece)
        return piece

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._forwarder.running -= 1
            if self._raw is not None:
                self._raw.close()


def request_of(asked: S3Request) -> RawRequest:
    """Returns the request for the other S3. Raises: S3Error for requests that are not passed on."""
    if not _BUCKET.match(asked.bucket):
        raise S3Error("InvalidBucketName", "this is not a valid bucket name", status=400)
    if any(part in (b".", b"..") for part in asked.key.split(b"/")):
        raise S3Error("InvalidURI", "keys with '.' or '..' between slashes are not passed on")
    known = _OBJECT_QUERY if asked.key else _LIST_QUERY
    only_location = not asked.key and set(asked.query) == {"location"}
    for name in asked.query:
        if name not in known and not name.startswith("X-Amz-") and not only_location:
            raise S3Error("NotImplemented", f"{name!r} is not passed on: only reads and lists are")
    pairs = [
        (quote(name, safe=""), quote_from_bytes(value, safe=""))
        for name, value in asked.query.items()
        if not name.startswith("X-Amz-")
    ]
    query = "&".join(f"{name}={value}" for name, value in sorted(pairs))
    path = f"/{asked.bucket}" + (f"/{quote_from_bytes(asked.key, safe='/~')}" if asked.key else "")
    headers = {name: asked.headers[name] for name in _ASKED if name in asked.headers}
    if not all(value.isascii() for value in headers.values()):
        raise S3Error("InvalidArgument", "a header of the request has invalid characters")
    return RawRequest(asked.method, path, query, headers)


def _passed_on(raw: RawAnswer, without: Sequence[str] = ()) -> Headers:
    return [
        (name, value)
        for name, value in raw.headers
        if (name in _ANSWERED or name.startswith(_ANSWERED_BEGINNINGS))
        and name not in without
        and value.isprintable()
    ]


def _refusal(status: int, body: bytes) -> S3Error:
    found = _CODE.search(body)
    code = found[1].decode() if found else _CODE_OF_STATUS.get(status, "InternalError")
    if code in _OWN_FAULTS:
        _log.error("the other S3 refuses this node's credentials: %s", code)
        return S3Error("AccessDenied", "the other S3 refuses this node")
    if status < 400:
        what = "the other S3 has this bucket at another endpoint"
        return S3Error("InvalidRequest", what)
    return S3Error(code, f"the other S3 answers {status} {code}", status=status)


TIMEOUT_S = 30.0  # without a single byte
_CA_VARIABLE = "AWS_CA_BUNDLE"


class RawRequest(NamedTuple):
    """A read. Path and query are in canonical form."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]


class RawAnswer:
    """The answer to a read. The caller must close it."""

    def __init__(
        self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse, host: str
    ) -> None:
        self.status = answer.status
        self.headers = [(name.lower(), value) for name, value in answer.getheaders()]
        self._connection = connection
        self._answer = answer
        self._host = host

    def read(self, size_bytes_max: int) -> bytes:
        """Returns more bytes of the body; b"" at its end. Raises: Unavailable, DeadlineExceeded."""
        with _translated(self._host):
            return self._answer.read1(size_bytes_max)

    def close(self) -> None:
        self._connection.close()


class RawS3:
    """One endpoint, with buckets in paths. Many threads may use it at once."""

    def __init__(
        self, endpoint_url: str, region: str, credentials: Callable[[], Credentials]
    ) -> None:
        """``credentials`` is called for each request. Raises: InvalidInput if the URL is not that
        of an endpoint."""
        self._is_tls, self._host, self._port = parse_endpoint(endpoint_url)
        plain = self._port == (443 if self._is_tls else 80)
        name = f"[{self._host}]" if ":" in self._host else self._host
        self._signer = Signer(name if plain else f"{name}:{self._port}", region)
        self._credentials = credentials
        self._tls: ssl.SSLContext | None = None

    def ask(self, request: RawRequest) -> RawAnswer:
        """Returns the head of an answer. Raises: Unavailable, DeadlineExceeded; the errors of
        finding credentials."""
        signed = self._signer.headers(
            request.path,
            self._credentials(),
            time.time(),
            method=request.method,
            query=request.query,
        )
        target = f"{request.path}?{request.query}" if request.query else request.path
        headers = {"accept-encoding": "identity", **request.headers, **signed}
        connection = self._connection()
        try:
            with _translated(self._host):
                connection.request(request.method, target, headers=headers)
                return RawAnswer(connection, connection.getresponse(), self._host)
        except BaseException:
            connection.close()
            raise

    def _connection(self) -> http.client.HTTPConnection:
        if not self._is_tls:
            return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=os.environ.get(_CA_VARIABLE) or None)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=TIMEOUT_S, context=self._tls
        )


@contextmanager
def _translated(host: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise DeadlineExceeded(f"{host} did not answer within {TIMEOUT_S:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{host} cannot be read: {error!r}") from error
