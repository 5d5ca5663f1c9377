"""How processes hear of each other's end, or stop: pidfd_open(2), waitid(2), PR_SET_PDEATHSIG."""

from __future__ import annotations

import os
import select
import signal

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def is_over(pid_fd: int) -> bool:
    """Whether the process of a pidfd has ended."""
    return bool(select.select([pid_fd], [], [], 0)[0])


def is_stopped(child_pid_fd: int) -> bool:
    """Whether a child is stopped (SIGSTOP); False for one that has ended."""
    try:
        options = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PIDFD, child_pid_fd, options) is not None
    except ChildProcessError:
        return False


def wait(pid_fd: int, seconds: float) -> None:
    """Until it has ended, or so long."""
    select.select([pid_fd], [], [], max(seconds, 0))


def die_with_parent(parent: int | None) -> None:
    """prctl(2): SIGKILL when the parent ends, which may have ended before. None: not any more."""
    import ctypes

    number = 0 if parent is None else signal.SIGKILL
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
