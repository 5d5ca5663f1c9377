"""Interrupted requests: whether their reader is dying, and how all workers learn of them.

The kernel gives an interrupt to the next reader of the device, which is seldom the worker with the
request. So it is sent to all workers of the mount, and the one that has the request acts.

Only killed readers are let go. Other signals do not interrupt reads of local files either, and
programs do not expect that.
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import struct
from pathlib import Path

_UNIQUE = struct.Struct("=Q")
_WAKE = b"."
_MASK = re.compile(r"^(Sig|Shd)(Pnd|Blk|Ign|Cgt):\s*([0-9a-f]+)$", re.MULTILINE)
_HARMLESS = (  # by default these do not end a process (signal(7)); all others do
    signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGSTOP,
    signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
)  # fmt: skip
_HARMLESS_MASK = sum(1 << (number - 1) for number in _HARMLESS)
_KILL_MASK = 1 << (signal.SIGKILL - 1)


def is_doomed(status: str) -> bool:
    """Whether a thread will end before it does anything else, from /proc/PID/status.

    A signal that ends a process mostly shows as a pending SIGKILL in each of its threads. One that
    writes a core, or comes after another, shows as itself.
    """
    masks = {kind + what: int(bits, 16) for kind, what, bits in _MASK.findall(status)}
    pending = masks.get("SigPnd", 0) | masks.get("ShdPnd", 0)
    kept = masks.get("SigBlk", 0) | masks.get("SigIgn", 0) | masks.get("SigCgt", 0)
    return bool(pending & (_KILL_MASK | ~(_HARMLESS_MASK | kept)))


def doomed(pid: int) -> bool:
    """Whether a thread, as the kernel named it, was killed or is gone.

    0 is a thread that this process cannot see (another process namespace): it counts as alive.
    """
    if not pid:
        return False
    try:
        return is_doomed(Path(f"/proc/{pid}/status").read_text("utf-8", "replace"))
    except (FileNotFoundError, ProcessLookupError):  # the latter: it ended after the open
        return True
    except OSError:
        return False


class InterruptPipes:
    """A pipe to each of ``workers`` processes, made before they are forked; any can wake all."""

    def __init__(self, workers: int) -> None:
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
        self._pairs = [socket.socketpair(socket.AF_UNIX, kind) for _ in range(workers)]

    def notify(self, unique: int) -> None:
        """Tells all workers that a request is interrupted. One that does not listen misses it."""
        for _, theirs in self._pairs:
            with contextlib.suppress(OSError):
                theirs.send(_UNIQUE.pack(unique))

    def wake(self, index: int) -> None:
        """Wakes one worker that waits at its pipe."""
        with contextlib.suppress(OSError):
            self._pairs[index][1].send(_WAKE)

    def fileno(self, index: int) -> int:
        """Returns the descriptor that becomes readable for a worker."""
        return self._pairs[index][0].fileno()

    def receive(self, index: int) -> list[int]:
        """Returns the interrupted requests that a worker was told of since its last call."""
        told = []
        with contextlib.suppress(BlockingIOError):
            while True:
                message = self._pairs[index][0].recv(_UNIQUE.size)
                if len(message) == _UNIQUE.size:
                    told.append(_UNIQUE.unpack(message)[0])
        return told

    def close(self) -> None:
        """Closes all pipes."""
        for ours, theirs in self._pairs:
            ours.close()
            theirs.close()
