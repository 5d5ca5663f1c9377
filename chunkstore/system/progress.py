"""How far a long operation is: counters that one thread moves and another one shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """Counters of a push, pull or verify. Plain attributes; a reader may see them mid-way."""

    phase: str = ""
    files_done: int = 0
    files_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    bytes_sent: int = 0  # what went to the store, or came from it
