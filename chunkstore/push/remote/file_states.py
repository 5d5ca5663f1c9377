"""States of files on file systems of fsspec: words that change with a file's bytes.

Each file system of fsspec has its own names for the facts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

# Facts that change with the bytes, the best first: checksums, then versions
_OF_CONTENT = (
    "md5Hash", "Content-MD5", "content_md5", "md5", "sha256", "sha", "xet_hash", "blob_id", "oid",
    "generation", "version_id", "versionId", "etag", "ETag", "e_tag",
)  # fmt: skip
_OF_ZIP = ("CRC", "date_time")
_TIMES = (
    "mtime", "modificationTime", "last_modified", "LastModified", "Last-Modified", "updated",
    "last_write_time", "modified", "modify",
)  # fmt: skip
# A file that changed so recently may change again without a new time: clocks are coarse, and that
# of the server may differ from ours
YOUNG_S = 60.0
_OF_FTP = re.compile(r"[0-9]{14}(\.[0-9]+)?")  # RFC 3659, section 2.3
_MILLISECONDS_MIN = 1e11  # a number of seconds as large as that is in the year 5138


def state_of(info: Mapping[str, Any], now: float) -> str:
    """Returns the state of a file; "" if nothing tells whether it changes. ``now``: Unix time."""
    if "CRC" in info:
        return " ".join(f"{key}:{info.get(key)}" for key in _OF_ZIP)
    for key in _OF_CONTENT:
        if info.get(key):
            value = str(info[key]).strip('"')
            return f"{key}:{value}"
    found = _time_of(info)
    if found is None:
        return ""
    return f"{'young ' if found > now - YOUNG_S else ''}time:{found!r}"


def listed(state: str) -> str:
    """Returns the state to list for a file: a young one is not to be trusted later."""
    return "" if state.startswith("young ") else state


def _time_of(info: Mapping[str, Any]) -> float | None:
    """Returns when a file was written, as Unix time; None if it is not known."""
    value = next((info[key] for key in _TIMES if info.get(key)), None)
    try:
        if isinstance(value, str):
            if _OF_FTP.fullmatch(value):
                value = f"{value[:8]}T{value[8:]}"
            is_iso = value[:4].isdigit()
            value = datetime.fromisoformat(value) if is_iso else parsedate_to_datetime(value)
        if isinstance(value, datetime):
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, int | float):
            return value / 1000 if value > _MILLISECONDS_MIN else float(value)
    except ValueError:
        return None
    return None
