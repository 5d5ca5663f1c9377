"""Conditional requests: what If-Match, If-None-Match and If-Range mean (RFC 9110, section 13).

Files have strong entity tags and no modification time, so the conditions on dates are ignored,
and an If-Range with a date never holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')


class Outcome(Enum):
    """What the conditions of a GET or HEAD lead to."""

    PROCEED = 200
    NOT_MODIFIED = 304
    FAILED = 412


def evaluate(headers: Mapping[str, str], etag: str) -> Outcome:
    """The outcome for a file with the strong, quoted tag ``etag``, in RFC 9110's order (13.2.2)."""
    match = headers.get("If-Match")
    if match is not None and not _holds(match, etag, weak=False):
        return Outcome.FAILED
    none_match = headers.get("If-None-Match")
    if none_match is not None and _holds(none_match, etag, weak=True):
        return Outcome.NOT_MODIFIED
    return Outcome.PROCEED


def range_applies(headers: Mapping[str, str], etag: str) -> bool:
    """Whether a Range header counts: there is no If-Range, or it holds exactly this strong tag."""
    wanted = headers.get("If-Range")
    return wanted is None or wanted.strip() == etag


def _holds(field: str, etag: str, *, weak: bool) -> bool:
    """Whether a list of tags, or '*', covers ``etag`` by weak or strong comparison (8.8.3.2)."""
    if field.strip() == "*":
        return True
    return any(f'"{tag}"' == etag and (weak or not weakly) for weakly, tag in _TAG.findall(field))
