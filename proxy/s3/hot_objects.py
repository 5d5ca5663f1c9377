"""The fast path of the S3 interface: GETs and HEADs of objects whose bytes are cached.

Signatures differ between requests, so no block of headers repeats, as it does for /files/. This
remembers the meaning of targets and, for each connection, how to read its requests
(``RequestShape``); it checks the signature each time. Requests that are not plain are left to
service.py, as is every refusal.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hmac import compare_digest
from operator import itemgetter
from time import monotonic, perf_counter
from typing import Any, NamedTuple

from lodefs.proxy.api.fast_path import TARGETS_MAX, FastPath, Target
from lodefs.proxy.api.ranges import ByteRange
from lodefs.proxy.api.responses import Answer
from lodefs.proxy.runtime.thread_pools import REMOTE, remote_owner
from lodefs.proxy.s3.buckets import place_of
from lodefs.proxy.s3.errors import S3Error
from lodefs.proxy.s3.objects import one_range
from lodefs.proxy.s3.request import bucket_of_host, parse_request
from lodefs.proxy.s3.service import S3Service
from lodefs.proxy.s3.signature import (
    NO_PAYLOAD,
    SIGNATURE_CHARS,
    UNSIGNED_PAYLOAD,
    AccessKey,
    Claim,
    Signer,
    Verifier,
    canonical_head,
    canonical_headers,
    claim_of,
)

HEAD_BYTES_MAX = 4096
SHAPES_MAX = 4  # for one connection: with and without a range, GET and HEAD
RESOLVED_FOR_S = 1.0  # how long the commit of a branch or tag is cached, as in namespace.py
_PLAIN_QUERIES = ("", "x-id=GetObject", "x-id=HeadObject")
# Headers that change the answer in ways that this path does not handle.
_NOT_PLAIN = frozenset(
    {
        *("if-none-match", "if-modified-since", "if-unmodified-since", "if-range"),
        *("transfer-encoding", "content-encoding", "expect", "upgrade", "x-amz-security-token"),
        *("traceparent", "x-request-id"),
    }
)
# One complete head as in RFC 9112, without folded lines. If another server, or aiohttp, could see a
# different end of it, a body would be answered as a request.
_PLAIN_HEAD = re.compile(
    rb"(?:GET|HEAD) [!-~]+ HTTP/1\.1\r\n(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t -~]*\r\n)+\r\n"
)


class HotObject(NamedTuple):
    """An object that was answered before. ``heads`` begin canonical requests, by whether they are
    GETs."""

    target: Target
    etag: bytes
    heads: dict[bool, bytes]
    good_until_s: float


class PlainRequest(NamedTuple):
    """A GET or HEAD without special headers."""

    method: str
    headers: dict[str, str]


def parse_plain(data: bytes) -> PlainRequest | None:
    """Parses ``data`` as one complete GET or HEAD. Returns None for anything else."""
    if _PLAIN_HEAD.fullmatch(data) is None:
        return None
    line, *lines = data[:-4].decode("ascii").split("\r\n")
    method = line[: line.find(" ")]
    headers = {name.lower(): value for name, value in [one.split(": ", 1) for one in lines]}
    if len(headers) != len(lines) or not _NOT_PLAIN.isdisjoint(headers):
        return None
    if headers.get("content-length", "0") != "0":
        return None
    if headers.get("connection", "keep-alive").lower() != "keep-alive":
        return None
    return PlainRequest(method, headers)


class HotObjects:
    """The objects of one endpoint that can be answered at once."""

    def __init__(
        self, service: S3Service, fast_path: FastPath, clock_s: Callable[[], float] = monotonic
    ) -> None:
        self._settings = service.settings
        self._domain = service.settings.domain
        self._verifier = service.verifier
        self.fast_path = fast_path
        self._clock_s = clock_s
        self._objects: OrderedDict[tuple[str, bytes], HotObject] = OrderedDict()

    def learn(self, raw_target: str, headers: dict[str, str], answer: Answer) -> None:
        """Stores the answer to a target."""
        target = answer.target
        path, _, raw_query = raw_target.partition("?")
        if target is None or raw_query not in _PLAIN_QUERIES or not self.fast_path.enabled:
            return
        methods = ((True, "GET"), (False, "HEAD"))
        heads = {is_get: canonical_head(name, path, raw_query) for is_get, name in methods}
        found = dict(answer.headers)
        asked = parse_request("GET", raw_target, headers, self._domain)
        rev = place_of(self._settings, asked.bucket, asked.key).rev
        fixed = rev == found["x-amz-meta-lodefs-commit"]
        good_until_s = math.inf if fixed else self._clock_s() + RESOLVED_FOR_S
        key = (self.bucket(headers), raw_target.encode("latin-1", "replace"))
        self._objects[key] = HotObject(target, found["ETag"].encode(), heads, good_until_s)
        if len(self._objects) > TARGETS_MAX:
            self._objects.popitem(last=False)

    def client(self) -> HotClient:
        """Returns the fast path of a new connection."""
        return HotClient(self, self._verifier)

    def knows(self, raw_target: bytes) -> bool:
        """Whether a target may have been answered before."""
        return bool(self._domain) or ("", raw_target) in self._objects

    def find(self, bucket: str, raw_target: bytes) -> HotObject | None:
        """Returns an object that was answered before and is still the same."""
        found = self._objects.get((bucket, raw_target))
        return None if found is None or self._clock_s() >= found.good_until_s else found

    def bucket(self, headers: dict[str, str]) -> str:
        """Returns the bucket in the host of a request; "" if there is none."""
        return bucket_of_host(headers.get("host", ""), self._domain) if self._domain else ""


class HotClient:
    """One connection of an S3 client."""

    __slots__ = ("_objects", "_shapes", "_verifier")

    def __init__(self, objects: HotObjects, verifier: Verifier | None) -> None:
        self._objects = objects
        self._verifier = verifier
        self._shapes: list[RequestShape] = []  # the newest one comes first

    def answer(self, data: bytes, transport: asyncio.Transport, fd: int) -> bool:
        """Answers on the socket ``fd`` of ``transport``. Returns False, with nothing sent, if it
        cannot, as FastPath does."""
        started = perf_counter()
        is_get = data.startswith(b"GET ")
        begin = 4 if is_get else 5
        end = data.find(b" ", begin)
        raw_target = data[begin:end]
        if len(data) > HEAD_BYTES_MAX or not (is_get or data.startswith(b"HEAD ")):
            return False
        if not self._objects.knows(raw_target):
            return False
        for shape in self._shapes:
            values = shape.values_of(data, end)
            if values is not None:
                break
        else:
            learned = self._learn(data, end)
            if learned is None:
                return False
            shape, values = learned
        found = self._objects.find(shape.bucket, raw_target)
        if found is None or values[IF_MATCH] not in (b"", found.etag):
            return False
        wanted = _wanted(values[RANGE], found.target.size_bytes)
        if wanted is None or not self._may(shape, values, found, is_get=is_get):
            return False
        send = self._objects.fast_path.send
        owner = REMOTE if shape.claim is None else remote_owner(shape.claim.name)
        return send(
            found.target, wanted, transport, fd, started=started, with_body=is_get, owner=owner
        )

    def _learn(self, data: bytes, end: int) -> tuple[RequestShape, list[bytes]] | None:
        """Returns the shape of a request that is read for the first time, and its values."""
        asked = parse_plain(data)
        if asked is None:
            return None
        claim, canonical = None, b""
        if self._verifier is not None:
            payload = asked.headers.get("x-amz-content-sha256", "")
            try:
                claim = claim_of(asked.headers.get("authorization", ""), asked.headers)
            except S3Error:
                return None
            canonical = canonical_headers(claim, asked.headers, payload) or b""
            if payload not in (UNSIGNED_PAYLOAD, NO_PAYLOAD):
                return None
        shape = learn_shape(data, end, self._objects.bucket(asked.headers), claim, canonical)
        values = None if shape is None else shape.values_of(data, end)
        if shape is None or values is None:
            return None
        if claim is not None and shape.canonical_headers(values) != canonical:
            return None
        self._shapes = [shape, *self._shapes[: SHAPES_MAX - 1]]
        return shape, values

    def _may(
        self, shape: RequestShape, values: list[bytes], found: HotObject, *, is_get: bool
    ) -> bool:
        """Whether the request has a valid, current signature of a key that may read the object."""
        verifier, claim = self._verifier, shape.claim
        if verifier is None or claim is None:
            return verifier is None
        key = verifier.key(claim.name)
        if key is None:
            return False
        if key is not shape.key or shape.signer is None:
            shape.key, shape.signer = key, verifier.signer(key, claim.scope)
            shape.repo = ""
        repo, stamp = found.target.repo, values[STAMP]
        if repo != shape.repo:
            if not key.allows(repo):
                return False
            shape.repo = repo
        canonical = found.heads[is_get] + shape.canonical_headers(values)
        made = shape.signer.signature(stamp, shape.scope, canonical)
        return compare_digest(made, values[SIGNATURE]) and verifier.is_timely(stamp, shape.scope)


def _wanted(value: bytes, total_bytes: int) -> tuple[int, int, bool] | None:
    """Returns what a range (b"": none) asks for, as FastPath.send takes it; None if there is no
    such range."""
    if not value:
        return 0, total_bytes, False
    first, _, last = value.partition(b"-")
    if not (first.isdigit() and last.isdigit()):
        return _other_range(value, total_bytes)
    begin, end = int(first), min(int(last) + 1, total_bytes)
    return (begin, end - begin, True) if begin < end else None


def _other_range(value: bytes, total_bytes: int) -> tuple[int, int, bool] | None:
    """Returns the same for a range without a beginning or an end."""
    found = one_range(f"bytes={value.decode('latin-1')}", total_bytes)
    return (*found, True) if isinstance(found, ByteRange) else None


RANGE, IF_MATCH, STAMP, SIGNATURE, REQUEST_ID = range(5)  # the indexes of values
_ALWAYS_VARYING = (b"range", b"if-match")  # no shape has one of these in its literals
_LINE = re.compile(rb"([^:\r\n]+): ([^\r\n]*)\r\n")
_RANGE_CHARS_MAX = 33


class _Varying(NamedTuple):
    """A header that ends with a varying value. ``length`` 0: it extends to the end of the line. The
    group of ``pattern`` is the value."""

    place: int
    length: int
    pattern: re.Pattern[bytes]


_VARYING = {
    b"range": _Varying(RANGE, 0, re.compile(rb"bytes=([0-9]{1,16}-[0-9]{0,16}|-[0-9]{1,16})\Z")),
    b"if-match": _Varying(IF_MATCH, 66, re.compile(rb'("[0-9a-f]{64}")\Z')),
    b"x-amz-date": _Varying(STAMP, 16, re.compile(rb"([0-9]{8}T[0-9]{6}Z)\Z")),
    b"authorization": _Varying(
        SIGNATURE, SIGNATURE_CHARS, re.compile(rb"[!-~ ]*Signature=([0-9a-f]{64})\Z")
    ),
    b"amz-sdk-invocation-id": _Varying(REQUEST_ID, 36, re.compile(rb"([0-9A-Fa-f-]{36})\Z")),
}


class RequestShape:
    """The common parts of the requests of one client, so that the next one can be read at once.

    A client sends the same lines again and again; a few values vary, and the length of all but one
    of these is fixed. So a request that was read header by header, and was valid, shows how to read
    the next one: literal bytes with values between them. Each value is validated, so that it cannot
    contain another end of the head.

    ``claim`` is that of the request from which it was learned; None if clients are not identified.

    ``key``, ``signer`` and ``repo`` belong to its reader: the key of the last valid request, the
    signer of its signatures, and a repository that it may read.
    """

    __slots__ = ("_day", "_literals", "_order", "_tail", "_template", "bucket", "claim", "key",
                 "repo", "scope", "signer")  # fmt: skip

    def __init__(
        self,
        literals: Sequence[tuple[bytes, int, int]],
        tail: bytes,
        *,
        bucket: str = "",
        claim: Claim | None = None,
        template: bytes = b"%b",
        order: Sequence[int] = (STAMP,),
    ) -> None:
        """Reads ``literals``, each followed by a value, then ``tail``. ``template`` are canonical
        headers, with the values in ``order``."""
        self._literals = literals  # before each value: bytes, the value's index, its length
        self._tail = tail
        self._template = template
        self._order: Callable[[list[bytes]], Any] = itemgetter(*order)
        self.bucket = bucket
        self.claim = claim
        self._day = b"" if claim is None else claim.stamp[:8].encode("ascii", "replace")
        self.scope = b"" if claim is None else claim.scope.encode("ascii", "replace")
        self.key: AccessKey | None = None
        self.signer: Signer | None = None
        self.repo = ""

    def values_of(self, data: bytes, at: int) -> list[bytes] | None:
        """Returns the values of a request whose target ends at ``at``, by the indexes above; b""
        for missing ones. Returns None if it has another shape. Range and tag are unchanged."""
        values = [b""] * len(_VARYING)
        for literal, place, length in self._literals:
            if not data.startswith(literal, at):
                return None
            at += len(literal)
            end = at + length if length else data.find(b"\r", at, at + _RANGE_CHARS_MAX + 1)
            values[place] = data[at:end]
            at = end
        if data[at:] != self._tail or not values[STAMP].startswith(self._day):
            return None  # the credential in the literals is valid for one day
        words = b"".join(values[STAMP:]).replace(b"-", b"")
        return values if not words or words.isalnum() else None

    def canonical_headers(self, values: list[bytes]) -> bytes:
        """Returns the canonical headers of a request with these values, and what follows them."""
        made: bytes = self._template % self._order(values)
        return made


def learn_shape(
    data: bytes, at: int, bucket: str, claim: Claim | None, canonical: bytes
) -> RequestShape | None:
    """Returns the shape of a plain request whose target ends at ``at``; None if none can be used.
    ``canonical`` are its canonical headers and what follows them, if it has a claim."""
    literals = []
    begin = at
    for line in _LINE.finditer(data, data.find(b"\r\n", at) + 2):
        found = _varying(line[1].lower(), line[2])
        if found is not None:
            varying, value = found
            end = line.start(2) + value.start(1)
            literals.append((data[begin:end], varying.place, varying.length))
            begin = line.start(2) + value.end(1)
        elif line[1].lower() in _ALWAYS_VARYING:
            return None  # another form, which this path does not read
    tail = data[begin:]
    if claim is None:
        return RequestShape(literals, tail, bucket=bucket)
    template, order = _template(canonical)
    if not order:
        return None
    return RequestShape(literals, tail, bucket=bucket, claim=claim, template=template, order=order)


def _template(canonical: bytes) -> tuple[bytes, list[int]]:
    """Returns canonical headers with %b for each varying value, and the indexes of these."""
    lines, order = [], []
    for line in canonical.split(b"\n"):
        name, _, value = line.partition(b":")
        found = _varying(name, value)
        made = line.replace(b"%", b"%%")
        if found is not None:
            varying, match = found
            made = made[: -len(match[1])] + b"%b"
            order.append(varying.place)
        lines.append(made)
    return b"\n".join(lines), order


def _varying(name: bytes, value: bytes) -> tuple[_Varying, re.Match[bytes]] | None:
    """Returns the varying part of a header and its match; None if nothing varies."""
    varying = _VARYING.get(name)
    match = varying.pattern.match(value) if varying is not None else None
    return None if varying is None or match is None else (varying, match)
