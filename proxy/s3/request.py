"""Parses a request to the S3 interface: bucket, key, parameters. Pure.

Keys are bytes, from their percent-encoding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

_ABSOLUTE = re.compile(r"https?://[^/?#]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class S3Request:
    """One request. ``path`` and ``raw_query`` are unchanged; names of ``headers`` are in lower
    case. ``bucket`` is "" if none is named; ``key`` is b"" for the bucket itself."""

    method: str
    path: str
    raw_query: str
    headers: Mapping[str, str]
    bucket: str = ""
    key: bytes = b""
    query: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def resource(self) -> str:
        key = self.key.decode("utf-8", "replace")
        return f"/{self.bucket}/{key}" if self.bucket else "/"

    def text(self, name: str, default: str = "") -> str:
        """Returns a parameter as a text; invalid UTF-8 is replaced."""
        return self.query.get(name, default.encode()).decode("utf-8", "replace")


def parse_request(
    method: str, raw_target: str, headers: Mapping[str, str], domain: str = ""
) -> S3Request:
    """Parses a raw target. With a ``domain``, hosts below it name buckets."""
    target = _ABSOLUTE.sub("", raw_target, count=1)
    path, _, raw_query = target.partition("#")[0].partition("?")
    bucket = bucket_of_host(headers.get("host", ""), domain)
    raw_key = path[1:]
    if not bucket:
        raw_bucket, _, raw_key = raw_key.partition("/")
        bucket = unquote_to_bytes(raw_bucket).decode("utf-8", "replace")
    return S3Request(
        method,
        path or "/",
        raw_query,
        headers,
        bucket,
        unquote_to_bytes(raw_key),
        parse_query(raw_query),
    )


def bucket_of_host(host: str, domain: str) -> str:
    """Returns the bucket in a Host header (virtual-host style), or ""."""
    name = host.rpartition(":")[0] if re.search(r":[0-9]+\Z", host) else host
    below = f".{domain}".lower()
    return name[: -len(below)] if domain and name.lower().endswith(below) else ""


def parse_query(raw_query: str) -> dict[str, bytes]:
    """Returns the parameters of a query; the first of each name counts, and '+' is a space."""
    found: dict[str, bytes] = {}
    for pair in filter(None, raw_query.split("&")):
        name, _, value = pair.partition("=")
        plain = unquote_to_bytes(value.replace("+", " "))
        found.setdefault(unquote_to_bytes(name).decode("utf-8", "replace"), plain)
    return found
