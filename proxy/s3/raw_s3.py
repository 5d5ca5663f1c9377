"""Signed reads of an S3 endpoint, and its answers as they come: for what is passed on.

Nothing is repeated, followed or interpreted. ``ask`` and ``read`` block.
"""

from __future__ import annotations

import http.client
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from lodefs.chunkstore.errors import DeadlineExceeded, Unavailable
from lodefs.chunkstore.objects.open_url import parse_endpoint
from lodefs.chunkstore.objects.sigv4 import Credentials, Signer

TIMEOUT_S = 30.0  # without a single byte
_CA_VARIABLE = "AWS_CA_BUNDLE"


class RawRequest(NamedTuple):
    """A read. Path and query are in their canonical form."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]


class RawAnswer:
    """Its answer. Must be closed."""

    def __init__(
        self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse, host: str
    ) -> None:
        self.status = answer.status
        self.headers = [(name.lower(), value) for name, value in answer.getheaders()]
        self._connection = connection
        self._answer = answer
        self._host = host

    def read(self, size_bytes_max: int) -> bytes:
        """Some more bytes of the body; b"" at its end. Raises: Unavailable, DeadlineExceeded."""
        with _translated(self._host):
            return self._answer.read1(size_bytes_max)

    def close(self) -> None:
        """No more is wanted."""
        self._connection.close()


class RawS3:
    """One endpoint, whose buckets stand in paths. Safe for many threads."""

    def __init__(
        self, endpoint_url: str, region: str, credentials: Callable[[], Credentials]
    ) -> None:
        """``credentials`` is asked for each request. Raises: InvalidInput for a URL that is no
        endpoint's."""
        self._is_tls, self._host, self._port = parse_endpoint(endpoint_url)
        plain = self._port == (443 if self._is_tls else 80)
        name = f"[{self._host}]" if ":" in self._host else self._host
        self._signer = Signer(name if plain else f"{name}:{self._port}", region)
        self._credentials = credentials
        self._tls: ssl.SSLContext | None = None

    def ask(self, request: RawRequest) -> RawAnswer:
        """The head of an answer. Raises: Unavailable, DeadlineExceeded; the errors of finding
        credentials."""
        signed = self._signer.headers(
            request.path,
            self._credentials(),
            time.time(),
            method=request.method,
            query=request.query,
        )
        target = f"{request.path}?{request.query}" if request.query else request.path
        headers = {"accept-encoding": "identity", **request.headers, **signed}
        connection = self._connection()
        try:
            with _translated(self._host):
                connection.request(request.method, target, headers=headers)
                return RawAnswer(connection, connection.getresponse(), self._host)
        except BaseException:
            connection.close()
            raise

    def _connection(self) -> http.client.HTTPConnection:
        if not self._is_tls:
            return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=os.environ.get(_CA_VARIABLE) or None)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=TIMEOUT_S, context=self._tls
        )


@contextmanager
def _translated(host: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise DeadlineExceeded(f"{host} did not answer within {TIMEOUT_S:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{host} cannot be read from: {error!r}") from error
