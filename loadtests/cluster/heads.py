"""HTTP/1.1 heads taken from a socket byte by byte exact, so that the body after them is untouched
(RFC 9112). For the relay and the readers; the real servers and clients are lodefs' own."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import NamedTuple

HEAD_BYTES_MAX = 64 << 10
LINE_BYTES_MAX = 4096
_END = b"\r\n\r\n"
_PEEK_BYTES = 4096


class BadHttp(Exception):
    """The input is not an HTTP/1.1 message."""


class Head(NamedTuple):
    """The head of a message, raw and parsed. Header names are lower-case."""

    raw: bytes
    start: tuple[str, str, str]  # the three words of the first line
    headers: Mapping[str, str]

    @property
    def method(self) -> str:
        """Of a request."""
        return self.start[0]

    @property
    def target(self) -> str:
        """Of a request."""
        return self.start[1]

    @property
    def status(self) -> int:
        """Of an answer."""
        return int(self.start[1])


def receive_head(sock: socket.socket) -> Head | None:
    """The next head on a blocking socket, with nothing of what follows; None where it ended.

    BadHttp, OSError.
    """
    raw = _receive_until(sock, _END, HEAD_BYTES_MAX)
    return parse_head(raw) if raw else None


def receive_line(sock: socket.socket) -> bytes:
    """The bytes up to and including the next CRLF. Raises: BadHttp if they end before."""
    line = _receive_until(sock, b"\r\n", LINE_BYTES_MAX)
    if not line:
        raise BadHttp("the connection ended within a message")
    return line


def parse_head(raw: bytes) -> Head:
    """Parses a head. Raises: BadHttp."""
    first, *lines = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2:
        raise BadHttp(f"no first line of HTTP: {first[:80]!r}")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadHttp(f"no header: {line[:80]!r}")
        headers[name.lower()] = value.strip()
    return Head(raw, (words[0], words[1], words[2] if len(words) == 3 else ""), headers)


def _receive_until(sock: socket.socket, mark: bytes, size_bytes_max: int) -> bytes:
    """Reads up to ``mark`` from the socket; b"" at the end of the stream."""
    found = b""
    while True:
        peeked = sock.recv(_PEEK_BYTES, socket.MSG_PEEK)
        if not peeked:
            if found:
                raise BadHttp("the connection ended within a head")
            return b""
        joined = found + peeked
        end = joined.find(mark, max(0, len(found) - len(mark)))
        take = end + len(mark) - len(found) if end >= 0 else len(peeked)
        found += sock.recv(take, socket.MSG_WAITALL)
        if end >= 0:
            return found
        if len(found) > size_bytes_max:
            raise BadHttp("a head without end")
