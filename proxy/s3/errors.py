"""Refusals with S3's own codes, and the mapping of other errors to them.

Source: Amazon S3 API Reference, "Error responses", list of error codes.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from lodefs.chunkstore import errors
from lodefs.chunkstore.errors import LodefsError
from lodefs.proxy.api.responses import RETRY_AFTER_S_DEFAULT, Answer, status_of
from lodefs.proxy.s3.documents import XML, element
from lodefs.proxy.tracing.request_scope import request_id as current_request_id

_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")  # XML 1.0 cannot contain these
_STATUS = {
    "AccessDenied": 403,
    "AuthorizationHeaderMalformed": 400,
    "AuthorizationQueryParametersError": 400,
    "InternalError": 500,
    "InvalidAccessKeyId": 403,
    "InvalidArgument": 400,
    "InvalidPartNumber": 416,
    "InvalidRange": 416,
    "InvalidRequest": 400,
    "InvalidToken": 400,
    "InvalidURI": 400,
    "MethodNotAllowed": 405,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "NotImplemented": 501,
    "PreconditionFailed": 412,
    "RequestTimeTooSkewed": 403,
    "SignatureDoesNotMatch": 403,
    "SlowDown": 503,
    "XAmzContentSHA256Mismatch": 400,
}
_CODE_OF: dict[type[LodefsError], str] = {
    errors.NotFound: "NoSuchKey",
    errors.InvalidInput: "InvalidArgument",
    errors.Denied: "AccessDenied",
    errors.Unavailable: "SlowDown",  # clients retry it
    errors.DeadlineExceeded: "SlowDown",
}


class S3Error(LodefsError):
    """A refusal with a code of S3. ``more`` are further elements of its document."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int | None = None,
        more: Sequence[tuple[str, str]] = (),
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status or _STATUS[code]
        self.more = more
        self.headers = headers

    def without_why(self) -> S3Error:
        """Returns the same refusal, with only its code as the message."""
        status, more, headers = self.status, self.more, self.headers
        return S3Error(self.code, self.code, status=status, more=more, headers=headers)


def error_answer(error: LodefsError, resource: str, *, close: bool = False) -> Answer:
    """Returns the answer for an error, about the requested resource."""
    found = error if isinstance(error, S3Error) else _translated(error)
    request_id = current_request_id() or secrets.token_hex(8)
    parts = (("Code", found.code), ("Message", str(found)), *found.more, ("Resource", resource))
    inner = "".join(element(name, _NO_XML.sub("\ufffd", value)) for name, value in parts)
    inner += element("RequestId", request_id)
    headers = [("Content-Type", XML), ("x-amz-request-id", request_id), *found.headers]
    if found.status == 503:
        wait_s = getattr(error, "retry_after_s", None) or RETRY_AFTER_S_DEFAULT
        headers.append(("Retry-After", str(max(1, round(wait_s)))))
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{inner}</Error>'
    return Answer(found.status, headers, body.encode(), close=close)


def _translated(error: LodefsError) -> S3Error:
    for kind in type(error).__mro__:
        if kind in _CODE_OF:
            return S3Error(_CODE_OF[kind], str(error))
    status = max(500, status_of(error))
    return S3Error("InternalError", str(error), status=status)
