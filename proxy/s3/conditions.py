"""Conditional requests as S3 has them: tags and dates (RFC 9110, section 13)."""

from __future__ import annotations

from calendar import timegm
from collections.abc import Mapping
from email.utils import parsedate

from lodefs.proxy.api.conditions import Outcome
from lodefs.proxy.api.conditions import evaluate as evaluate_tags

TAG_HEADERS = ("if-match", "if-none-match")
CONDITION_HEADERS = (*TAG_HEADERS, "if-modified-since", "if-unmodified-since", "if-range")


def evaluate(headers: Mapping[str, str], etag: str, modified_s: int) -> tuple[Outcome, str]:
    """What the conditions lead to, and the header that failed. Tags go before dates (13.2.2);
    a date that is none is ignored."""
    tags = {"If-Match": headers.get("if-match"), "If-None-Match": headers.get("if-none-match")}
    given = {name: _quoted(value) for name, value in tags.items() if value is not None}
    unmodified_s = _date_s(headers.get("if-unmodified-since"))
    if "If-Match" not in given and unmodified_s is not None and modified_s > unmodified_s:
        return Outcome.FAILED, "If-Unmodified-Since"
    outcome = evaluate_tags(given, etag)
    if outcome is Outcome.FAILED:
        return outcome, "If-Match"
    if outcome is Outcome.NOT_MODIFIED:
        return outcome, "If-None-Match"
    modified_since_s = _date_s(headers.get("if-modified-since"))
    if (
        "If-None-Match" not in given
        and modified_since_s is not None
        and modified_s == modified_since_s  # a branch that was set back is older, and other
    ):
        return Outcome.NOT_MODIFIED, "If-Modified-Since"
    return Outcome.PROCEED, ""


def range_applies(headers: Mapping[str, str], etag: str) -> bool:
    """Whether a Range header counts: there is no If-Range, or its tag holds. A date never does: two
    commits may be of the same second."""
    wanted = headers.get("if-range")
    return wanted is None or _quoted(wanted.strip()) == etag


def _quoted(value: str) -> str:
    """S3 takes a tag without quotes, too."""
    text = value.strip()
    bare = text and text != "*" and '"' not in text
    return ", ".join(f'"{one.strip()}"' for one in text.split(",")) if bare else text


def _date_s(value: str | None) -> int | None:
    parsed = parsedate(value) if value else None
    try:
        return timegm(parsed) if parsed else None
    except (ValueError, OverflowError):
        return None
