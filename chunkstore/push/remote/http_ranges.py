"""Ranges of files on web servers. They are read over the session of fsspec, with its settings, but
never more than was asked for: fsspec itself holds all that a server sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from lodefs.chunkstore.errors import InvalidInput, Unavailable
from lodefs.chunkstore.objects.ranges.answers import RangeResponse, content_range, range_header

_PAST_THE_END = 416
_PARTIAL = 206
# What the answers to HEAD and to a GET of a range both say of the whole file. A Content-MD5 may be
# that of the range (RFC 2616, 14.15).
_FACTS = ("ETag", "Last-Modified")
PAGE_BYTES_MAX = 32 << 20  # some 300,000 links


def page_class() -> type[Any]:
    """Returns the class of answers for the session of fsspec, which reads the page with the links
    of a directory at once, and leaves out bytes that are not text. Here they become surrogates, so
    that names keep them. Reading too large a page raises InvalidInput. Raises: ImportError."""
    from fsspec.implementations import http

    class Page(http.aiohttp.ClientResponse):  # type: ignore[misc]  # fsspec chooses the library
        _body: bytes | None

        async def read(self) -> bytes:
            if self._body is None:
                self._body = await _whole_page(self)
            return self._body

        async def text(self, encoding: str | None = None, errors: str = "") -> str:  # noqa: ARG002
            text: str = await super().text(encoding, "surrogateescape")
            return text

    return Page


async def _whole_page(answer: Any) -> bytes:
    pieces, left = [], PAGE_BYTES_MAX + 1
    while left and (piece := await answer.content.read(left)):
        pieces.append(piece)
        left -= len(piece)
    if not left:
        answer.close()
        raise InvalidInput(
            f"the page that lists {answer.url.with_query(None).with_user(None)} has more than "
            f"{PAGE_BYTES_MAX:,} bytes: push the directories below it one by one, or give paths "
            "(--from-list)"
        )
    return b"".join(pieces)


class HttpRange(NamedTuple):
    """Bytes of a file, and facts of the whole file under the names that fsspec gives them."""

    data: bytes
    info: Mapping[str, Any]


def facts_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those facts that tell the state of a file."""
    return {name: info[name] for name in _FACTS if info.get(name)}


def read_range(
    filesystem: Any, url: str, what: str, offset: int, size_bytes: int
) -> HttpRange | None:
    """Reads ``size_bytes``, at least one, or fewer at the file's end; None if the file ends at or
    before ``offset``. ``filesystem`` is the one of fsspec for HTTP, ``what`` names the file. Raises
    what range_of raises, and what aiohttp raises."""
    from fsspec.asyn import sync

    answer = sync(filesystem.loop, _asked, filesystem, url, offset, size_bytes)
    return range_of(answer, what, offset, size_bytes)


async def _asked(filesystem: Any, url: str, offset: int, size_bytes: int) -> RangeResponse:
    """Returns the answer, with one byte more than was asked for at most."""
    session, options = await filesystem.set_session(), dict(filesystem.kwargs)
    wanted = {"Range": range_header(offset, size_bytes), "Accept-Encoding": "identity"}
    headers = {**options.pop("headers", {}), **wanted}
    async with session.get(filesystem.encode_url(url), headers=headers, **options) as answer:
        if answer.status != _PAST_THE_END:
            answer.raise_for_status()
        chunks, left = [], size_bytes + 1
        while left and (chunk := await answer.content.read(left)):
            chunks.append(chunk)
            left -= len(chunk)
        found = {name.lower(): value for name, value in answer.headers.items()}
        return RangeResponse(answer.status, found, b"".join(chunks))


def range_of(answer: RangeResponse, what: str, offset: int, size_bytes: int) -> HttpRange | None:
    """Returns the range in an answer to read_range. Raises: InvalidInput for a server that ignores
    ranges or compresses; Unavailable for another range."""
    headers, data = answer.headers, bytes(answer.data)
    if answer.status == _PAST_THE_END:
        return None
    if headers.get("content-encoding", "identity") != "identity":
        raise InvalidInput(f"{what} is sent compressed, so it has no ranges: download and push it")
    if answer.status == _PARTIAL:
        span, file_size_bytes = content_range(headers)
        expected = min(size_bytes, file_size_bytes - offset)
        if span != f"bytes {offset}-{offset + expected - 1}":
            told = headers.get("content-range", "")
            raise Unavailable(f"{what}: the server answered with another range: {told!r}")
        if len(data) != expected:
            count = f"more than {size_bytes}" if len(data) > size_bytes else str(len(data))
            raise Unavailable(f"{what}: the server sent {count} bytes instead of {expected}")
    elif offset or len(data) > size_bytes:
        raise InvalidInput(
            f"{what} is not read: the server ignores ranges of bytes; download and push it"
        )
    else:
        file_size_bytes = len(data)
    names = {name: headers.get(name.lower(), "") for name in _FACTS}
    return HttpRange(data, {"size": file_size_bytes, **facts_of(names)})
