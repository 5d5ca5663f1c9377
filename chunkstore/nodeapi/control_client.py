"""Calls to the cache control of a node's proxy: JSON requests over its Unix socket."""

from __future__ import annotations

import time
from typing import TypeVar

import msgspec

from lodefs.chunkstore.errors import InvalidInput, Unavailable
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.nodeapi.connection import Connection, parse_address
from lodefs.chunkstore.nodeapi.wire import Failure, error_of

T = TypeVar("T")

TIMEOUT_S = 30.0


class ControlClient:
    """Calls to one proxy, on a connection that is kept."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self._token = token
        self._connection = Connection(parse_address(url))

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()

    def call(
        self,
        kind: type[T],
        method: str,
        path: str,
        request: msgspec.Struct | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> T:
        """The answer as a structure. Raises: the error in the proxy's answer, Unavailable,
        DeadlineExceeded."""
        body = b"" if request is None else msgspec.json.encode(request)
        lines = [f"{method} {path} HTTP/1.1", "Host: lodefs", f"Content-Length: {len(body)}"]
        if request is not None:
            lines.append("Content-Type: application/json")
        if self._token:
            lines.append(f"Authorization: Bearer {self._token}")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("ascii", "replace")
        deadline_s = time.monotonic() + timeout_s
        answer = self._connection.ask(head + body, deadline_s, lambda: None)
        try:
            if answer.status < 400:
                return from_json(answer.body, kind)
            failure = from_json(answer.body, Failure)
        except InvalidInput as error:
            raise Unavailable(
                f"{self.url} answers {answer.status} to {path}, in an unknown form: does "
                f"an older proxy run there? ({error})"
            ) from error
        raise error_of(failure)
