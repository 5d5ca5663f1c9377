"""The place of one process under a supervisor: what stays when the process changes."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence

import msgspec

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.system.processes import is_stopped
from lodefs.mount.kernel import device

STEADY_S = 1.0  # a worker that lived this long is replaced at once
RESTART_PAUSE_S_MAX = 5.0


class WorkerPlace(msgspec.Struct):
    """``fd``: the descriptor of the connection that its process reads; not ``own``: others read it
    too. ``marks``: since when each thread is busy (time.monotonic), 0.0 for one that waits.
    ``call_fd``: if there is one, the process is started when it is readable. ``slot``: in the
    process table. ``pid``: 0 while the place is empty.
    """

    index: int
    fd: int
    marks: memoryview[float]
    own: bool
    call_fd: int = -1
    listening: bool = False
    pid: int = 0
    pid_fd: int = -1
    slot: int = -1
    start_at_s: float = 0.0
    _started_s: float = 0.0
    _stopped_s: float = 0.0  # since when it has been seen stopped; 0.0: it is not
    _pause_s: float = 0.0

    def begin(self, now_s: float) -> None:
        """Prepares for a process that is about to be started here."""
        self._clear()
        self._started_s = now_s

    def open_private(self, connection: int, log: Callable[[str], None]) -> None:
        """Opens a descriptor that only the next process will have. Without one it shares that of
        the connection.

        The kernel fails the requests of a dead process when nobody holds its descriptor any more.
        So no process may ever get another's descriptor, not even from fork until it closes it,
        since it may be stopped in between.
        """
        try:
            self.fd, self.own = device.open_clone(connection), True
        except LodefsError as error:
            log(f"workers share one descriptor: {error}")
            self.fd, self.own = connection, False

    def close_private(self, connection: int) -> None:
        """Closes it in the supervisor after the start, or after a failed one; ``own`` still says
        what the process has."""
        if self.own:
            os.close(self.fd)
        self.fd = connection

    def hangs(self, now_s: float, hang_s: float) -> bool:
        """Whether its process is stopped, or has a busy thread, for longer: a stopped one may have
        taken a request without being able to record it."""
        if not is_stopped(self.pid_fd):
            self._stopped_s = 0.0
        elif not self._stopped_s:
            self._stopped_s = now_s
        since_s = [*self.marks, self._stopped_s]
        return any(0 < one < now_s - hang_s for one in since_s)

    def was_killed(self) -> None:
        """Records the kill, so that its process is not killed again for the same reason."""
        self._clear()

    def plan_start(self, now_s: float) -> None:
        """Plans the next process: at once, or later if the last one did not live long."""
        steady = now_s - self._started_s >= STEADY_S
        self._pause_s = 0.0 if steady else min(2 * self._pause_s + 0.01, RESTART_PAUSE_S_MAX)
        self.start_at_s = now_s + self._pause_s

    def delay_start(self, now_s: float) -> None:
        """Plans a retry after a failed start."""
        self.start_at_s = now_s + RESTART_PAUSE_S_MAX

    def _clear(self) -> None:
        self._stopped_s = 0.0
        for index in range(len(self.marks)):
            self.marks[index] = 0.0


def make(processes: int, threads: int, connection: int, clones: Sequence[int]) -> list[WorkerPlace]:
    """Makes places with marks in memory that forked processes share. Places without one of
    ``clones`` read the connection's descriptor itself."""
    marks = memoryview(mmap.mmap(-1, max(8 * processes * threads, 1))).cast("d")
    each = [marks[n * threads : (n + 1) * threads] for n in range(processes)]
    return [
        WorkerPlace(n, clones[n] if n < len(clones) else connection, one, own=n < len(clones))
        for n, one in enumerate(each)
    ]
