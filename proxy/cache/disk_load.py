"""Whether the disk of the cache has other work, so that what can wait does.

The kernel counts for how long a disk had requests under way, of all processes (Linux'
Documentation/block/stat.rst): reads by mounts too, and reads that the kernel does on its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

BUSY_SHARE_MIN = 0.25  # of the time
_IO_TICKS = 9  # the field: milliseconds
SYSTEM = Path("/sys/dev/block")


class DiskLoad:
    """The load of the disk under a directory since the last ``mark``. For one thread.

    ``work`` tells of the node itself: bytes on their way from the store, which are about to be
    written, and how many reads there were so far. The reads count if the file system's disk is
    unknown (overlayfs, btrfs, a network).
    """

    def __init__(
        self,
        directory: Path,
        work: Callable[[], tuple[int, int]],
        *,
        system: Path = SYSTEM,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        device = directory.stat().st_dev
        self._stat = system / f"{os.major(device)}:{os.minor(device)}" / "stat"
        self._work = work
        self._clock_s = clock_s
        self.mark()

    def mark(self) -> None:
        """Starts a new period."""
        self._since_s, self._ticks, self._reads = self._clock_s(), self._read(), self._work()[1]

    def is_busy(self) -> bool:
        """Whether there is other work. Moves the mark to now."""
        since_s, ticks, reads = self._since_s, self._ticks, self._reads
        self.mark()
        if self._work()[0]:
            return True
        if ticks is None or self._ticks is None:
            return self._reads > reads
        return (self._ticks - ticks) / 1000 >= (self._since_s - since_s) * BUSY_SHARE_MIN > 0

    def _read(self) -> int | None:
        try:
            return int(self._stat.read_text("ascii").split()[_IO_TICKS])
        except (OSError, ValueError, IndexError):
            return None
