"""Answers to be sent: what one is, and the headers and bodies of answers that carry files."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.nodeapi import wire
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.api import ranges
from lodefs.proxy.api.conditions import Outcome, evaluate, range_applies
from lodefs.proxy.api.fast_path import Target
from lodefs.proxy.api.ranges import ByteRange, Unsatisfiable
from lodefs.proxy.api.request import Request
from lodefs.proxy.node import Node
from lodefs.proxy.runtime.metrics import RequestCounter

SERVER = ("Server", "lodefs")
OCTETS = "application/octet-stream"
JSON = "application/json"
IMMUTABLE = "max-age=31536000, immutable"
REVALIDATE = "no-cache"
_TYPES = mimetypes.MimeTypes(filenames=())  # Python's own table: the same on every machine

Headers = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. The body is ``body``, or ``pieces`` of ``size_bytes`` in all where given.

    ``hot`` is what the fast path may answer by itself from now on, for the same target.
    """

    status: int
    headers: Headers = field(default_factory=list)
    body: bytes = b""
    pieces: AsyncIterator[Buffer] | None = None
    size_bytes: int = 0
    hot: Target | None = None
    close: bool = False


def json_answer(
    value: object, *, status: int = 200, headers: Sequence[tuple[str, str]] = ()
) -> Answer:
    """``value`` (a msgspec structure or plain values) as JSON."""
    return Answer(status, [("Content-Type", JSON), *headers], msgspec.json.encode(value))


def msgpack_answer(value: msgspec.Struct, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    """A structure of wire.py as MessagePack."""
    return Answer(200, [("Content-Type", wire.MSGPACK), *headers], msgspec.msgpack.encode(value))


def content_type(path: bytes) -> str:
    """The media type of a file by its name; compressed and unknown ones are plain octets."""
    name = path.rpartition(b"/")[2].decode("utf-8", "replace")
    found, encoding = _TYPES.guess_type("file:" + name)
    return OCTETS if found is None or encoding is not None else found


class Representation(NamedTuple):
    """A file as HTTP shows it (RFC 9110, 3.2): its entry and content id, and the headers that
    every answer about it has, whatever the range."""

    snapshot: wire.Snapshot
    entry: wire.Node
    content: bytes
    headers: Headers


def representation(
    snapshot: wire.Snapshot, entry: wire.Node, content: bytes, media: str, caching: str
) -> Representation:
    """A file with its content id, its media type, and what caches may do with it."""
    headers = [
        ("Content-Type", media),
        ("ETag", _etag(content)),
        (wire.COMMIT_HEADER, snapshot.commit),
        (wire.DIGEST_HEADER, entry.digest.hex()),
        ("Cache-Control", caching),
        ("Accept-Ranges", "bytes"),
    ]
    return Representation(snapshot, entry, content, headers)


def _etag(content: bytes) -> str:
    """A strong validator cannot be the digest, which is what a pusher claims."""
    return f'"{content.hex()}"'


def fast_path_target(file: Representation, counter: RequestCounter) -> Target:
    """What the fast path needs to answer for a file as ``file_answer`` would."""
    snapshot, entry, _, headers = file
    length = ("Content-Length", str(entry.size_bytes))
    return Target(
        repo=snapshot.repo,
        content=file.content,
        size_bytes=entry.size_bytes,
        whole_head=_head(200, [*headers, length]),
        part_head=_head(206, headers),
        counter=counter,
    )


def _head(status: int, headers: Headers) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def file_answer(
    node: Node, file: Representation, request: Request, hot: Target | None = None
) -> Answer:
    """The answer to a GET (or, without a body, a HEAD) of a file: 200, 206, 304, 412 or 416."""
    snapshot, entry, _, headers = file
    asked, with_body = request.headers, request.method == "GET"
    etag = _etag(file.content)
    total = entry.size_bytes
    outcome = evaluate(asked, etag)
    if outcome is Outcome.NOT_MODIFIED:
        return Answer(304, [pair for pair in headers if pair[0] != "Content-Type"])
    if outcome is Outcome.FAILED:
        failure = wire.Failure("Changed", f"If-Match: the file's tag is {etag}")
        return json_answer(failure, status=412, headers=[("ETag", etag)])
    wanted = asked.get("Range") if with_body and range_applies(asked, etag) else None
    selection = ranges.select_ranges(wanted, total)
    if isinstance(selection, Unsatisfiable):
        failure = wire.Failure("InvalidInput", f"Range: {selection.why}")
        extra = [("Content-Range", f"bytes */{total}"), ("ETag", etag)]
        return json_answer(failure, status=416, headers=extra)
    if selection is not None and len(selection) > 1:
        return _multipart(node, file, selection)
    one = selection[0] if selection else ByteRange(0, total)
    extra = [("Content-Length", str(one.size_bytes))]
    if selection:
        extra.append(("Content-Range", one.content_range(total)))
    pieces = node.read(snapshot, entry, *one) if one.size_bytes and with_body else None
    status = 206 if selection else 200
    return Answer(status, [*headers, *extra], b"", pieces, one.size_bytes, hot)


def _multipart(node: Node, file: Representation, selection: list[ByteRange]) -> Answer:
    """Several ranges as multipart/byteranges (RFC 9110, 14.6)."""
    snapshot, entry, _, headers = file
    total = entry.size_bytes
    media = dict(headers)["Content-Type"]
    boundary = digest_of(file.content + repr(selection).encode()).hex()[:40]
    heads = [
        (
            f"--{boundary}\r\nContent-Type: {media}\r\n"
            f"Content-Range: {one.content_range(total)}\r\n\r\n"
        ).encode("latin-1")
        for one in selection
    ]
    end = f"--{boundary}--\r\n".encode("latin-1")
    size = sum(len(head) + one.size_bytes + 2 for head, one in zip(heads, selection, strict=True))
    size += len(end)

    async def pieces() -> AsyncIterator[Buffer]:
        for head, one in zip(heads, selection, strict=True):
            yield head
            part = node.read(snapshot, entry, *one)
            try:
                async for piece in part:
                    yield piece
            finally:
                if isinstance(part, AsyncGenerator):
                    await part.aclose()
            yield b"\r\n"
        yield end

    kept = [pair for pair in headers if pair[0] != "Content-Type"]
    own = [
        ("Content-Type", f"multipart/byteranges; boundary={boundary}"),
        *kept,
        ("Content-Length", str(size)),
    ]
    return Answer(206, own, b"", pieces(), size)
