"""Answers to GETs of ranges (RFC 9110, 14): what their heads must say before their bytes are
used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lodefs.chunkstore.errors import Changed, Unavailable
from lodefs.chunkstore.objects.interface import Part
from lodefs.chunkstore.types import Buffer

ETAG = "etag"  # the header


class RangeResponse(NamedTuple):
    """An answer. ``headers`` are by lower-case name."""

    status: int
    headers: Mapping[str, str]
    data: Buffer


def range_header(offset: int, size_bytes: int) -> str:
    """Returns the Range header (RFC 9110, 14.2). A negative ``offset`` asks for the last
    ``size_bytes``."""
    return f"bytes={offset}" if offset < 0 else f"bytes={offset}-{offset + size_bytes - 1}"


def content_range(headers: Mapping[str, str]) -> tuple[str, int]:
    """Returns the range in a Content-Range header (RFC 9110, 14.4), and the size of the whole; -1
    if the header does not tell it."""
    span, _, total = headers.get("content-range", "").partition("/")
    return span, int(total) if total.isdecimal() and total.isascii() else -1


def check_range(
    headers: Mapping[str, str],
    key: str,
    first: int,
    size_bytes: int,
    if_match: str | None,
    etag_header: str = ETAG,
) -> str:
    """Checks that a 206 has ``size_bytes`` from ``first`` on. Returns the object's ETag. Raises:
    Unavailable for another range; Changed."""
    span, _ = content_range(headers)
    etag = headers.get(etag_header, "")
    if not etag or span != f"bytes {first}-{first + size_bytes - 1}":
        raise Unavailable(f"{key}: the server answered with another range: {span!r}")
    if if_match is not None and etag != if_match:
        raise Changed(f"{key} has the ETag {etag}, not {if_match}")
    return etag


def part_of(
    answer: RangeResponse, key: str, offset: int, if_match: str | None, etag_header: str = ETAG
) -> Part:
    """Returns the part in a 206. Raises: as ``check_range``."""
    _, size = content_range(answer.headers)
    first = max(size + offset, 0) if offset < 0 else offset
    etag = check_range(answer.headers, key, first, len(answer.data), if_match, etag_header)
    return Part(answer.data, size, etag)
