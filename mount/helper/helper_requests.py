"""The orders for children of the mount helper, and how the children carry them out.

A separate process carries out each order, and may be killed at any time: a kernel that does not
answer blocks nobody else.
"""

from __future__ import annotations

import os
import signal
import stat
from contextlib import suppress

import msgspec

from lodefs.chunkstore.errors import InUse, InvalidInput, LodefsError
from lodefs.chunkstore.system import processes
from lodefs.mount.kernel import mount_syscalls, mount_table, mountpoints
from lodefs.mount.mount_spec import MountRequest, Reply, TakeOver
from lodefs.mount.process import control_socket, daemon, handover, process_scan
from lodefs.mount.process.startup import Requester

STATE_TIMEOUT_S = 0.25  # for the processes of a mount to answer
STACKED_MAX = 16  # mounts on one directory
END_TRIES = 4
END_TIMEOUT_S = 5.0  # for the processes of a mount to end by themselves after it


class Unmount(msgspec.Struct, frozen=True, tag="unmount"):
    """Removes all lodefs mounts on a directory. It is no error if there are none.

    ``end_timeout_s``: for their processes to end by themselves, before they are killed. ``abort``:
    end them whatever holds the mount.
    """

    place: str
    end_timeout_s: float = END_TIMEOUT_S
    abort: bool = False


class Look(msgspec.Struct, frozen=True, tag="look"):
    """Asks whether a mount is dead, for which no process answers at a socket."""

    place: str


Operation = MountRequest | TakeOver | Unmount | Look


def perform(operation: Operation, requester: Requester, left_s: float) -> None:
    """Carries an order out, in a process without threads, and answers the requester. Returns when
    nothing is left to do; for a mount, when it has ended.

    SIGALRM ends the process after ``left_s`` seconds, until its work needs an end of its own.
    Raises: errors of errors.py, which the requester is told.
    """
    signal.setitimer(signal.ITIMER_REAL, left_s)
    if isinstance(operation, MountRequest):
        _check_place(operation.options.mountpoint)
        daemon.run(operation, requester, left_s)
    elif isinstance(operation, TakeOver):
        daemon.run(operation, requester)
    elif isinstance(operation, Unmount):
        left = _unmount(operation)
        signal.setitimer(signal.ITIMER_REAL, 0)
        requester.finish(Reply())
        _await_end(left, operation.end_timeout_s)
    else:
        requester.finish(Reply(is_dead=mount_table.is_dead(operation.place)))


def _check_place(place: str) -> None:
    """Raises InvalidInput if a symlink replaced the directory: mount(2) would follow it."""
    with suppress(
        OSError
    ):  # nothing there, or a dead mount: check_mountpoint reports or repairs it
        if stat.S_ISLNK(os.lstat(mountpoints.plain(place)).st_mode):
            raise InvalidInput(f"{place} is a symlink and not a directory to mount on; remove it")


def _unmount(operation: Unmount) -> list[tuple[mount_table.Mount, int]]:
    """Returns the mounts that were removed, and a pidfd of each one's supervisor."""
    place = operation.place
    path = mountpoints.plain(place)
    left: list[tuple[mount_table.Mount, int]] = []
    for _ in range(STACKED_MAX):
        found = mount_table.on_top(path)
        if found is None:
            break
        if not found.is_lodefs:
            raise InUse(
                f"{place}: another file system ({found.fs_type}) is mounted here; unmount it"
            )
        pid_fd = _open_pid(found)
        left.append((found, pid_fd))
        try:
            mount_syscalls.detach(path, lazy=operation.abort, abort=operation.abort)
        except BlockingIOError:  # its processes end with its last user
            mount_syscalls.detach(path, lazy=True)
        except InvalidInput:
            if mount_table.on_top(path) == found:
                raise
    return left


def _open_pid(found: mount_table.Mount) -> int:
    """Returns a pidfd of the process that answers for a mount; -1 if none answers at once."""
    place = control_socket.find(found.device)
    with suppress(LodefsError, OSError):
        if place is not None:
            return os.pidfd_open(handover.state_of(place, STATE_TIMEOUT_S).pid)
    return -1


def _await_end(left: list[tuple[mount_table.Mount, int]], end_timeout_s: float) -> None:
    """Makes sure that the processes of removed mounts end, even if they are stopped.

    If others still use a mount, its connection has not ended, and its processes stay: this does not
    wait for them.
    """
    waited = [
        pid_fd
        for found, known in left
        for pid_fd in ([known] if known >= 0 else process_scan.holders(found.device))
    ]
    for _ in range(END_TRIES):
        if processes.are_over(waited, end_timeout_s):
            return
        orphaned_processes = [
            relic for found, _ in left for relic in process_scan.orphaned_processes(found.device)
        ]
        if not orphaned_processes:
            return
        for relic in orphaned_processes:
            processes.send(relic)
            os.close(relic)
