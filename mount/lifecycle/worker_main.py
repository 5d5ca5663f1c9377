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
from lodefs.mount.fs.interrupts import Lines
from lodefs.mount.fs.pending_requests import Waits
from lodefs.mount.kernel import device, fuse_abi
from lodefs.mount.lifecycle.handover import Door
from lodefs.mount.lifecycle.supervisor import Post
from lodefs.mount.shm.process_table import Roster

TICK_S = 0.05  # how often requests are looked at whose interrupt waits
WATCH_S = 1.0  # how often those without a supervisor look at each other


class Ending(Event):
    """Set when the connection is over; it wakes the main thread too."""

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__()
        self._wake = wake

    def set(self) -> None:
        """See threading.Event."""
        super().set()
        self._wake()


class Attendant:
    """Of the worker at ``post``. ``roster``: None where a worker dies with its supervisor."""

    def __init__(
        self,
        post: Post,
        lines: Lines,
        waits: Waits,
        door: Door | None,
        roster: Roster | None,
        say: Callable[[str], None],
    ) -> None:
        self._fd = post.fd
        self._index = post.index
        self._supervisor_fd = post.supervisor_fd
        self._lines = lines
        self._waits = waits
        self._door = door
        self._roster = roster
        self._colleagues = 0
        self._say = say
        self._open: set[int] = set()  # interrupted, and not answered
        self._watch_s = 0.0
        self._said = False
        self.alone = False  # whether the supervisor is gone
        self._poll = select.poll()
        self._poll.register(lines.fileno(self._index), select.POLLIN)
        self._made_fd = post.made_fd
        self._serving = post.serving
        if roster is not None:
            self._poll.register(self._supervisor_fd, select.POLLIN)
            self._poll.register(self._made_fd, select.POLLIN)

    def run(self, ended: Event) -> None:
        """Return when the connection is over."""
        next_s = 0.0
        while not ended.is_set():
            fds = {fd for fd, _ in self._poll.poll(self._pause_s() * 1000)}
            if self._made_fd in fds:
                self._poll.unregister(self._made_fd)
                self._serving()
            if self._supervisor_fd in fds:
                self._lose_supervisor()
            if self._door is not None and self._door.fileno() in fds:
                client = self._door.answer()
                if client is not None:
                    client.close()
            if self.alone and time.monotonic() >= self._watch_s:
                self._watch()
            for unique in self._lines.receive(self._index):
                self._look_at(unique, again=False)
            if self._open and time.monotonic() >= next_s:
                for unique in list(self._open):
                    self._look_at(unique, again=True)
                next_s = time.monotonic() + TICK_S

    def _pause_s(self) -> float:
        if self._open:
            return TICK_S
        return WATCH_S if self.alone else 3600.0

    def _look_at(self, unique: int, *, again: bool) -> None:
        """Let go of an interrupted request, or see to it that its interrupt is not lost."""
        found = self._waits.interrupt(unique)
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

    def _lose_supervisor(self) -> None:
        self._poll.unregister(self._supervisor_fd)
        self.alone = True
        self._watch_s = time.monotonic() + WATCH_S
        if self._door is not None:
            self._poll.register(self._door, select.POLLIN)

    def _watch(self) -> None:
        """Without a supervisor: see to the requests of workers that die, as it would.

        The first time, a while after it has gone, say so: another may just be taking its place.
        """
        self._watch_s = time.monotonic() + WATCH_S
        left = 0
        try:
            for _, _, pid_fd in self._roster.living() if self._roster is not None else ():
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
            self._say("the supervisor is gone; this worker serves on. 'lodefs mount --take-over "
                      "DIR' starts another supervisor")  # fmt: skip
