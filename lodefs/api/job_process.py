"""Runs a command as a child of this process, passes signals on to it, and waits for it and all that
it has started.

Between the two is a keeper, which becomes the parent of processes that the command leaves behind
(PR_SET_CHILD_SUBREAPER). Services that have left the mount namespace, such as those of lodefs, are
not waited for.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from lodefs.chunkstore.system.processes import adopt_orphans, die_with_parent

PASSED_ON = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
)
POLL_S = 1.0  # while processes of the command still run
BY_SIGNAL = 128  # plus the signal's number: the exit code of a process that it ended, as in shells


def run(become: Callable[[], NoReturn]) -> int:
    """Runs a command in a child. Returns its exit code when all that it has started has ended, or
    when the child has ended and a signal says not to wait for the rest. If this process is killed,
    so is the child. Raises: OSError."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGCHLD})
    try:
        keeper = _child(lambda: os._exit(_kept(become, before)))
        return _wait(keeper, keeper, lambda: False)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kept(become: Callable[[], NoReturn], mask: Iterable[int]) -> int:
    """Runs the command below a keeper, which reaps all children."""

    def begin() -> NoReturn:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        become()

    adopt_orphans()
    return _wait(_child(begin), -1, _is_child_left)


def _child(work: Callable[[], NoReturn]) -> int:
    """Returns the id of a child that calls a function and ends. It is killed when this process
    ends."""
    parent = os.getpid()
    child = os.fork()
    if not child:
        try:
            die_with_parent(parent)
            work()
        finally:
            os._exit(1)
    return child


def _wait(child: int, which: int, is_left: Callable[[], bool]) -> int:
    """Returns the exit code of ``child``, when it has ended and either nothing ``is_left`` or a
    signal comes. ``which``: the children to reap, as for waitpid(2)."""
    code = None
    while code is None or is_left():
        waited = {*PASSED_ON, signal.SIGCHLD}
        got = signal.sigwaitinfo(waited) if code is None else signal.sigtimedwait(waited, POLL_S)
        if got is not None and got.si_signo != signal.SIGCHLD:
            if code is not None:
                break
            if got.si_code <= 0:  # the kernel sends signals of the terminal to the command, too
                os.kill(child, got.si_signo)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(which, os.WNOHANG))[0]:
                if ended[0] == child:
                    found = os.waitstatus_to_exitcode(ended[1])
                    code = found if found >= 0 else BY_SIGNAL - found
    return code


def _is_child_left() -> bool:
    """Whether this process has a child in its mount namespace."""
    own = os.readlink("/proc/self/ns/mnt")
    with suppress(OSError):  # a kernel without CONFIG_PROC_CHILDREN
        for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            with suppress(OSError):  # the child has ended
                if os.readlink(f"/proc/{pid}/ns/mnt") == own:
                    return True
    return False
