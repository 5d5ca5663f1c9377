"""The first process of a mount service's container: runs the service in a child, and restarts it.

If the service was the first process, the container and all mounts in it would end with it. This
process does nothing that could fail, and reaps whatever dies.
"""

from __future__ import annotations

import mmap
import os
import signal
import time

PAUSE_S, PAUSE_S_MAX = 0.2, 10.0
LONG_RUN_S = 30.0  # an end after this time is not a failed start
END_S = 75.0  # for the service to end; it may hand its mounts over first
_SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}


class Tenure:
    """State that all starts of a service in one container share: whether one of them has served."""

    def __init__(self) -> None:
        self._byte = mmap.mmap(-1, 1)  # shared with forked processes

    @property
    def has_begun(self) -> bool:
        """Whether one has served."""
        return self._byte[0] != 0

    def begin(self) -> None:
        """Records that one serves now."""
        self._byte[0] = 1


def run_in_child() -> Tenure | None:
    """Returns in each child, which becomes the service; None in the parent, when all has ended.
    Must be called in the main thread of a process without other threads."""
    tenure = Tenure()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    pause_s = PAUSE_S
    while True:
        begun_s = time.monotonic()
        child = os.fork()
        if not child:
            os.setsid()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return tenure
        if not _await_end(child):
            return None
        pause_s = PAUSE_S if time.monotonic() - begun_s > LONG_RUN_S else pause_s
        if _told_to_end(pause_s):
            return None
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


def _await_end(child: int) -> bool:
    """Waits for the child; False if this process was told to end, and the child has ended."""
    while True:
        got = signal.sigwait(_SIGNALS)
        if child in _reaped():
            return got == signal.SIGCHLD
        if got != signal.SIGCHLD:
            _end(child)
            return False


def _end(child: int) -> None:
    os.kill(child, signal.SIGTERM)
    deadline_s = time.monotonic() + END_S
    while child not in _reaped():
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            os.kill(child, signal.SIGKILL)
            return
        signal.sigtimedwait({signal.SIGCHLD}, left_s)


def _told_to_end(pause_s: float) -> bool:
    """Waits a while for a signal to end, and reaps meanwhile."""
    ends_s = time.monotonic() + pause_s
    while (left_s := ends_s - time.monotonic()) > 0:
        got = signal.sigtimedwait(_SIGNALS, left_s)
        if got is not None and got.si_signo != signal.SIGCHLD:
            return True
        _reaped()
    return False


def _reaped() -> list[int]:
    """Returns children that have ended, adopted ones included."""
    found: list[int] = []
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if not pid:
            return found
        found.append(pid)
