"""Signatures, made by botocore."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest import mock
from urllib.parse import urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from lodefs.proxy.s3.errors import S3Error
from lodefs.proxy.s3.request import S3Request, parse_request
from lodefs.proxy.s3.signature import AccessKey, Verifier

NOW_S = 1_800_000_000.0
NAME, SECRET = "team-a", "secret-of-team-a"
URL = "http://node:7480/lodefs/vision/x%40main/%C3%A9%20%2B%25%40"
QUERIES = ["", "?list-type=2&prefix=a%20b%2B&delimiter=%2F", "?versioning", "?b=2&a=&a=1"]


class Keys:
    """One key."""

    def access_key(self, name: str) -> AccessKey | None:
        """See AccessKeys."""
        return AccessKey(NAME, SECRET, lambda repo: repo == "x") if name == NAME else None


def signed(
    url: str, *, method: str = "GET", secret: str = SECRET, name: str = NAME, expires_s: int = 0
) -> S3Request:
    """A request as botocore signs it, in the query with ``expires_s``."""
    request = AWSRequest(method=method, url=url, headers={"X-Odd": "  a   b "})
    credentials = Credentials(name, secret)
    if expires_s:
        auth = S3SigV4QueryAuth(credentials, "s3", "eu-west-1", expires=expires_s)
    else:
        auth = S3SigV4Auth(credentials, "s3", "eu-west-1")
    now = datetime.fromtimestamp(NOW_S, UTC).replace(tzinfo=None)
    with mock.patch("botocore.auth.get_current_datetime", return_value=now):
        auth.add_auth(request)
    parts = urlsplit(request.url)
    headers = {name.lower(): str(value) for name, value in request.headers.items()}
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    return parse_request(method, target, {**headers, "host": "node:7480"})


def verify(asked: S3Request, now_s: float = NOW_S) -> str:
    """The name of the key, or the code of the refusal."""
    try:
        return Verifier(Keys(), lambda: now_s).verify(asked).name
    except S3Error as error:
        return error.code


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("expires_s", [0, 60])
def test_good_ones(query: str, method: str, expires_s: int) -> None:
    """What botocore signs is known, in headers and in URLs."""
    assert verify(signed(URL + query, method=method, expires_s=expires_s)) == NAME


@pytest.mark.parametrize("expires_s", [0, 60])
def test_wrong_ones(expires_s: int) -> None:
    """Another secret, key, path or method does not do."""
    good = signed(URL, expires_s=expires_s)
    target = good.path + (f"?{good.raw_query}" if good.raw_query else "")
    assert verify(signed(URL, secret="other", expires_s=expires_s)) == "SignatureDoesNotMatch"
    assert verify(signed(URL, name="other", expires_s=expires_s)) == "InvalidAccessKeyId"
    moved = parse_request("GET", target.replace("vision", "visiom"), good.headers)
    assert verify(moved) == "SignatureDoesNotMatch"
    other = parse_request("HEAD", target, good.headers)
    assert verify(other) == "SignatureDoesNotMatch"
    host = parse_request("GET", target, {**good.headers, "host": "other"})
    assert verify(host) == "SignatureDoesNotMatch"


@pytest.mark.parametrize(("off_s", "wanted"), [(3600, "RequestTimeTooSkewed"), (890, NAME)])
@pytest.mark.parametrize("sign", [1, -1])
def test_clocks(off_s: int, wanted: str, sign: int) -> None:
    """A clock may be off by a quarter of an hour."""
    assert verify(signed(URL), NOW_S + sign * off_s) == wanted


def test_urls_expire() -> None:
    """A presigned URL holds until it expires, and not before it was made."""
    asked = signed(URL, expires_s=60)
    assert verify(asked, NOW_S + 59) == NAME
    assert verify(asked, NOW_S + 61) == "AccessDenied"
    assert verify(asked, NOW_S - 3600) == "AccessDenied"


@pytest.mark.parametrize("expires_s", [604_801, -1])
def test_urls_that_hold_too_long(expires_s: int) -> None:
    """A presigned URL holds for a week at most."""
    assert verify(signed(URL, expires_s=expires_s)) == "AuthorizationQueryParametersError"


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({}, "AccessDenied"),
        ({"authorization": "AWS key:signature"}, "InvalidRequest"),
        ({"authorization": "Bearer x"}, "InvalidRequest"),
        ({"authorization": "AWS4-HMAC-SHA256 nonsense"}, "AuthorizationHeaderMalformed"),
        ({"x-amz-date": "yesterday"}, "AccessDenied"),
        ({"x-amz-date": "20270101T000000Z"}, "AuthorizationHeaderMalformed"),
        ({"x-amz-content-sha256": "0" * 64}, "XAmzContentSHA256Mismatch"),
    ],
)
def test_malformed_ones(headers: dict[str, str], wanted: str) -> None:
    """Each has S3's own code."""
    good = signed(URL)
    kept = dict(good.headers) if headers else {"host": "node"}
    assert verify(parse_request("GET", good.path, {**kept, **headers})) == wanted


def test_signature_version_2() -> None:
    """It is refused with the way out."""
    asked = parse_request("GET", "/b/k?AWSAccessKeyId=a&Signature=b&Expires=1", {})
    with pytest.raises(S3Error, match="s3v4"):
        Verifier(Keys()).verify(asked)


def test_a_key_does_not_show_its_secret() -> None:
    """Not in messages and logs either."""
    assert SECRET not in repr(AccessKey(NAME, SECRET, lambda _: True))
