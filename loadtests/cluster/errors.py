"""The one error that a load test ends with: a line for people."""

from __future__ import annotations


class LoadtestError(RuntimeError):
    """A load test cannot be done here, or as it is described; the text says what to change."""
