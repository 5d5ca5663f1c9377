"""Ranges and conditions of requests: the meaning of Range for a file of a known size, and of
If-Match, If-None-Match and If-Range (RFC 9110, sections 13 and 14).

Files have strong entity tags and no modification time, so the conditions on dates are ignored, and
an If-Range with a date never holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')


class Outcome(Enum):
    """The result of the conditions of a GET or HEAD."""

    PROCEED = 200
    NOT_MODIFIED = 304
    FAILED = 412


def evaluate(headers: Mapping[str, str], etag: str) -> Outcome:
    """Returns the outcome for a file with the strong, quoted tag ``etag``, in RFC 9110's order
    (13.2.2)."""
    match = headers.get("If-Match")
    if match is not None and not _holds(match, etag, weak=False):
        return Outcome.FAILED
    none_match = headers.get("If-None-Match")
    if none_match is not None and _holds(none_match, etag, weak=True):
        return Outcome.NOT_MODIFIED
    return Outcome.PROCEED


def range_applies(headers: Mapping[str, str], etag: str) -> bool:
    """Whether a Range header counts: there is no If-Range, or it has exactly this strong tag."""
    wanted = headers.get("If-Range")
    return wanted is None or wanted.strip() == etag


def _holds(field: str, etag: str, *, weak: bool) -> bool:
    """Whether a list of tags, or '*', matches ``etag`` by weak or strong comparison (8.8.3.2)."""
    if field.strip() == "*":
        return True
    return any(f'"{tag}"' == etag and (weak or not weakly) for weakly, tag in _TAG.findall(field))


RANGES_MAX = 32  # in one request; more are refused (RFC 9110, 14.2 and 17.15)
_HUGE = 1 << 62  # stands for numbers beyond any file
_NUMBER_CHARS_MAX = 18
_SPEC = re.compile(r"(?:([0-9]+)-([0-9]*)|-([0-9]+))\Z")


class ByteRange(NamedTuple):
    """Bytes [first, first + size_bytes) of a file."""

    first: int
    size_bytes: int

    def content_range(self, total_bytes: int) -> str:
        return f"bytes {self.first}-{self.first + self.size_bytes - 1}/{total_bytes}"


class Unsatisfiable(NamedTuple):
    """The answer is 416."""

    why: str


Selection = list[ByteRange] | Unsatisfiable | None


def select_ranges(header: str | None, total_bytes: int) -> Selection:
    """Returns what to send: None for the whole file, a non-empty list of ranges, or Unsatisfiable.

    Units other than bytes are ignored, as RFC 9110 requires. Malformed ranges, and more than
    RANGES_MAX of them, are unsatisfiable and not ignored, so that a typing error does not fetch a
    whole dataset. Overlapping and adjacent ranges are merged and sorted by offset; otherwise the
    order of the request stays.
    """
    if header is None:
        return None
    unit, equals, rest = header.partition("=")
    if not equals or unit.strip().lower() != "bytes":
        return None
    specs = [spec.strip(" \t") for spec in rest.split(",")]
    specs = [spec for spec in specs if spec]  # RFC 9110, 5.6.1: empty elements are ignored
    if len(specs) > RANGES_MAX:
        return Unsatisfiable(f"more than {RANGES_MAX} ranges")
    found: list[ByteRange] = []
    for spec in specs:
        match = _SPEC.match(spec)
        if match is None or _backwards(match):
            return Unsatisfiable("the ranges are malformed")
        one = _resolve(match, total_bytes)
        if one is not None:
            found.append(one)
    if not found:
        return Unsatisfiable(f"no range lies within the {total_bytes} bytes")
    return _merged(found)


def _number(digits: str) -> int:
    digits = digits.lstrip("0") or "0"
    return _HUGE if len(digits) > _NUMBER_CHARS_MAX else int(digits)


def _backwards(match: re.Match[str]) -> bool:
    return bool(match[2]) and _number(match[2]) < _number(match[1])


def _resolve(match: re.Match[str], total_bytes: int) -> ByteRange | None:
    """Returns one range within the file, or None if it has none of its bytes."""
    if match[3]:
        size = min(_number(match[3]), total_bytes)
        return ByteRange(total_bytes - size, size) if size else None
    first = _number(match[1])
    if first >= total_bytes:
        return None
    last = min(_number(match[2]), total_bytes - 1) if match[2] else total_bytes - 1
    return ByteRange(first, last - first + 1)


def _merged(ranges: list[ByteRange]) -> list[ByteRange]:
    """Returns the same bytes without overlaps."""
    merged: list[ByteRange] = []
    for one in sorted(ranges):
        if merged and one.first <= merged[-1].first + merged[-1].size_bytes:
            before = merged.pop()
            end = max(before.first + before.size_bytes, one.first + one.size_bytes)
            merged.append(ByteRange(before.first, end - before.first))
        else:
            merged.append(one)
    return ranges if len(merged) == len(ranges) else merged
