"""A table of the processes that serve a mount, in shared memory that outlives each of them.

Supervisors hand it on, so that a new one finds all workers of its predecessors, however these
ended. A slot is (process id, start time), both u64; zeros: free. The start time (proc_pid_stat(5))
distinguishes a worker from another process that got its number later. The first slot belongs to the
supervisor.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.system import processes

SLOTS = 1024  # workers at a time, of all generations
_SLOT = struct.Struct("=QQ")
RESERVED = 1
SUPERVISOR = 0
_ENDED = frozenset(
    (errno.ESRCH, errno.EINVAL, errno.ENOENT)
)  # or the number now belongs to a thread
_START_TIME = 19  # field 22 of /proc/PID/stat, counted after the name in brackets


class ProcessTable:
    """The table in the memory file ``fd``, which stays the caller's."""

    def __init__(self, fd: int) -> None:
        self._table = mmap.mmap(fd, SLOTS * _SLOT.size)

    @staticmethod
    def create() -> int:
        """Returns a memory file for an empty table."""
        fd = os.memfd_create("lodefs-workers", os.MFD_CLOEXEC)
        os.ftruncate(fd, SLOTS * _SLOT.size)
        return fd

    def reserve(self) -> int:
        """Returns a slot for a new worker. Raises: Unavailable if all are taken."""
        for slot in range(1, SLOTS):
            if self._read(slot) == (0, 0):
                self._write(slot, 0, RESERVED)
                return slot
        raise Unavailable(f"more than {SLOTS} workers of one mount")

    def pid(self, slot: int) -> int:
        """Returns the process in a slot; 0 if there is none yet."""
        return self._read(slot)[0]

    def enter(self, slot: int) -> None:
        """Enters the calling process."""
        pid = os.getpid()
        self._write(slot, pid, start_time(pid) or 0)

    def clear(self, slot: int) -> None:
        """Clears a slot whose process has ended."""
        self._write(slot, 0, 0)

    def living(self) -> Iterator[tuple[int, int, int]]:
        """(slot, pid, a new pidfd) of each living process. Slots of others are cleared.

        Raises: Unavailable, after all others, if one cannot be checked for lack of descriptors.
        """
        unknown: Unavailable | None = None
        for slot in range(1, SLOTS):
            if not self.pid(slot):
                continue
            try:
                pid_fd = self._open(slot)
            except Unavailable as error:
                unknown = error
                continue
            if pid_fd is None:
                self.clear(slot)
            else:
                yield slot, self.pid(slot), pid_fd
        if unknown is not None:
            raise unknown

    def turn(self) -> None:
        """Makes the calling process the supervisor."""
        self.enter(SUPERVISOR)

    def has_supervisor(self) -> bool:
        """Whether the supervisor lives; one that has ended and was not reaped yet does not. Raises:
        Unavailable."""
        pid_fd = self._open(SUPERVISOR)
        if pid_fd is None:
            return False
        try:
            return not processes.is_over(pid_fd)
        finally:
            os.close(pid_fd)

    def kill_all(self) -> None:
        """Sends SIGKILL to all that live. Raises: Unavailable, after all others."""
        for _, _, pid_fd in self.living():
            processes.send(pid_fd)
            os.close(pid_fd)

    def _open(self, slot: int) -> int | None:
        """Returns a pidfd of the process in a slot; None if it has ended. Raises: Unavailable."""
        pid, started = self._read(slot)
        if not pid:
            return None
        try:
            pid_fd = os.pidfd_open(pid)
        except OSError as error:
            if error.errno in _ENDED:
                return None
            raise Unavailable(
                f"cannot tell whether process {pid} lives: {error.strerror}"
            ) from error
        is_same = False
        try:
            is_same = start_time(pid) == started
        finally:
            if not is_same:
                os.close(pid_fd)
        return pid_fd if is_same else None

    def _read(self, slot: int) -> tuple[int, int]:
        pid, started = _SLOT.unpack_from(self._table, slot * _SLOT.size)
        return pid, started

    def _write(self, slot: int, pid: int, started: int) -> None:
        _SLOT.pack_into(self._table, slot * _SLOT.size, pid, started)


def start_time(pid: int) -> int | None:
    """Returns the start time of a process, in clock ticks since the machine's start; None if it has
    ended.

    Raises: Unavailable if that cannot be read now.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as error:
        raise Unavailable(f"cannot tell whether process {pid} lives: {error.strerror}") from error
    return int(stat.rpartition(")")[2].split()[_START_TIME])
