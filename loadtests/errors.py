"""The one error that a load test or benchmark ends with: a line for people."""

from __future__ import annotations


class LoadtestError(RuntimeError):
    """It cannot be done here, or as it is described; the text says what to change."""
