"""The main thread of a worker: it hears of interrupts and of the supervisor's end.

Whose supervisor is gone serves on, and hands the mount to whom comes for it.
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

TICK_S = 0.05  # how often requests are looked at whose interrupt waits
WATCH_S = 1.0  # how often those without a supervisor look at each other


def is_mount_over(fd: int, life_fd: int) -> bool:
    """Whether a worker that ends is the last of its mount's: the connection ``fd`` is over, or what
    the mount lives for is (``life_fd``; -1: nothing). Else its colleagues serve on."""
    return ended(fd) or _is_life_over(life_fd)


def _is_life_over(life_fd: int) -> bool:
    return life_fd >= 0 and is_over(life_fd)


class EndEvent(Event):
    """Set when the connection is over; it wakes the main thread too."""

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__()
        self._wake = wake

    def set(self) -> None:
        """See threading.Event."""
        super().set()
        self._wake()


class WorkerMain:
    """Of the worker of ``context``. ``process_table``: None if a worker dies with its
    supervisor."""

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
        self._open: set[int] = set()  # interrupted, and not answered
        self._watch_s = 0.0
        self._said = False
        self._is_answering = False
        self.alone = False  # whether the supervisor is gone
        self._life_fd = context.life_fd
        self._poll = select.poll()
        self._poll.register(interrupts.fileno(self._index), select.POLLIN)
        self._made_fd = context.made_fd
        self._serving = context.serving
        if process_table is not None:
            self._poll.register(self._supervisor_fd, select.POLLIN)
            self._poll.register(self._made_fd, select.POLLIN)

    def run(self, end: Event) -> None:
        """Return when the connection is over, or is to end and there is no supervisor to do it."""
        next_s = 0.0
        while not end.is_set() and not (self.alone and self._is_to_end()):
            fds = {fd for fd, _ in self._poll.poll(self._pause_s() * 1000)}
            if self._made_fd in fds:
                self._poll.unregister(self._made_fd)
                self._serving()
            if self._supervisor_fd in fds:
                self._on_supervisor_death()
            if self._control_server is not None and self._control_server.fileno() in fds:
                client = self._control_server.answer()
                if client is not None:
                    client.close()
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
        """Let go of an interrupted request, or see to it that its interrupt is not lost."""
        found = self._pending.interrupt(unique)
        if found:
            device.write_answer(self._fd, fuse_abi.failure(unique, errno.EINTR), b"")
        if found is None and again:
            # If it is in work on this descriptor, without waiting for anything that is known
            # here, the kernel sends the interrupt again; if it is not, it says so.
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

    def _answer_for_mount(self) -> None:
        """At the mount's socket, from when no supervisor does. One that lives, which ours was to
        relieve when it died, or that relieves ours, answers itself and ends this worker soon."""
        if self._control_server is None or self._is_answering:
            return
        try:
            if self._process_table is not None and self._process_table.has_supervisor():
                return
        except Unavailable:
            return  # no descriptors are left; it is looked again
        self._is_answering = True
        self._poll.register(self._control_server, select.POLLIN)

    def _watch(self) -> None:
        """Without a supervisor: see to the requests of workers that die, as it would.

        The first time, a while after it has gone, say so: another may just be taking its place.
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
            return  # no descriptors are left; it is looked again
        if left < self._colleagues:
            device.notify(self._fd, fuse_abi.NOTIFY_RESEND)
        self._colleagues = left
        if not self._said:
            self._said = True
            device.notify(self._fd, fuse_abi.NOTIFY_RESEND)  # of those that died before
            self._log("the supervisor is gone; this worker serves on. 'lodefs mount --take-over "
                      "DIR' starts another supervisor")  # fmt: skip
