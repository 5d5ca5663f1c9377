"""The fast path of the S3 interface: GETs and HEADs of objects whose bytes are cached.

Signatures differ from request to request, so no block of headers comes twice, as it does for
/files/. What is remembered is what a target is; headers are read, and the signature is checked,
each time. Whatever is not plain is left to service.py, also everything that is refused.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic, perf_counter
from typing import NamedTuple

from lodefs.chunkstore.system.lru import Lru
from lodefs.proxy.api.fast_path import TARGETS_MAX, FastPath, Target
from lodefs.proxy.api.ranges import ByteRange, Unsatisfiable
from lodefs.proxy.api.responses import Answer
from lodefs.proxy.s3.buckets import place_of
from lodefs.proxy.s3.errors import S3Error
from lodefs.proxy.s3.objects import one_range
from lodefs.proxy.s3.request import bucket_of_host, parse_request
from lodefs.proxy.s3.service import S3Service
from lodefs.proxy.s3.signature import (
    NO_PAYLOAD,
    UNSIGNED_PAYLOAD,
    Claim,
    Verifier,
    canonical_head,
    claim_of,
)

HEAD_BYTES_MAX = 4096
CLAIMS_MAX = 256
SIGNATURE_CHARS = 64
RANGE_CHARS_MAX = 40
RESOLVED_FOR_S = 1.0  # how long a branch or tag is taken for the same commit, as in namespace.py
_PLAIN_QUERIES = ("", "x-id=GetObject", "x-id=HeadObject")
# Headers that change the answer in ways that are not looked at here.
_NOT_PLAIN = frozenset(
    {
        *("if-none-match", "if-modified-since", "if-unmodified-since", "if-range"),
        *("transfer-encoding", "content-encoding", "expect", "upgrade", "x-amz-security-token"),
    }
)
# One complete head as RFC 9112 has it, without a folded line. Where another server, or aiohttp,
# could see another end of it, a body would be answered as a request.
_PLAIN_HEAD = re.compile(
    rb"(?:GET|HEAD) [!-~]+ HTTP/1\.1\r\n(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t -~]*\r\n)+\r\n"
)


class HotObject(NamedTuple):
    """An object that was answered before. ``heads``: of canonical requests, by method."""

    target: Target
    etag: str
    heads: dict[str, str]
    good_until_s: float


class PlainRequest(NamedTuple):
    """A GET or HEAD without anything special."""

    method: str
    headers: dict[str, str]


def parse_plain(data: bytes) -> PlainRequest | None:
    """``data`` as one complete GET or HEAD; None where it is anything else."""
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
        self._verifier: Verifier | None = service.verifier
        self._fast_path = fast_path
        self._clock_s = clock_s
        self._claims: Lru[tuple[str, str], Claim] = Lru(CLAIMS_MAX)
        self._objects: OrderedDict[tuple[str, bytes], HotObject] = OrderedDict()

    def learn(self, raw_target: str, headers: dict[str, str], answer: Answer) -> None:
        """Remember what a target was answered with."""
        target = answer.target
        path, _, raw_query = raw_target.partition("?")
        if target is None or raw_query not in _PLAIN_QUERIES or not self._fast_path.enabled:
            return
        heads = {method: canonical_head(method, path, raw_query) for method in ("GET", "HEAD")}
        found = dict(answer.headers)
        asked = parse_request("GET", raw_target, headers, self._domain)
        rev = place_of(self._settings, asked.bucket, asked.key).rev
        fixed = rev == found["x-amz-meta-lodefs-commit"]
        good_until_s = math.inf if fixed else self._clock_s() + RESOLVED_FOR_S
        key = (self._bucket(headers), raw_target.encode("latin-1", "replace"))
        self._objects[key] = HotObject(target, found["ETag"], heads, good_until_s)
        if len(self._objects) > TARGETS_MAX:
            self._objects.popitem(last=False)

    def answer(self, data: bytes, transport: asyncio.Transport, fd: int) -> bool:
        """Answer on the socket ``fd`` of ``transport``; False, with nothing sent, where it cannot.
        As of FastPath."""
        started = perf_counter()
        begin = 4 if data[:4] == b"GET " else 5
        raw_target = data[begin : data.find(b" ", begin)]
        if len(data) > HEAD_BYTES_MAX:
            return False
        if not self._domain and ("", raw_target) not in self._objects:
            return False
        asked = parse_plain(data)
        if asked is None:
            return False
        found = self._objects.get((self._bucket(asked.headers), raw_target))
        if found is None or self._clock_s() >= found.good_until_s or not self._may(asked, found):
            return False
        headers = asked.headers
        if headers.get("if-match", found.etag) != found.etag:
            return False
        target = found.target
        wanted = _range(headers.get("range"), target.size_bytes)
        if isinstance(wanted, Unsatisfiable):
            return False
        first, size = wanted or ByteRange(0, target.size_bytes)
        return self._fast_path.send(
            target,
            (first, size, wanted is not None),
            transport,
            fd,
            started=started,
            with_body=asked.method == "GET",
        )

    def _bucket(self, headers: dict[str, str]) -> str:
        return bucket_of_host(headers.get("host", ""), self._domain) if self._domain else ""

    def _may(self, asked: PlainRequest, found: HotObject) -> bool:
        """Whether the request is signed by a key that may read the object."""
        if self._verifier is None:
            return True
        headers = asked.headers
        payload = headers.get("x-amz-content-sha256", "")
        if payload not in (UNSIGNED_PAYLOAD, NO_PAYLOAD):
            return False
        try:
            return self._verifier.allows(
                self._claim(headers.get("authorization", ""), headers),
                found.heads[asked.method],
                headers,
                payload,
                found.target.repo,
            )
        except S3Error:
            return False

    def _claim(self, authorization: str, headers: dict[str, str]) -> Claim:
        """The claim of a header; all of it but the signature is mostly that of others before.
        Raises: S3Error."""
        begin, _, signature = authorization.rpartition("Signature=")
        stamp = headers.get("x-amz-date", "")
        known = self._claims.get((begin, stamp))
        if known is not None and len(signature) == SIGNATURE_CHARS:
            return known._replace(signature=signature)
        found = claim_of(authorization, headers)
        self._claims.put((begin, stamp), found)
        return found


def _range(header: str | None, total_bytes: int) -> ByteRange | Unsatisfiable | None:
    """``one_range``, at once for the common form."""
    if header is not None and header.startswith("bytes="):
        first, _, last = header[6:].partition("-")
        if first.isdecimal() and last.isdecimal() and len(header) < RANGE_CHARS_MAX:
            begin, end = int(first), min(int(last) + 1, total_bytes)
            if begin < end:
                return ByteRange(begin, end - begin)
    return one_range(header, total_bytes)
