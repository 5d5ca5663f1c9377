"""Events from a mount's workers to the process that prefetches: the reads that took a request."""

from __future__ import annotations

import contextlib
import os
import select
import struct
from collections.abc import Callable
from typing import NamedTuple

_WISH = struct.Struct("=QQQ")
QUIET = 16  # a process keeps back this many events: a few reads are not worth a wake-up
_BATCH_BYTES = 64 * _WISH.size


class ReadEvent(NamedTuple):
    """A read of ``size_bytes`` of a file, by its inode number, from ``first`` on."""

    ino: int
    first: int
    size_bytes: int


LOOK_UP = ReadEvent(0, 0, 0)  # makes the listener check for the end; no inode has this number

EmitRead = Callable[[ReadEvent], None]


def ignore_read(_wish: ReadEvent) -> None:
    """Used if nobody listens."""


class ReadEvents:
    """A pipe, made before the processes are forked that write to it and read from it."""

    def __init__(self, quiet: int = QUIET) -> None:
        self._out, self._in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._quiet = quiet

    def emit(self, event: ReadEvent) -> None:
        """Sends an event. It is lost if nobody listens or the listener is busy. The first few of
        each process are dropped, except LOOK_UP."""
        if self._quiet and event is not LOOK_UP:
            self._quiet -= 1
            return
        with contextlib.suppress(OSError):
            os.write(self._in, _WISH.pack(*event))

    def fileno(self) -> int:
        """Returns the descriptor that becomes readable."""
        return self._out

    def listen(self) -> None:
        """Makes this process only receive from now on."""
        os.close(self._in)

    def receive(self, timeout_s: float) -> list[ReadEvent] | None:
        """Events; none after a while, or for LOOK_UP; None when no sender is left."""
        if not select.select([self._out], [], [], timeout_s)[0]:
            return []
        told = os.read(self._out, _BATCH_BYTES)
        if not told:
            return None
        return [ReadEvent(*event) for event in _WISH.iter_unpack(told) if event != LOOK_UP]
