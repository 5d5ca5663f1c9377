"""The main thread of a worker, which learns of interrupts and of the supervisor's end.

A worker that has lost its supervisor continues to serve, and hands the mount to the next one.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Callable
from threading import Event

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.system.processes import is_over
from lodefs.mount.fs.interrupts import InterruptPipes
from lodefs.mount.fs.pending_requests import PendingRequests
from lodefs.mount.kernel import device, fuse_abi
from lodefs.mount.process.handover import ControlServer
from lodefs.mount.process.supervisor import WorkerContext, ended
from lodefs.mount.shm.process_table import ProcessTable

TICK_S = 0.05  # how often requests with a waiting interrupt are checked
WATCH_S = 1.0  # how often workers without a supervisor check each other


def is_mount_over(fd: int, life_fd: int) -> bool:
    """Whether the mount ends with this worker: the connection ``fd`` has ended, or ``life_fd`` (-1:
    none) has. Otherwise other workers continue to serve."""
    return ended(fd) or _is_life_over(life_fd)


def _is_life_over(life_fd: int) -> bool:
    return life_fd >= 0 and is_over(life_fd)


class EndEvent(Event):
    """An event that is set when the connection has ended, and also wakes the main thread."""

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__()
        self._wake = wake

    def set(self) -> None:
        """See threading.Event."""
        super().set()
        self._wake()


class WorkerMain:
    """The main thread of the worker of ``context``. ``process_table``: None if a worker dies with
    its supervisor."""

    def __init__(
        self,
        context: WorkerContext,
        interrupts: InterruptPipes,
        pending: PendingRequests,
        control_server: ControlServer | None,
        process_table: ProcessTable | None,
        log: Callable[[str], None],
    ) -> None:
        self._fd = context.fd
        self._index = context.index
        self._supervisor_fd = context.supervisor_fd
        self._lines = interrupts
        self._pending = pending
        self._control_server = control_server
        self._process_table = process_table
        self._colleagues = 0
        self._log = log
        self._open: set[int] = set()  # interrupted and not answered
        self._watch_s = 0.0
        self._said = False
        self._is_answering = False
        self.alone = False  # whether the supervisor has ended
        self._life_fd = context.life_fd
        self._poll = select.poll()
        self._poll.register(interrupts.fileno(self._index), select.POLLIN)
        self._made_fd = context.made_fd
        self._serving = context.serving
        if process_table is not None:
            self._poll.register(self._supervisor_fd, select.POLLIN)
            self._poll.register(self._made_fd, select.POLLIN)

    def run(self, end: Event) -> None:
        """Returns when the connection has ended, or must end and no supervisor can end it."""
        next_s = 0.0
        while not end.is_set() and not (self.alone and self._is_to_end()):
            fds = {fd for fd, _ in self._poll.poll(self._pause_s() * 1000)}
            if self._made_fd in fds:
                self._poll.unregister(self._made_fd)
                self._serving()
            if self._supervisor_fd in fds:
                self._on_supervisor_death()
            if self._control_server is not None and self._control_server.fileno() in fds:
                self._answer(self._control_server)
            if self.alone and time.monotonic() >= self._watch_s:
                self._watch()
            for unique in self._lines.receive(self._index):
                self._retry_interrupt(unique, again=False)
            if self._open and time.monotonic() >= next_s:
                for unique in list(self._open):
                    self._retry_interrupt(unique, again=True)
                next_s = time.monotonic() + TICK_S

    def _is_to_end(self) -> bool:
        return _is_life_over(self._life_fd)

    def _pause_s(self) -> float:
        if self._open:
            return TICK_S
        return WATCH_S if self.alone else 3600.0

    def _retry_interrupt(self, unique: int, *, again: bool) -> None:
        """Lets go of an interrupted request, or makes sure that its interrupt is not lost."""
        found = self._pending.interrupt(unique)
        if found:
            device.write_answer(self._fd, fuse_abi.failure(unique, errno.EINTR), b"")
        if found is None and again:
            # If the request is in work on this descriptor, and waits for nothing that is known
            # here, the kernel sends the interrupt again. If it is not, the kernel says so.
            again_later = fuse_abi.failure(unique | fuse_abi.INTERRUPT_BIT, errno.EAGAIN)
            device.write_answer(self._fd, again_later, b"")
        if found is False or (found is None and not again):
            self._open.add(unique)
        else:
            self._open.discard(unique)

    def _on_supervisor_death(self) -> None:
        self._poll.unregister(self._supervisor_fd)
        self.alone = True
        self._watch_s = time.monotonic() + WATCH_S
        self._answer_for_mount()

    def _answer(self, control_server: ControlServer) -> None:
        self._answer_for_mount()
        client = control_server.answer() if self._is_answering else None
        if client is not None:
            client.close()

    def _answer_for_mount(self) -> None:
        """Answers at the mount's socket as long as no supervisor does. A living one answers itself,
        and would hear of no take-over that this worker has agreed to. It ends this worker soon, if
        it knows it: one in another PID namespace does not."""
        if self._control_server is None:
            return
        try:
            table = self._process_table
            is_answering = table is None or not table.has_supervisor()
        except Unavailable:
            return  # no descriptors are left; it tries again later
        if is_answering and not self._is_answering:
            self._poll.register(self._control_server, select.POLLIN)
        elif self._is_answering and not is_answering:
            self._poll.unregister(self._control_server)
        self._is_answering = is_answering

    def _watch(self) -> None:
        """Does a supervisor's work: sends the requests of dead workers again.

        The first time, some time after its end, logs it: another may be taking its place.
        """
        self._watch_s = time.monotonic() + WATCH_S
        self._answer_for_mount()
        left = 0
        try:
            for _, _, pid_fd in (
                self._process_table.living() if self._process_table is not None else ()
            ):
                os.close(pid_fd)
                left += 1
        except Unavailable:
            return  # no descriptors are left; it tries again later
        if left < self._colleagues:
            device.notify(self._fd, fuse_abi.NOTIFY_RESEND)
        self._colleagues = left
        if not self._said:
            self._said = True
            device.notify(self._fd, fuse_abi.NOTIFY_RESEND)  # for workers that died before
            self._log("the supervisor has ended; this worker continues. 'lodefs mount --take-over "
                      "DIR' starts another supervisor")  # fmt: skip
