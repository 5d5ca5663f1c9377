"""Ranged reads of S3 objects over kept connections, with next to no work for the processor.

boto3 needs more than a millisecond of processor time for a GET, as much as receiving a MiB. So
its first GET is taken as the model: where the bucket answers, in which region, by which signature.
The next ones are written to connections of the same making (TLS, certificates) as HTTP/1.1 (RFC
9112), and their bodies received with one call. Whatever is not as plain as expected is left to
boto3, redirects and refusals included.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from lodefs.chunkstore.nodeapi.http_head import END, parse_head
from lodefs.chunkstore.nodeapi.trace_context import outgoing_headers
from lodefs.chunkstore.objects.range_order import HttpOrder
from lodefs.chunkstore.objects.sigv4 import Credentials, Signer
from lodefs.chunkstore.system.watchdog import Transfer
from lodefs.chunkstore.types import Buffer

SIZE_BYTES_MAX = 64 * 1024 * 1024  # of a body
HEAD_SIZE_BYTES_MAX = 64 * 1024
ERROR_SIZE_BYTES_MAX = 64 * 1024
_PEEK_SIZE_BYTES = 4096
_SIGNED = re.compile(r"AWS4-HMAC-SHA256 Credential=[^,]+/\d{8}/([^/,]+)/s3/aws4_request,")
_FORM = re.compile(r"[!-~]+")  # what may stand in a request line


class RequestTemplate(NamedTuple):
    """The constant parts of a request, learned from one of boto3's."""

    url: str  # of the endpoint, without path
    host: str  # as in the Host header
    path: str  # what stands before a key
    region: str


class Timeouts(NamedTuple):
    """Seconds: to connect, without a byte, of a whole answer."""

    connect_s: float
    read_s: float
    transfer_s: float


class RangeResponse(NamedTuple):
    """``headers`` by lower-case name."""

    status: int
    headers: Mapping[str, str]
    data: Buffer


class S3Connection(NamedTuple):
    """A connection. ``owner`` made it and is kept as long as it is used."""

    owner: Any
    sock: socket.socket


class UnsupportedResponse(Exception):
    """The answer cannot be read here: ask in another way."""


def request_template(url: str, headers: Mapping[str, str], key: str) -> RequestTemplate | None:
    """What all GETs share with this signed one of ``key``; None if it has unknown parts."""
    parts = urlsplit(url)
    signed = _SIGNED.match(headers.get("authorization", ""))
    if (
        signed is None
        or parts.query
        or "x-amz-s3session-token" in headers  # S3 Express: other credentials
        or not parts.path.endswith(f"/{key}")
        or not _FORM.fullmatch(parts.path)
    ):
        return None
    host = parts.netloc.rpartition("@")[2]
    path = parts.path.removesuffix(key)
    return RequestTemplate(f"{parts.scheme}://{parts.netloc}", host, path, signed.group(1))


class RangeReader:
    """GETs of ranges of the objects of one bucket. Safe for many threads."""

    def __init__(
        self,
        model: RequestTemplate,
        connect: Callable[[], Any],
        credentials: Callable[[], Credentials],
        *,
        timeouts: Timeouts,
        connections_max: int,
        ca_file: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``connect`` gives an open connection as http.client makes it: with ``sock`` and
        ``close``. ``connections_max``: idle ones that are kept. ``ca_file``: the certificates that
        servers' are checked against, if they are checked in the usual way."""
        self._model = model
        self._connect = connect
        self._credentials = credentials
        self._signer = Signer(model.host, model.region)
        self._timeouts = timeouts
        self._ca_file = ca_file
        self._connections_max = connections_max
        self._clock = clock
        self._lock = threading.Lock()  # guards the list
        self._idle: list[S3Connection] = []
        self._closed = False

    def get(
        self,
        key: str,
        wanted: str,
        size_bytes: int,
        *,
        if_match: str | None,
        transfer: Transfer,
        closer: Callable[[socket.socket], Callable[[], None]],
    ) -> RangeResponse:
        """The answer to a GET of ``wanted``, a Range header of at most ``size_bytes``.

        Raises: UnsupportedResponse, OSError (also if the connection ends within the answer).
        ``closer`` makes a function that ends the ``transfer`` on a socket from outside.
        """
        request = self._request(key, wanted, if_match)
        while True:
            connection, is_fresh = self._take()
            kept = False
            try:
                transfer.cancel_by(closer(connection.sock))
                try:
                    connection.sock.sendall(request)
                    head, rest = receive_head(connection.sock)
                except OSError as error:
                    late = isinstance(error, TimeoutError | BlockingIOError)
                    if is_fresh or late or transfer.expired:
                        raise
                    continue  # the server had closed it while it was idle
                answer, kept = _receive(connection.sock, head, rest, size_bytes)
                return answer
            except BlockingIOError as error:  # SO_RCVTIMEO
                raise TimeoutError("no byte came in time") from error
            finally:
                self._give_back(connection, kept=kept and not transfer.expired)

    def order(
        self, key: str, wanted: str, first: int, if_match: str, timeout_s: float
    ) -> HttpOrder | None:
        """The same GET for another process, if that can make it; within ``timeout_s``."""
        url = urlsplit(self._model.url)
        is_tls = url.scheme == "https"
        if url.hostname is None or (is_tls and not self._ca_file):
            return None
        return HttpOrder(
            url.hostname,
            url.port or (443 if is_tls else 80),
            self._ca_file if is_tls else "",
            self._request(key, wanted, if_match),
            first,
            if_match,
            *self._timeouts._replace(transfer_s=timeout_s),
        )

    def close(self) -> None:
        """Closes the idle connections now, and the others when they become idle."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.owner.close()

    def _request(self, key: str, wanted: str, if_match: str | None) -> bytes:
        path = self._model.path + key
        headers = self._signer.headers(path, self._credentials(), self._clock())
        headers |= {"range": wanted, "user-agent": "lodefs", "accept-encoding": "identity"}
        if if_match is not None:
            headers["if-match"] = if_match
        headers |= outgoing_headers()  # not signed: only x-amz-* and the host must be
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")

    def _take(self) -> tuple[S3Connection, bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), False
        owner = self._connect()
        limit_waiting(owner.sock, self._timeouts.read_s)
        return S3Connection(owner, owner.sock), True

    def _give_back(self, connection: S3Connection, *, kept: bool) -> None:
        if kept:
            with self._lock:
                if not self._closed and len(self._idle) < self._connections_max:
                    self._idle.append(connection)
                    return
        connection.owner.close()


def limit_waiting(sock: socket.socket, timeout_s: float) -> None:
    """Has receiving and sending fail after so many seconds without a byte."""
    if not is_plain(sock):
        sock.settimeout(timeout_s)
        return
    sock.settimeout(None)  # the kernel's own time limit: a receive is one system call
    whole = int(timeout_s)
    micros = int((timeout_s - whole) * 1e6)
    limit = struct.pack("@ll", whole, max(micros, 0 if whole else 1))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def is_plain(sock: socket.socket) -> bool:
    """Whether nothing lies between the socket and its bytes, as TLS does."""
    return type(sock) is socket.socket


def receive_head(sock: socket.socket) -> tuple[bytes, bytes]:
    """An answer's head with its end, and what came with it of the body.

    Raises: UnsupportedResponse, OSError.
    """
    head = b""
    while len(head) < HEAD_SIZE_BYTES_MAX:
        if is_plain(sock):  # looked at first, so that the body can be received in one piece
            seen = sock.recv(_PEEK_SIZE_BYTES, socket.MSG_PEEK)
            end = (head + seen).find(END)
            taken = len(seen) if end < 0 else end + len(END) - len(head)
            piece = sock.recv(taken) if taken else b""
        else:
            piece = sock.recv(_PEEK_SIZE_BYTES)
        if not piece:
            raise ConnectionResetError("the connection ended before the answer")
        head += piece
        end = head.find(END)
        if end >= 0:
            end += len(END)
            return head[:end], head[end:]
    raise UnsupportedResponse("the answer's head has no end")


def _receive(
    sock: socket.socket, head: bytes, rest: bytes, size_bytes: int
) -> tuple[RangeResponse, bool]:
    """The answer, and whether the connection can be used again."""
    try:
        parsed = parse_head(head.removesuffix(END))
    except ValueError as error:
        raise UnsupportedResponse(str(error)) from error
    status, headers, length = parsed
    if "transfer-encoding" in headers or headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedResponse("the answer's body is encoded")
    left = length - len(rest)
    if length > (size_bytes if status == 206 else ERROR_SIZE_BYTES_MAX) or left < 0:
        raise UnsupportedResponse(f"{length} bytes are more than were asked for")
    data = _receive_body(sock, rest, left)
    return RangeResponse(status, headers, data), parsed.keeps_connection


def _receive_body(sock: socket.socket, rest: bytes, left: int) -> Buffer:
    if not left:
        return rest
    if is_plain(sock) and not rest:
        data = sock.recv(left, socket.MSG_WAITALL)  # not cleared first, as a bytearray would be
        if len(data) == left:
            return data
        if not data:
            raise ConnectionResetError("the connection ended before the body")
        rest, left = data, left - len(data)
    body = bytearray(len(rest) + left)
    body[: len(rest)] = rest
    view = memoryview(body)
    while left:
        count = sock.recv_into(view[-left:], left)
        if not count:
            raise ConnectionResetError(f"the answer ended {left} bytes before its end")
        left -= count
    return view
