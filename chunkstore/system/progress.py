"""The progress of a long operation: counters that one thread moves and another one shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """Counters of a push, pull or verify. Plain attributes, so a reader may see them out of
    step."""

    phase: str = ""
    files_done: int = 0
    files_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    bytes_sent: int = 0  # bytes sent to the store, or received from it
