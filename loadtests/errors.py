"""The one error with which a load test or benchmark ends, with a text for people."""

from __future__ import annotations


class LoadtestError(RuntimeError):
    """It cannot be done here, or in this way; the text says what to change."""
