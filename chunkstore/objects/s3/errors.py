"""Maps error answers of S3, by their codes and statuses, to the errors of lodefs.

Source: Amazon S3 API Reference, "Error responses"; RFC 9110 for statuses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lodefs.chunkstore.errors import (
    Changed,
    Denied,
    InvalidInput,
    LodefsError,
    NoSpace,
    NotFound,
    Unavailable,
    Unsupported,
)
from lodefs.chunkstore.objects.interface import NoSuchBucket
from lodefs.chunkstore.objects.ranges.answers import RangeResponse
from lodefs.chunkstore.types import Buffer

_BAD_CREDENTIALS = {
    "AccountProblem",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
}
_DENIED = _BAD_CREDENTIALS | {"AccessDenied", "AllAccessDisabled"}
_THROTTLED = {"SlowDown", "Throttling", "ThrottlingException", "TooManyRequests"}
_UNAVAILABLE = _THROTTLED | {
    "ConditionalRequestConflict",
    "OperationAborted",
    "RequestTimeout",
}
_NO_SPACE = {"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage"}
_OTHER_REGION = {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraint"}


class PastTheEnd(InvalidInput):
    """HTTP 416: the range begins at or after the object's end."""


class NoSuchKey(NotFound):
    """The bucket exists, but not the key."""


class BadCredentials(Denied):
    """The server accepts these credentials for no request (any more)."""


class Archived(Denied):
    """The object must be restored from an archive before it can be read."""


def error_of(answer: Mapping[str, Any], what: str, bucket: str) -> LodefsError:
    """Returns the error for a parsed answer of boto3 (``ClientError.response``), by its code or, if
    that is unknown, by its status. ``what`` begins the message."""
    code = str(answer.get("Error", {}).get("Code", ""))
    metadata = answer.get("ResponseMetadata", {})
    status = int(metadata.get("HTTPStatusCode", 0))
    detail = answer.get("Error", {}).get("Message")
    why = f"{what}: {code or status}" + (f" ({detail})" if detail else "")
    if code == "NoSuchBucket":
        return NoSuchBucket(
            f"there is no bucket {bucket}: create it first, or check its name and the endpoint URL "
            f"({what})"
        )
    if code in _NO_SPACE or status == 507:
        return NoSpace(why)
    if code in _OTHER_REGION or status in (301, 307):
        return InvalidInput(f"{why}; the bucket is in another region: set the store's region")
    if code in _UNAVAILABLE or _may_pass(status):
        error = Unavailable(why, retry_after_s=_retry_after_s(metadata.get("HTTPHeaders", {})))
        error.is_throttled = code in _THROTTLED or status in (429, 503)
        return error
    if code == "InvalidObjectState":
        return Archived(f"{why}; it is archived: restore it in its bucket before it can be read")
    if code in _BAD_CREDENTIALS:
        return BadCredentials(f"{why}; check the credentials, and that they have not expired")
    if code in _DENIED or status in (401, 403):
        return Denied(f"{why}; check the credentials, and that they allow this on {bucket}")
    return _by_status(status)(why)


def refusal_of(
    status: int, headers: Mapping[str, str], body: Buffer, what: str, bucket: str
) -> LodefsError | None:
    """Returns the error for an answer that did not come through boto3; None if boto3 may succeed,
    since it follows a bucket to its region and knows more kinds of signatures."""
    if status not in (404, 412, 416) and not _may_pass(status):
        return None
    text = bytes(body).decode("utf-8", "replace")
    found = {name: _element(text, name) for name in ("Code", "Message")}
    metadata = {"HTTPStatusCode": status, "HTTPHeaders": headers}
    return error_of({"Error": found, "ResponseMetadata": metadata}, what, bucket)


def error_of_cloud(
    answer: RangeResponse, code: str, message: str, what: str, bucket: str
) -> LodefsError:
    """Returns the error for a refusal of another cloud. ``code`` is one of S3's if it means the
    same."""
    metadata = {"HTTPStatusCode": answer.status, "HTTPHeaders": answer.headers}
    found = {"Code": code, "Message": message}
    return error_of({"Error": found, "ResponseMetadata": metadata}, what, bucket)


def _element(text: str, name: str) -> str:
    """Returns the text of an element of S3's error document; it contains no markup."""
    found = re.search(f"<{name}>([^<]*)</{name}>", text)
    return found.group(1) if found else ""


def _may_pass(status: int) -> bool:
    return status in (408, 409, 429) or (status >= 500 and status != 501)


def _by_status(status: int) -> type[LodefsError]:
    errors: dict[int, type[LodefsError]] = {
        404: NoSuchKey,
        412: Changed,
        416: PastTheEnd,
        501: Unsupported,
    }
    return errors.get(status, InvalidInput)


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Returns the seconds of a Retry-After header (RFC 9110, 10.2.3); ignores its form with a
    date."""
    value = headers.get("retry-after", "")
    return float(value) if value.isdigit() else None
