"""Durations as users write them: ``90s``, ``30m``, ``12h``, ``7d``, ``2w``; and points in time."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from lodefs.chunkstore.errors import InvalidInput

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhdw])")


def parse_duration(text: str) -> int:
    """Returns whole seconds, at least 1; ``1d12h`` is a day and a half. Raises: InvalidInput."""
    parts = _PART.findall(text)
    seconds = round(sum(float(number) * _SECONDS[unit] for number, unit in parts))
    if "".join(number + unit for number, unit in parts) != text or seconds < 1:
        raise InvalidInput(f"{text!r} is not a duration: write 90s, 30m, 12h, 7d or 2w")
    return seconds


def duration_text(seconds: int) -> str:
    """Returns a duration in the largest unit that gives a whole number: ``90d``, ``36h``."""
    for unit in ("d", "h", "m"):
        if seconds % _SECONDS[unit] == 0:
            return f"{seconds // _SECONDS[unit]}{unit}"
    return f"{seconds}s"


def utc_text(time_s: int) -> str:
    """Returns a Unix time as ``2024-05-01 12:00:00 UTC``; the number if it is out of range."""
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return str(time_s)
