"""Requests of an agent to a server of Git LFS, over a connection that is kept."""

from __future__ import annotations

import errno
import http.client
import os
import select
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple
from urllib.parse import urlsplit

from lodefs.chunkstore.errors import (
    Conflict,
    Denied,
    InvalidInput,
    LodefsError,
    NoSpace,
    NotFound,
    Unavailable,
)
from lodefs.lfs import users_git

TIMEOUT_S = 60.0
COMMIT_TIMEOUT_S = 3600.0  # an upload is answered after its commit
ANSWER_BYTES_MAX = 4 << 20
_ERRORS: dict[int, type[LodefsError]] = {
    401: Denied,
    403: Denied,
    404: NotFound,
    409: Conflict,
    422: InvalidInput,
    507: NoSpace,
}


class Place(NamedTuple):
    """Where a server listens: a host with a port, or the path of a Unix socket."""

    scheme: str
    host: str = ""
    port: int | None = None
    path: str = ""


def place_of(url: str) -> tuple[Place, str]:
    """Returns the place of a URL, and the target to ask for there. Raises: InvalidInput."""
    try:
        parts = urlsplit(url)
        place = Place(parts.scheme, parts.hostname or "", parts.port)
    except ValueError as error:
        raise InvalidInput("the server gave a URL that cannot be parsed") from error
    if place.scheme not in ("http", "https") or not place.host:
        raise InvalidInput("the server gave a URL that is not of http or https")
    return place, f"{parts.path}?{parts.query}" if parts.query else parts.path


class LfsServer:
    """One connection to a place. For one thread."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._connection: http.client.HTTPConnection | None = None

    @contextmanager
    def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: Iterable[bytes] = (),
        *,
        size_bytes: int | None = 0,
    ) -> Iterator[http.client.HTTPResponse]:
        """Yields an answer whose status is 2xx. ``size_bytes`` is that of the body, None if nobody
        knows. Raises: Unavailable if the request can be repeated; what the status means."""
        try:
            answer = self._answer(method, target, headers, body, size_bytes)
            if not 200 <= answer.status < 300:
                raise _failure(answer)
            yield answer
            if answer.read(1):
                self.close()  # nobody wanted the rest
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unavailable(f"{self._name()} does not answer: {error or repr(error)}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _answer(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: Iterable[bytes],
        size_bytes: int | None,
    ) -> http.client.HTTPResponse:
        if self._connection is not None and _has_ended(self._connection):
            self.close()  # servers end connections that wait, such as while an object is cut
        connection = self._connection = self._connection or _opened(self._place)
        _connect(connection)
        assert connection.sock is not None
        # The server reads an upload when it has room for one more, and answers after its commit
        connection.sock.settimeout(TIMEOUT_S if method == "GET" else COMMIT_TIMEOUT_S)
        length = {"Transfer-Encoding": "chunked"}
        if size_bytes is not None:
            length = {"Content-Length": str(size_bytes)}
        try:
            is_chunked = size_bytes is None
            connection.request(
                method, target, body, {**headers, **length}, encode_chunked=is_chunked
            )
        except OSError as error:  # it may have answered before it had everything
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                raise
        return connection.getresponse()

    def _name(self) -> str:
        return self._place.path or f"{self._place.scheme}://{self._place.host}"


def _failure(answer: http.client.HTTPResponse) -> LodefsError:
    said = answer.read(4096).decode("utf-8", "replace")
    kind = _ERRORS.get(answer.status, Unavailable if answer.status >= 500 else InvalidInput)
    return kind(f"the server answered {answer.status}: {said}")


def _opened(place: Place) -> http.client.HTTPConnection:
    if place.path:
        return _UnixConnection(place.path)
    if place.scheme == "http":
        return http.client.HTTPConnection(place.host, place.port, timeout=TIMEOUT_S)
    context = _context(f"https://{place.host}:{place.port or 443}")
    return http.client.HTTPSConnection(place.host, place.port, timeout=TIMEOUT_S, context=context)


def _connect(connection: http.client.HTTPConnection) -> None:
    """Opens a connection that is new, or that the server said it would end."""
    if connection.sock is None:
        connection.connect()


def _has_ended(connection: http.client.HTTPConnection) -> bool:
    """Whether the server has ended a connection on which it owes no answer, or sent what nobody
    asked for."""
    if connection.sock is None:
        return False
    waiting = select.poll()
    waiting.register(connection.sock, select.POLLIN)
    return bool(waiting.poll(0))


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)


@cache
def _context(url: str) -> ssl.SSLContext:
    """Returns what Git's settings say of the certificate of a server."""
    ca_file = os.environ.get("GIT_SSL_CAINFO") or users_git.setting("http.sslCAInfo", url)
    context = ssl.create_default_context(cafile=ca_file or None)
    if "GIT_SSL_NO_VERIFY" in os.environ or users_git.setting("http.sslVerify", url) == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
