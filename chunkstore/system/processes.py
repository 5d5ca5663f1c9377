"""Processes by their pidfds (pidfd_open(2)): whether they have ended, and how to end them."""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

from lodefs.chunkstore.system import libc

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def is_over(pid_fd: int, timeout_s: float = 0) -> bool:
    """Whether a process has ended; waits for at most ``timeout_s``."""
    poll = select.poll()  # select(2) accepts no descriptor above 1023
    poll.register(pid_fd, select.POLLIN)
    return bool(poll.poll(max(timeout_s, 0) * 1000))


def are_over(pid_fds: Sequence[int], timeout_s: float) -> bool:
    """Whether all have ended; waits for at most ``timeout_s``."""
    ends_s = time.monotonic() + timeout_s
    return all(is_over(pid_fd, ends_s - time.monotonic()) for pid_fd in pid_fds)


def is_stopped(child_pid_fd: int) -> bool:
    """Whether a child is stopped (SIGSTOP); False if it has ended."""
    try:
        options = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PIDFD, child_pid_fd, options) is not None
    except ChildProcessError:
        return False


def send(pid_fd: int, number: int = signal.SIGKILL) -> None:
    """Sends a signal, unless the process has ended."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pid_fd, number)


def watch(child: int) -> int:
    """Returns a pidfd of a new child. Raises: OSError; then there is no child."""
    try:
        return os.pidfd_open(child)
    except OSError:
        os.kill(child, signal.SIGKILL)
        reap(child)
        raise


def reap(child: int) -> None:
    """Waits for a child that has ended, or is ending, unless somebody has done so already."""
    with suppress(ChildProcessError):
        os.waitpid(child, 0)


def die_with_parent(parent: int | None) -> None:
    """Sends this process SIGKILL when its parent ends, or has ended already (prctl(2)). None: no
    longer."""
    libc.call("prctl", _PR_SET_PDEATHSIG, 0 if parent is None else signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def limit_memory(size_bytes: int) -> None:
    """Limits the memory of this process and of those that it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = size_bytes if hard == resource.RLIM_INFINITY else min(size_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def adopt_orphans() -> None:
    """Makes descendants children of this process when their parents end (prctl(2))."""
    libc.call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
