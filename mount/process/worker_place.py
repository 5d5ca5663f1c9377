"""The place of one process under a supervisor: what stays when the process in it changes."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence

import msgspec

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.system.processes import is_stopped
from lodefs.mount.kernel import device

STEADY_S = 1.0  # a worker that lived so long did not die of its start: replaced at once
RESTART_PAUSE_S_MAX = 5.0


class WorkerPlace(msgspec.Struct):
    """``fd`` is the descriptor of the connection that its process reads; not ``own``: others read
    it too. ``marks``: since when each thread is busy (time.monotonic), 0.0 for one that waits.
    ``call_fd``: where there is one, the process is started when that is readable. ``slot``: of the
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
    _stopped_s: float = 0.0  # since when it is seen stopped; 0.0: it is not
    _pause_s: float = 0.0

    def begin(self, now_s: float) -> None:
        """A process is about to be started here."""
        self._clear()
        self._started_s = now_s

    def open_private(self, connection: int, log: Callable[[str], None]) -> None:
        """A descriptor that only the process to be started will have; else it shares that of the
        connection.

        The kernel fails the requests of a dead process when nobody holds its descriptor any more.
        So no process may ever get another's, not even from its fork until it has closed it: it may
        be stopped in between.
        """
        try:
            self.fd, self.own = device.open_clone(connection), True
        except LodefsError as error:
            log(f"workers share one descriptor: {error}")
            self.fd, self.own = connection, False

    def close_private(self, connection: int) -> None:
        """In the supervisor, when the process is started, or could not be; ``own`` still says what
        the process has."""
        if self.own:
            os.close(self.fd)
        self.fd = connection

    def hangs(self, now_s: float, hang_s: float) -> bool:
        """Whether its process has a thread that has been busy for longer, or is stopped for
        longer: it may have taken a request then without a chance to say so."""
        if not is_stopped(self.pid_fd):
            self._stopped_s = 0.0
        elif not self._stopped_s:
            self._stopped_s = now_s
        since_s = [*self.marks, self._stopped_s]
        return any(0 < one < now_s - hang_s for one in since_s)

    def was_killed(self) -> None:
        """Its process is not to be killed again for the same reason."""
        self._clear()

    def plan_start(self, now_s: float) -> None:
        """Its process has ended: the next is started at once, or later if it did not live long."""
        steady = now_s - self._started_s >= STEADY_S
        self._pause_s = 0.0 if steady else min(2 * self._pause_s + 0.01, RESTART_PAUSE_S_MAX)
        self.start_at_s = now_s + self._pause_s

    def delay_start(self, now_s: float) -> None:
        """No process could be started."""
        self.start_at_s = now_s + RESTART_PAUSE_S_MAX

    def _clear(self) -> None:
        self._stopped_s = 0.0
        for index in range(len(self.marks)):
            self.marks[index] = 0.0


def make(processes: int, threads: int, connection: int, clones: Sequence[int]) -> list[WorkerPlace]:
    """Places with marks in memory that processes share when they are forked. Those without one of
    ``clones`` read the connection's descriptor itself."""
    marks = memoryview(mmap.mmap(-1, max(8 * processes * threads, 1))).cast("d")
    each = [marks[n * threads : (n + 1) * threads] for n in range(processes)]
    return [
        WorkerPlace(n, clones[n] if n < len(clones) else connection, one, own=n < len(clones))
        for n, one in enumerate(each)
    ]
