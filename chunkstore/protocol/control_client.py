"""Requests to a node's proxy, one at a time, over its Unix socket or TCP."""

from __future__ import annotations

import time
from typing import TypeVar

import msgspec

from lodefs.chunkstore.errors import InvalidInput, Unavailable
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.protocol.connection import Connection, Response, parse_address
from lodefs.chunkstore.protocol.http_head import encode_request
from lodefs.chunkstore.protocol.wire import Failure, error_of

T = TypeVar("T")

TIMEOUT_S = 30.0


class ControlClient:
    """Sends requests to one proxy, over a kept connection."""

    def __init__(self, url: str, token: str | None = None) -> None:
        """Raises: InvalidInput if ``url`` is not the address of a proxy."""
        self.url = url
        self._token = token
        self._connection = Connection(parse_address(url))

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def ask(
        self, method: str, path: str, body: bytes = b"", *, timeout_s: float = TIMEOUT_S
    ) -> Response:
        """Returns the answer, whatever its status is. ``body`` is JSON. Raises: Unavailable,
        DeadlineExceeded, Denied."""
        headers = [("Host", "lodefs"), ("Accept-Encoding", "identity")]
        headers.append(("Content-Length", str(len(body))))
        if body:
            headers.append(("Content-Type", "application/json"))
        if self._token:
            headers.append(("Authorization", f"Bearer {self._token}"))
        request = encode_request(method, path, headers, body)
        return self._connection.ask(request, time.monotonic() + timeout_s, lambda: None)

    def call(
        self,
        kind: type[T],
        method: str,
        path: str,
        request: msgspec.Struct | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> T:
        """Returns the answer as a structure. Raises: the error in the proxy's answer; what ``ask``
        raises."""
        body = b"" if request is None else msgspec.json.encode(request)
        answer = self.ask(method, path, body, timeout_s=timeout_s)
        try:
            if answer.status < 400:
                return from_json(answer.body, kind)
            failure = from_json(answer.body, Failure)
        except InvalidInput as error:
            raise Unavailable(
                f"{self.url} answers {answer.status} to {path}, in an unknown form: perhaps a "
                f"proxy of another version runs there ({error})"
            ) from error
        raise error_of(failure)
