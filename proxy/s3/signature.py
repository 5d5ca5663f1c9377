"""Signature Version 4: whether a request was signed by one who knows a key's secret.

Source: Amazon S3 API Reference, "Authenticating Requests (AWS Signature Version 4)": in headers,
and in the query of a presigned URL. Regions are not compared: a proxy is in none.
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
KEYS_MAX = 1024
_SIGNATURE_PARAMETER = "X-Amz-Signature"
_AUTHORIZATION = re.compile(
    rf"{ALGORITHM}\s+Credential=([^,\s]+)\s*,\s*SignedHeaders=([^,\s]+)\s*,"
    r"\s*Signature=([0-9a-f]{64})\s*\Z"
)
_STAMP = re.compile(r"[0-9]{8}T[0-9]{6}Z\Z")


class AccessKey(NamedTuple):
    """A key that requests may be signed with, and which repositories it may read."""

    name: str
    secret: str
    allows: Callable[[str], bool]

    def __repr__(self) -> str:
        """Without the secret."""
        return f"AccessKey({self.name})"


class AccessKeys(Protocol):
    """The keys that are known now."""

    def access_key(self, name: str) -> AccessKey | None:
        """The key of this name."""
        ...


class Claim(NamedTuple):
    """Who says to have signed a request, how and when."""

    name: str
    scope: str  # DAY/REGION/s3/aws4_request
    headers: str  # signed ones, with ';' between them
    signature: str
    stamp: str


def claim_of(authorization: str, headers: Mapping[str, str]) -> Claim:
    """The claim of an Authorization header. Raises: S3Error if it is malformed."""
    match = _AUTHORIZATION.match(authorization)
    if match is None:
        if authorization.startswith(ALGORITHM):
            raise S3Error("AuthorizationHeaderMalformed", "the Authorization header is malformed")
        raise S3Error("InvalidRequest", f"this signature is not known: use {ALGORITHM}")
    stamp = headers.get("x-amz-date", "")
    if not _STAMP.match(stamp):
        raise S3Error("AccessDenied", "a signed request needs a valid x-amz-date header")
    name, scope = _credential(match[1], stamp, "AuthorizationHeaderMalformed")
    return Claim(name, scope, match[2], match[3], stamp)


def claim_of_url(asked: S3Request) -> Claim:
    """The claim of a presigned URL. Raises: S3Error if it is malformed."""
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
    """The key's name and the scope. A name may hold '/'."""
    name, *scope = text.rsplit("/", 4)
    if len(scope) != 4 or scope[2:] != ["s3", "aws4_request"]:
        raise S3Error(code, "the credential must be KEY/YYYYMMDD/REGION/s3/aws4_request")
    if scope[0] != stamp[:8]:
        raise S3Error(code, "the credential is of another day than the request")
    return name, "/".join(scope)


class Verifier:
    """Checks signatures against the keys that are known now."""

    def __init__(self, keys: AccessKeys, clock_s: Callable[[], float] = wall_clock_s) -> None:
        self._keys = keys
        self._clock_s = clock_s
        self._signing: Lru[tuple[str, str, str], bytes] = Lru(KEYS_MAX)
        self._times: Lru[str, float] = Lru(KEYS_MAX)

    def verify(self, asked: S3Request) -> AccessKey:
        """The key that a request is signed with. Raises: S3Error, also if it is not signed."""
        authorization = asked.headers.get("authorization")
        in_url = "X-Amz-Algorithm" in asked.query or _SIGNATURE_PARAMETER in asked.query
        if authorization is not None and in_url:
            raise S3Error("InvalidArgument", "sign in the Authorization header or in the query")
        if authorization is None and "AWSAccessKeyId" in asked.query:
            what = "signature version 2 is not known: boto3 takes Config(signature_version='s3v4')"
            raise S3Error("InvalidRequest", what)
        if authorization is None and not in_url:
            raise S3Error(
                "AccessDenied",
                "requests must be signed here: `lodefs token create --s3` makes a key",
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
            raise S3Error("InvalidAccessKeyId", "this access key is not known here")
        head = canonical_head(asked.method, asked.path, asked.raw_query)
        if not self.is_signed(key, claim, head, asked.headers, payload):
            raise S3Error(
                "SignatureDoesNotMatch", "the signature is not the one that this key makes"
            )
        if authorization is not None:
            self.check_time(claim)
        else:
            self._check_expiry(claim, asked)
        if asked.headers.get("x-amz-security-token") or asked.query.get("X-Amz-Security-Token"):
            raise S3Error("InvalidToken", "keys of this proxy have no security token")
        return key

    def allows(
        self, claim: Claim, head: str, headers: Mapping[str, str], payload: str, repo: str
    ) -> bool:
        """Whether a request is signed, now, by a key that may read a repository. Raises: S3Error if
        its time is wrong."""
        key = self._keys.access_key(claim.name)
        if key is None or not key.allows(repo):
            return False
        self.check_time(claim)
        return self.is_signed(key, claim, head, headers, payload)

    def is_signed(
        self, key: AccessKey, claim: Claim, head: str, headers: Mapping[str, str], payload: str
    ) -> bool:
        """Whether a claim is true. ``head``: of ``canonical_head``."""
        names = claim.headers.split(";")
        if "host" not in names:
            return False
        lines = []
        for name in names:
            value = headers.get(name)
            if value is None:
                return False
            lines.append(f"{name}:{' '.join(value.split())}\n")
        asked = f"{head}{''.join(lines)}\n{claim.headers}\n{payload}"
        digest = sha256(asked.encode("latin-1", "replace")).hexdigest()
        text = f"{ALGORITHM}\n{claim.stamp}\n{claim.scope}\n{digest}"
        made = hmac_digest(self._key(key, claim.scope), text.encode(), "sha256").hex()
        return compare_digest(made, claim.signature.encode("ascii", "replace").decode())

    def check_time(self, claim: Claim) -> None:
        """Raises: S3Error if a request was signed too long ago, or will be."""
        now_s = self._clock_s()
        if abs(now_s - self._time_s(claim.stamp)) > SKEW_S_MAX:
            more = (
                ("RequestTime", claim.stamp),
                ("ServerTime", iso_time(now_s)),
                ("MaxAllowedSkewMilliseconds", str(int(SKEW_S_MAX * 1000))),
            )
            late = "the request's time differs too much from this machine's: compare the clocks"
            raise S3Error("RequestTimeTooSkewed", late, more=more)

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
                raise S3Error("AccessDenied", "the request's date is no date") from None
            self._times.put(stamp, found)
        return found

    def _key(self, key: AccessKey, scope: str) -> bytes:
        """The day's signing key of a secret."""
        known = (key.name, key.secret, scope)
        found = self._signing.get(known)
        if found is None:
            found = signing_key(key.secret, scope)
            self._signing.put(known, found)
        return found


def signing_key(secret: str, scope: str) -> bytes:
    """What requests of one scope are signed with."""
    made = b"AWS4" + secret.encode()
    for part in scope.split("/"):
        made = hmac_digest(made, part.encode(), "sha256")
    return made


def canonical_head(method: str, path: str, raw_query: str) -> str:
    """The first three lines of a canonical request."""
    uri = quote_from_bytes(unquote_to_bytes(path), safe="/")
    return f"{method}\n{uri}\n{canonical_query(raw_query)}\n"


def canonical_query(raw_query: str) -> str:
    """A query in canonical form, without its signature."""
    if not raw_query:
        return ""
    pairs = []
    for pair in filter(None, raw_query.split("&")):
        name, _, value = pair.replace("+", " ").partition("=")
        name = quote_from_bytes(unquote_to_bytes(name), safe="")
        if name != _SIGNATURE_PARAMETER:
            pairs.append((name, quote_from_bytes(unquote_to_bytes(value), safe="")))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))
