"""Failures: how errors become HTTP answers. The one place in proxy/ that knows status codes
of errors."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from lodefs.chunkstore import errors
from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.nodeapi import wire
from lodefs.proxy.api.responses import Answer, json_answer
from lodefs.proxy.tracing.request_scope import request_id

RETRY_AFTER_S_DEFAULT = 2

STATUS_OF: dict[type[LodefsError], int] = {
    errors.NotFound: 404,
    errors.NotADirectory: 404,
    errors.InvalidInput: 400,
    errors.Denied: 403,
    errors.Unavailable: 503,
    errors.DeadlineExceeded: 504,
    errors.Corrupt: 502,
    errors.Purged: 410,
    errors.UnknownFormat: 502,
    errors.Conflict: 409,
    errors.Diverged: 409,
    errors.Changed: 500,
    errors.NoSpace: 500,
    errors.Unsupported: 501,
}


def status_of(error: LodefsError) -> int:
    """The HTTP status of an error: that of its nearest class in the table, 500 for others."""
    for kind in type(error).__mro__:
        if kind in STATUS_OF:
            return STATUS_OF[kind]
    return 500


def failure_answer(
    error: LodefsError,
    *,
    status: int | None = None,
    headers: Sequence[tuple[str, str]] = (),
    close: bool = False,
) -> Answer:
    """The answer for an error that lodefs raised: wire.Failure as JSON."""
    status = status_of(error) if status is None else status
    headers = list(headers)
    if status == 503:
        wait_s = getattr(error, "retry_after_s", None) or RETRY_AFTER_S_DEFAULT
        headers.append(("Retry-After", str(max(1, round(wait_s)))))
    failure = wire.Failure(type(error).__name__, str(error), request_id())
    if lasting_s := round(getattr(error, "lasting_s", 0.0), 1):
        failure = replace(failure, lasting_s=lasting_s)
    return _answer(failure, status, headers, close=close)


def unauthorized(message: str, *, challenge: str = "Bearer") -> Answer:
    """401: the request needs a token, or a better one."""
    headers = [("WWW-Authenticate", challenge)]
    return _failure("Denied", message, 401, headers, close=False)


def method_not_allowed(method: str, allowed: str = "GET, HEAD") -> Answer:
    """405, with the methods that are."""
    message = f"{method[:32]!r} is not supported here: use {allowed}"
    headers = [("Allow", allowed)]
    return _failure("InvalidInput", message, 405, headers, close=True)


def internal_error() -> Answer:
    """500 for a mistake in lodefs; what it was stands in the log only."""
    message = "an error inside the proxy; its log says more"
    return _failure("LodefsError", message, 500, [], close=True)


def _failure(
    name: str, message: str, status: int, headers: list[tuple[str, str]], *, close: bool
) -> Answer:
    return _answer(wire.Failure(name, message, request_id()), status, headers, close=close)


def _answer(
    failure: wire.Failure, status: int, headers: list[tuple[str, str]], *, close: bool
) -> Answer:
    made = json_answer(failure, status=status, headers=headers)
    return Answer(made.status, made.headers, made.body, close=close)
