"""Heads of HTTP/1.1 messages (RFC 9112): of requests, and of responses with a Content-Length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

LINES_MAX = 64
END = b"\r\n\r\n"


class ResponseHead(NamedTuple):
    """A response's head. ``headers`` are by lower-case name."""

    status: int
    headers: Mapping[str, str]
    body_size_bytes: int

    @property
    def keeps_connection(self) -> bool:
        """Whether the connection can serve another request."""
        return self.headers.get("connection", "").lower() != "close"


def parse_head(head: bytes) -> ResponseHead:
    """Parses the head of a response, without the empty line at its end. Raises: ValueError."""
    line, *lines = head.decode("latin-1").split("\r\n")
    version, _, status = line.partition(" ")
    if len(lines) > LINES_MAX:
        raise ValueError(f"the answer's head has more than {LINES_MAX} lines")
    headers: dict[str, str] = {}
    for text in lines:
        name, _, value = text.partition(":")
        if name.lower() == "content-length" and "content-length" in headers:
            raise ValueError("the answer has two lengths")
        headers[name.lower()] = value.strip()
    length = headers.get("content-length", "")
    has_length = length.isdecimal() and length.isascii() and len(length) < 19
    if version != "HTTP/1.1" or not status[:3].isdecimal() or not has_length:
        raise ValueError(f"the answer is malformed: {line[:80]!r}")
    return ResponseHead(int(status[:3]), headers, int(length))


def encode_request(
    method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes = b""
) -> bytes:
    """Returns a request as it is sent. ``headers`` must give the length of a body."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1", "replace") + body
