"""Signature Version 4: checks whether a holder of a key's secret signed a request.

Source: Amazon S3 API Reference, "Authenticating Requests (AWS Signature Version 4)": in headers,
and in the query of a presigned URL. Regions are not compared, since a proxy has none.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Callable, Mapping
from hashlib import sha256
from hmac import compare_digest
from hmac import digest as hmac_digest
from time import strptime
from time import time as wall_clock_s
from typing import NamedTuple, Protocol
from urllib.parse import quote_from_bytes, unquote_to_bytes

from lodefs.chunkstore.system.lru import Lru
from lodefs.proxy.s3.documents import iso_time
from lodefs.proxy.s3.errors import S3Error
from lodefs.proxy.s3.request import S3Request

ALGORITHM = "AWS4-HMAC-SHA256"
SKEW_S_MAX = 900.0
EXPIRES_S_MAX = 7 * 86400
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
NO_PAYLOAD = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # SHA-256 of b""
SIGNATURE_CHARS = 64
KEYS_MAX = 1024
_SIGNATURE_PARAMETER = "X-Amz-Signature"
_AUTHORIZATION = re.compile(
    rf"{ALGORITHM}\s+Credential=([^,\s]+)\s*,\s*SignedHeaders=([^,\s]+)\s*,"
    r"\s*Signature=([0-9a-f]{64})\s*\Z"
)
_STAMP = re.compile(r"[0-9]{8}T[0-9]{6}Z\Z")


class AccessKey(NamedTuple):
    """A key that can sign requests: the repositories that it may read, the buckets of another S3,
    and whether it may read every repository."""

    name: str
    secret: str
    allows: Callable[[str], bool]
    forwards: Callable[[str], bool] = lambda _: False
    sees_all: bool = False

    def __repr__(self) -> str:
        return f"AccessKey({self.name})"


class AccessKeys(Protocol):
    """The currently known keys."""

    def access_key(self, name: str) -> AccessKey | None:
        """Returns the key with this name."""


class Signer:
    """Makes signatures with one day's key: HMAC with SHA-256 (RFC 2104), whose first two blocks are
    hashed only once."""

    def __init__(self, key: bytes) -> None:
        """``key`` has 32 bytes, from ``signing_key``."""
        block = key.ljust(sha256().block_size, b"\0")
        self._inner = sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = sha256(bytes(byte ^ 0x5C for byte in block))

    def signature(self, stamp: bytes, scope: bytes, canonical: bytes) -> bytes:
        inner = self._inner.copy()
        digest = sha256(canonical).hexdigest().encode()
        inner.update(b"AWS4-HMAC-SHA256\n%b\n%b\n%b" % (stamp, scope, digest))
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.hexdigest().encode()


class Claim(NamedTuple):
    """The claimed signer of a request, with the time and the signed headers."""

    name: str
    scope: str  # DAY/REGION/s3/aws4_request
    headers: str  # signed headers, separated by ';'
    signature: str
    stamp: str


def claim_of(authorization: str, headers: Mapping[str, str]) -> Claim:
    """Returns the claim in an Authorization header. Raises: S3Error if it is malformed."""
    match = _AUTHORIZATION.match(authorization)
    if match is None:
        if authorization.startswith(ALGORITHM):
            raise S3Error("AuthorizationHeaderMalformed", "the Authorization header is malformed")
        raise S3Error("InvalidRequest", f"this kind of signature is not supported: use {ALGORITHM}")
    stamp = headers.get("x-amz-date", "")
    if not _STAMP.match(stamp):
        raise S3Error("AccessDenied", "a signed request needs a valid x-amz-date header")
    name, scope = _credential(match[1], stamp, "AuthorizationHeaderMalformed")
    return Claim(name, scope, match[2], match[3], stamp)


def claim_of_url(asked: S3Request) -> Claim:
    """Returns the claim in a presigned URL. Raises: S3Error if it is malformed."""
    wrong = "AuthorizationQueryParametersError"
    stamp = asked.text("X-Amz-Date")
    names = ("X-Amz-Credential", "X-Amz-SignedHeaders", _SIGNATURE_PARAMETER, "X-Amz-Expires")
    if asked.text("X-Amz-Algorithm") != ALGORITHM or not all(map(asked.text, names)):
        what = ", ".join(("X-Amz-Algorithm", "X-Amz-Date", *names))
        raise S3Error(wrong, f"a presigned URL needs {what}, with {ALGORITHM}")
    if not _STAMP.match(stamp):
        raise S3Error(wrong, "X-Amz-Date must be of the form YYYYMMDDTHHMMSSZ")
    name, scope = _credential(asked.text(names[0]), stamp, wrong)
    return Claim(name, scope, asked.text(names[1]), asked.text(names[2]), stamp)


def _credential(text: str, stamp: str, code: str) -> tuple[str, str]:
    """Returns the key's name and the scope. A name may contain '/'."""
    name, *scope = text.rsplit("/", 4)
    if len(scope) != 4 or scope[2:] != ["s3", "aws4_request"]:
        raise S3Error(code, "the credential must be KEY/YYYYMMDD/REGION/s3/aws4_request")
    if scope[0] != stamp[:8]:
        raise S3Error(code, "the credential and the request have different days")
    return name, "/".join(scope)


class Verifier:
    """Checks signatures against the currently known keys."""

    def __init__(self, keys: AccessKeys, clock_s: Callable[[], float] = wall_clock_s) -> None:
        self._keys = keys
        self._clock_s = clock_s
        self._signers: Lru[tuple[str, str, str], Signer] = Lru(KEYS_MAX)
        self._times: Lru[str, float] = Lru(KEYS_MAX)

    def verify(self, asked: S3Request) -> AccessKey:
        """Returns the key that signed a request. Raises: S3Error, also if it is not signed."""
        authorization = asked.headers.get("authorization")
        in_url = "X-Amz-Algorithm" in asked.query or _SIGNATURE_PARAMETER in asked.query
        if authorization is not None and in_url:
            raise S3Error("InvalidArgument", "sign in the Authorization header or in the query")
        if authorization is None and "AWSAccessKeyId" in asked.query:
            what = (
                "signature version 2 is not supported: boto3 takes Config(signature_version='s3v4')"
            )
            raise S3Error("InvalidRequest", what)
        if authorization is None and not in_url:
            raise S3Error(
                "AccessDenied",
                "requests must be signed: `lodefs token create --s3` makes a key",
            )
        if authorization is not None:
            claim = claim_of(authorization, asked.headers)
            payload = asked.headers.get("x-amz-content-sha256")
            if payload is None:
                raise S3Error("InvalidRequest", "the header x-amz-content-sha256 is missing")
            if asked.method in ("GET", "HEAD") and payload not in (UNSIGNED_PAYLOAD, NO_PAYLOAD):
                raise S3Error(
                    "XAmzContentSHA256Mismatch", "a request without a body has another hash"
                )
        else:
            claim = claim_of_url(asked)
            payload = UNSIGNED_PAYLOAD
        key = self._keys.access_key(claim.name)
        if key is None:
            raise S3Error("InvalidAccessKeyId", "this access key is unknown")
        head = canonical_head(asked.method, asked.path, asked.raw_query)
        rest = canonical_headers(claim, asked.headers, payload)
        if rest is None or not self.is_signed(key, claim, head + rest):
            raise S3Error("SignatureDoesNotMatch", "the signature does not match this key")
        if authorization is not None:
            self.check_time(claim.stamp)
        else:
            self._check_expiry(claim, asked)
        if asked.headers.get("x-amz-security-token") or asked.query.get("X-Amz-Security-Token"):
            raise S3Error("InvalidToken", "keys of this proxy have no security token")
        return key

    def key(self, name: str) -> AccessKey | None:
        return self._keys.access_key(name)

    def is_signed(self, key: AccessKey, claim: Claim, canonical: bytes) -> bool:
        """Whether the signature of a claim fits a canonical request."""
        stamp, scope = (text.encode("ascii", "replace") for text in (claim.stamp, claim.scope))
        made = self.signer(key, claim.scope).signature(stamp, scope, canonical)
        return compare_digest(made, claim.signature.encode("ascii", "replace"))

    def check_time(self, stamp: str) -> None:
        """Raises: S3Error if a request was signed too long ago, or in the future."""
        now_s = self._clock_s()
        if abs(now_s - self._time_s(stamp)) > SKEW_S_MAX:
            more = (
                ("RequestTime", stamp),
                ("ServerTime", iso_time(now_s)),
                ("MaxAllowedSkewMilliseconds", str(int(SKEW_S_MAX * 1000))),
            )
            late = "the request's time differs too much from this machine's: compare the clocks"
            raise S3Error("RequestTimeTooSkewed", late, more=more)

    def is_timely(self, stamp: bytes, scope: bytes) -> bool:
        """Whether a request with this time and scope may be answered now."""
        if stamp[:8] != scope[:8]:
            return False
        try:
            self.check_time(stamp.decode("ascii", "replace"))
        except S3Error:
            return False
        return True

    def _check_expiry(self, claim: Claim, asked: S3Request) -> None:
        expires = asked.text("X-Amz-Expires")
        if not re.fullmatch(r"[0-9]{1,6}", expires) or not 0 < int(expires) <= EXPIRES_S_MAX:
            what = f"X-Amz-Expires must be a number of seconds from 1 to {EXPIRES_S_MAX}"
            raise S3Error("AuthorizationQueryParametersError", what)
        now_s, begins_s = self._clock_s(), self._time_s(claim.stamp)
        if begins_s - now_s > SKEW_S_MAX:
            raise S3Error("AccessDenied", "the URL is not valid yet: compare the clocks")
        ends_s = begins_s + int(expires)
        if now_s > ends_s:
            more = (("Expires", iso_time(ends_s)), ("ServerTime", iso_time(now_s)))
            raise S3Error("AccessDenied", "the URL has expired: make a new one", more=more)

    def _time_s(self, stamp: str) -> float:
        found = self._times.get(stamp)
        if found is None:
            try:
                found = float(timegm(strptime(stamp, "%Y%m%dT%H%M%SZ")))
            except ValueError:
                raise S3Error("AccessDenied", "the request's date is invalid") from None
            self._times.put(stamp, found)
        return found

    def signer(self, key: AccessKey, scope: str) -> Signer:
        """Returns the signer for a key's day and region."""
        known = (key.name, key.secret, scope)
        found = self._signers.get(known)
        if found is None:
            found = Signer(signing_key(key.secret, scope))
            self._signers.put(known, found)
        return found


def signing_key(secret: str, scope: str) -> bytes:
    made = b"AWS4" + secret.encode()
    for part in scope.split("/"):
        made = hmac_digest(made, part.encode("ascii", "replace"), "sha256")
    return made


def canonical_head(method: str, path: str, raw_query: str) -> bytes:
    """Returns the first three lines of a canonical request."""
    uri = quote_from_bytes(unquote_to_bytes(path), safe="/")
    return f"{method}\n{uri}\n{canonical_query(raw_query)}\n".encode()


def canonical_headers(claim: Claim, headers: Mapping[str, str], payload: str) -> bytes | None:
    """Returns the other lines; None if a signed header is missing, or the host is not signed."""
    names = claim.headers.split(";")
    lines = []
    for name in names:
        value = headers.get(name)
        if value is None:
            return None
        lines.append(f"{name}:{' '.join(value.split())}\n")
    if "host" not in names:
        return None
    text = f"{''.join(lines)}\n{claim.headers}\n{payload}"
    return text.encode("latin-1", "replace")


def canonical_query(raw_query: str) -> str:
    """Returns a query in canonical form, without its signature."""
    if not raw_query:
        return ""
    pairs = []
    for pair in filter(None, raw_query.split("&")):
        name, _, value = pair.replace("+", " ").partition("=")
        name = quote_from_bytes(unquote_to_bytes(name), safe="")
        if name != _SIGNATURE_PARAMETER:
            pairs.append((name, quote_from_bytes(unquote_to_bytes(value), safe="")))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))
