"""What the workers of a mount tell the process that stores ahead: which reads took a question."""

from __future__ import annotations

import contextlib
import os
import select
import struct
from collections.abc import Callable
from typing import NamedTuple

_WISH = struct.Struct("=QQQ")
QUIET = 16  # wishes of a process that are kept back: few reads are not worth a process to hear
_BATCH_BYTES = 64 * _WISH.size


class ReadEvent(NamedTuple):
    """A read of ``size_bytes`` of a file, by its inode number, from ``first`` on."""

    ino: int
    first: int
    size_bytes: int


LOOK_UP = ReadEvent(0, 0, 0)  # lets who listens look whether all is over; no inode has this number

EmitRead = Callable[[ReadEvent], None]


def ignore_read(_wish: ReadEvent) -> None:
    """Where nobody listens."""


class ReadEvents:
    """A pipe, made before the processes are forked that write to it, and the one that reads."""

    def __init__(self, quiet: int = QUIET) -> None:
        self._out, self._in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._quiet = quiet

    def emit(self, event: ReadEvent) -> None:
        """What nobody has time for, or nobody listens to, is lost; so are the first few of each
        process, except LOOK_UP."""
        if self._quiet and event is not LOOK_UP:
            self._quiet -= 1
            return
        with contextlib.suppress(OSError):
            os.write(self._in, _WISH.pack(*event))

    def fileno(self) -> int:
        """The descriptor that gets readable."""
        return self._out

    def listen(self) -> None:
        """From now on this process only receives."""
        os.close(self._in)

    def receive(self, timeout_s: float) -> list[ReadEvent] | None:
        """What was told; nothing after a while, or to look up; None when nobody is left to tell."""
        if not select.select([self._out], [], [], timeout_s)[0]:
            return []
        told = os.read(self._out, _BATCH_BYTES)
        if not told:
            return None
        return [ReadEvent(*event) for event in _WISH.iter_unpack(told) if event != LOOK_UP]
