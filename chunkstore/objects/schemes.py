"""The kinds of stores on servers, by the schemes of their URLs."""

from __future__ import annotations

SETTINGS = {"s3": ("endpoint_url", "region", "profile"), "gs": (), "az": ("account",)}
"""The settings that a URL may have after its '?'."""

FORMS = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX"


def scheme_of(url: str) -> str:
    """Returns s3, gs or az; "" for the URL of a directory, a path, and other URLs."""
    scheme, mark, _ = url.partition(":")
    return scheme if mark and scheme in SETTINGS else ""
