"""Unix times for people."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_text(time_s: int) -> str:
    """``2024-05-01 12:00:00 UTC``; the number if no calendar has it."""
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return str(time_s)
