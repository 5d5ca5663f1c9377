"""Answers to requests, and the headers and bodies of answers with files."""

from __future__ import annotations

import logging
import mimetypes
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from http import HTTPStatus

import msgspec

from lodefs.chunkstore import errors
from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.protocol import wire
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.api import ranges
from lodefs.proxy.api.fast_path import Target
from lodefs.proxy.api.ranges import ByteRange, Outcome, Unsatisfiable, evaluate, range_applies
from lodefs.proxy.api.request import Request
from lodefs.proxy.metrics.repository_reads import OF_ORIGIN, Source
from lodefs.proxy.metrics.server_metrics import NO_SOURCE, Metrics
from lodefs.proxy.node import ByteStream, Files, Located, Pieces, SnapshotFile
from lodefs.proxy.tracing.request_scope import request_id

log = logging.getLogger("lodefs.proxy")

SERVER = ("Server", "lodefs")
OCTETS = "application/octet-stream"
JSON = "application/json"
IMMUTABLE = "max-age=31536000, immutable"
REVALIDATE = "no-cache"
ALL = wire.ALL_PLACES
PLACES_MAX = 64  # extents in one answer
NOSNIFF = ("X-Content-Type-Options", "nosniff")
# Files that somebody pushed never run as scripts of this server's origin, whatever their names.
FOREIGN_CONTENT = [NOSNIFF, ("Content-Security-Policy", "sandbox")]
_TYPES = mimetypes.MimeTypes(filenames=())  # Python's own table: the same on every machine

Headers = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. The body is ``body``; or, if there are ``pieces``, ``first`` and these,
    ``size_bytes`` together, fetched from ``origin`` (None: all were in the cache).

    ``target`` is what the fast path may answer by itself from now on; ``places_of`` is the file
    whose places were asked for. ``source`` says where the bytes of a file came from, for metrics.
    """

    status: int
    headers: Headers = field(default_factory=list)
    body: bytes = b""
    pieces: Pieces | None = None
    size_bytes: int = 0
    first: Buffer = b""
    origin: wire.Origin | None = None
    target: Target | None = None
    places_of: SnapshotFile | None = None
    close: bool = False
    source: str = NO_SOURCE
    is_endless: bool = False  # ``pieces`` do not end by themselves


def json_answer(
    value: object, *, status: int = 200, headers: Sequence[tuple[str, str]] = ()
) -> Answer:
    """Returns ``value`` (a msgspec structure or plain values) as JSON."""
    return Answer(status, [("Content-Type", JSON), NOSNIFF, *headers], msgspec.json.encode(value))


def msgpack_answer(value: object, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    """Returns a structure of wire.py as MessagePack."""
    return Answer(200, [("Content-Type", wire.MSGPACK), *headers], msgspec.msgpack.encode(value))


def content_type(path: bytes) -> str:
    """Returns the media type of a file by its name; octet-stream for compressed and unknown
    ones."""
    name = path.rpartition(b"/")[2].decode("utf-8", "replace")
    found, encoding = _TYPES.guess_type("file:" + name)
    return OCTETS if found is None or encoding is not None else found


def file_headers(file: SnapshotFile, media: str, caching: str) -> Headers:
    """Returns the headers of every answer about a file, whatever the range. ``caching`` says what
    caches may do with it."""
    return [
        ("Content-Type", media),
        ("ETag", _etag(file)),
        (wire.COMMIT_HEADER, file.snapshot.commit),
        (wire.DIGEST_HEADER, file.entry.digest.hex()),
        ("Cache-Control", caching),
        ("Accept-Ranges", "bytes"),
    ]


def _etag(file: SnapshotFile) -> str:
    """Returns a strong validator. It cannot be the digest, which is only the pusher's claim."""
    return f'"{file.content_id.hex()}"'


def fast_path_target(file: SnapshotFile, headers: Headers, metrics: Metrics, label: str) -> Target:
    """Returns what the fast path needs to answer for a file as ``file_answer`` would."""
    size_bytes = file.entry.size_bytes
    return Target(
        repo=file.snapshot.repo,
        content_id=file.content_id,
        size_bytes=size_bytes,
        whole_head=_head(200, [*headers, ("Content-Length", str(size_bytes))]),
        part_head=_head(206, headers),
        counter=metrics.hot_counter(label, file.snapshot.repo),
    )


def head_of(answer: Answer, headers: Headers, closing: bytes) -> bytes:
    """Returns the head of an answer that has its whole body. ``headers`` come after its own;
    ``closing`` are the last lines."""
    length = [] if answer.size_bytes else [("Content-Length", str(len(answer.body)))]
    last = [("Connection", "close")] if answer.close else []
    return _head(answer.status, [*answer.headers, *length, *headers, *last]) + closing


def _head(status: int, headers: Headers) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


async def file_answer(
    files: Files,
    file: SnapshotFile,
    headers: Headers,
    request: Request,
    target: Target | None = None,
) -> Answer:
    """Returns the answer to a GET (or, without a body, a HEAD) of a file: 200, 206, 304, 412 or
    416.

    Its first piece has been read. Raises: the errors of reading.
    """
    asked, with_body = request.headers, request.method == "GET"
    etag = dict(headers)["ETag"]
    total = file.entry.size_bytes
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
        return _multipart(files, file, headers, selection)
    one = selection[0] if selection else ByteRange(0, total)
    if selection and (form := asked.get(wire.PLACE_HEADER)) is not None:
        return await places_answer(files, file, headers, one, form)
    status, headers = 200, [*headers, ("Content-Length", str(one.size_bytes))]
    if selection:
        status, headers = 206, [*headers, ("Content-Range", one.content_range(total))]
    if not one.size_bytes or not with_body:
        return Answer(status, headers, size_bytes=one.size_bytes, target=target)
    return _streamed(status, headers, one, await files.open(file, *one), target)


async def places_answer(
    files: Files, file: SnapshotFile, headers: Headers, wanted: ByteRange, form: str = ALL
) -> Answer:
    """Returns the answer to a GET of the places of a range: extents in the form that the client
    asked for, or 206 with the bytes, if the cache did not take them. Raises: the errors of
    reading."""
    found = await _located(files, file, wanted, places_max=PLACES_MAX if form == ALL else 1)
    if not isinstance(found, list):
        length = ("Content-Length", str(wanted.size_bytes))
        place = ("Content-Range", wanted.content_range(file.entry.size_bytes))
        headers = [*headers, length, place]
        return replace(_streamed(206, headers, wanted, found), places_of=file)
    origin = next((one.origin for one in found if one.origin is not None), None)
    if form != ALL:
        told = msgpack_answer(found[0].place)
        return replace(told, origin=origin, source=source_of(origin))
    told = msgpack_answer([one.place for one in found], [(wire.PLACE_HEADER, ALL)])
    return replace(told, origin=origin, source=source_of(origin), places_of=file)


def _streamed(
    status: int, headers: Headers, one: ByteRange, stream: ByteStream, target: Target | None = None
) -> Answer:
    return Answer(
        status,
        headers,
        pieces=stream,
        first=stream.first,
        size_bytes=one.size_bytes,
        origin=stream.origin,
        target=target,
        source=source_of(stream.origin),
    )


async def _located(
    files: Files, file: SnapshotFile, wanted: ByteRange, *, places_max: int
) -> list[Located] | ByteStream:
    """Returns where a range, or its beginning, lies; its bytes if the cache did not take them."""
    found = await files.locate(file, *wanted)
    places: list[Located] = []
    left_bytes = wanted.size_bytes
    while isinstance(found, Located):
        places.append(found)
        left_bytes -= found.place.size_bytes
        if left_bytes <= 0 or len(places) == places_max:
            return places
        found = await files.locate(file, found.place.first + found.place.size_bytes, left_bytes)
    if not places:
        return found
    await found.aclose()
    return places


def source_of(origin: wire.Origin | None) -> str:
    return OF_ORIGIN[origin].label


def _multipart(
    files: Files, file: SnapshotFile, headers: Headers, selection: list[ByteRange]
) -> Answer:
    """Returns several ranges as multipart/byteranges (RFC 9110, 14.6)."""
    total = file.entry.size_bytes
    media = dict(headers)["Content-Type"]
    boundary = digest_of(file.content_id + repr(selection).encode()).hex()[:40]
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

    async def pieces() -> AsyncGenerator[Buffer, None]:
        for n, (head, one) in enumerate(zip(heads, selection, strict=True)):
            if n:
                yield head
            async with aclosing(await files.open(file, *one)) as stream:
                yield stream.first
                async for piece in stream:
                    yield piece
            yield b"\r\n"
        yield end

    own = [
        ("Content-Type", f"multipart/byteranges; boundary={boundary}"),
        *(pair for pair in headers if pair[0] != "Content-Type"),
        ("Content-Length", str(size)),
    ]
    source = Source.CACHE.label  # for cached bytes; the parts are read while they are sent
    return Answer(206, own, pieces=pieces(), first=heads[0], size_bytes=size, source=source)


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
    """Returns the HTTP status of an error: that of its nearest class in the table, otherwise
    500."""
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
    """Returns the answer for an error of lodefs: wire.Failure as JSON."""
    status = status_of(error) if status is None else status
    headers = list(headers)
    if status == 503:
        wait_s = getattr(error, "retry_after_s", None) or RETRY_AFTER_S_DEFAULT
        headers.append(("Retry-After", str(max(1, round(wait_s)))))
    failure = wire.Failure(wire.kind_of(error), str(error), request_id())
    if lasting_s := round(getattr(error, "lasting_s", 0.0), 1):
        failure = msgspec.structs.replace(failure, lasting_s=lasting_s)
    return _answer(failure, status, headers, close=close)


def failed(error: Exception, path: str) -> Answer:
    """Returns the answer for any error of a request for ``path``; the log has those that are
    faults of lodefs."""
    if isinstance(error, LodefsError):
        return failure_answer(error)
    if isinstance(error, TimeoutError):
        return failure_answer(errors.DeadlineExceeded("the answer took too long"))
    log.error("request failed: %s", path, exc_info=error)
    return internal_error()


def unauthorized(message: str, *, challenge: str = "Bearer") -> Answer:
    """Returns 401: the request needs a token, or another one."""
    headers = [("WWW-Authenticate", challenge)]
    return _failure("Denied", message, 401, headers, close=False)


def method_not_allowed(method: str, allowed: str = "GET, HEAD") -> Answer:
    """Returns 405, with the allowed methods."""
    message = f"{method[:32]!r} is not supported here: use {allowed}"
    headers = [("Allow", allowed)]
    return _failure("InvalidInput", message, 405, headers, close=True)


def internal_error() -> Answer:
    """Returns 500 for a fault of lodefs, which only the log describes."""
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
