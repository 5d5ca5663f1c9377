"""How far a mount in the making is: memory that its processes share by forking.

The one that answers for the mount says who it is before it mounts, and looks whether anybody still
waits for the mount when it can be found; whoever takes it back does the two in the other order. So
one of them always notices the other.
"""

from __future__ import annotations

import mmap
import struct
from enum import IntEnum

_SIZE_BYTES = 8
_PROGRESS, _UNWANTED = 0, 1
_PID = struct.Struct("=I")
_PID_AT = 4


class Progress(IntEnum):
    """Of an order: nothing is made yet; a mount may be; whoever asked has the answer."""

    BEGUN = 0
    MAKING = 1
    TOLD = 2


class Stage:
    """Made before the fork of the first process that uses it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SIZE_BYTES)

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return Progress(self._memory[_PROGRESS])

    @progress.setter
    def progress(self, progress: Progress) -> None:
        self._memory[_PROGRESS] = progress

    @property
    def unwanted(self) -> bool:
        """Whether it is taken back."""
        return bool(self._memory[_UNWANTED])

    def take_back(self) -> None:
        """From now on nobody wants it."""
        self._memory[_UNWANTED] = 1

    @property
    def pid(self) -> int:
        """Who answers for the mount; 0 where nobody has begun to."""
        pid: int = _PID.unpack_from(self._memory, _PID_AT)[0]
        return pid

    @pid.setter
    def pid(self, pid: int) -> None:
        _PID.pack_into(self._memory, _PID_AT, pid)

    @property
    def is_ready(self) -> bool:
        """Whether the mount can be read, and whoever asked for it knows."""
        return self.progress == Progress.TOLD and not self.unwanted
