"""Who is at a volume: many who use it as it is, or one who changes it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from lodefs.chunkstore.errors import Conflict


class VolumeLocks:
    """Locks by the name of a volume; none is global."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._holders: Counter[str] = Counter()  # -1: one has it alone

    @contextmanager
    def holding(self, volume: str, *, alone: bool = True, timeout_s: float = 0.0) -> Iterator[None]:
        """Inside the block nobody else has the volume, or, not ``alone``, nobody has it alone.
        Conflict where somebody has, after that time."""
        holders = self._holders
        with self._turn:
            if not self._turn.wait_for(
                lambda: not holders[volume] if alone else holders[volume] >= 0, timeout_s
            ):
                raise Conflict(f"another call for volume {volume} is in flight; try again")
            holders[volume] += -1 if alone else 1
        try:
            yield
        finally:
            with self._turn:
                holders[volume] += 1 if alone else -1
                if not holders[volume]:
                    del holders[volume]
                self._turn.notify_all()
