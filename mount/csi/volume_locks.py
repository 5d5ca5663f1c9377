"""One call at a time for each volume: the next hears that one is in flight, and tries again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lodefs.chunkstore.errors import Conflict


class VolumeLocks:
    """Locks by the name of a volume; none is global."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[str] = set()

    @contextmanager
    def holding(self, volume: str) -> Iterator[None]:
        """Inside the block nobody else has the volume. Conflict where somebody has."""
        with self._lock:
            if volume in self._busy:
                raise Conflict(f"another call for volume {volume} is in flight; try again")
            self._busy.add(volume)
        try:
            yield
        finally:
            with self._lock:
                self._busy.discard(volume)
