"""Locks of volumes: shared for calls that use a volume, exclusive for one that changes it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from lodefs.chunkstore.errors import Conflict


class VolumeLocks:
    """Locks by the name of a volume; there is no global one."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._holders: Counter[str] = Counter()  # -1: an exclusive holder

    @contextmanager
    def holding(self, volume: str, *, alone: bool = True, timeout_s: float = 0.0) -> Iterator[None]:
        """Holds a volume in the block: exclusively if ``alone``, else shared. Raises: Conflict if
        that is not possible within the time."""
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
