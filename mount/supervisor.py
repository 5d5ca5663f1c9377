"""The process that answers for a mount: holds its device descriptors, keeps workers alive on them.

Since the descriptors are the supervisor's, a worker that is killed loses nothing: its successor
gets the same descriptor, and the kernel sends the unanswered requests again
(FUSE_NOTIFY_RESEND, Linux 6.9). Before 6.9 the dead worker's descriptor is closed, which fails
its requests (ECONNABORTED) instead of leaving them without an answer.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from chunkstore.errors import LodefsError
from mount import abi, device
from mount.session import Session

CHECK_S = 1.0  # how often workers are looked at
STEADY_S = 10.0  # a worker that lived so long may be replaced at once
RESTART_PAUSE_S_MAX = 5.0
END_TIMEOUT_S = 5.0  # for workers to end by themselves when the mount is gone
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

WorkerMain = Callable[[int, "memoryview[float]"], None]  # device descriptor, marks of its threads


@dataclass(slots=True)
class _Place:
    """One worker's place: its descriptor stays when the process changes."""

    fd: int
    marks: memoryview[float]
    own: bool  # a cloned descriptor, not the connection's first
    pid: int = 0
    pid_fd: int = -1
    started_s: float = 0.0
    start_at_s: float = 0.0
    pause_s: float = 0.0


class Supervisor:
    """Runs ``workers`` processes of ``work`` on the connection ``fd`` until it ends.

    ``hang_s``: a thread busy for longer makes its worker count as hanging. ``say`` logs a line.
    ``ready`` is run once in a child process; what that exits with is given to ``on_ready``.
    Must be called in a process without threads.
    """

    def __init__(
        self,
        fd: int,
        session: Session,
        work: WorkerMain,
        *,
        workers: int,
        threads: int,
        hang_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._fd = fd
        self._session = session
        self._work = work
        self._hang_s = hang_s
        self._say = say
        self._stop = False
        self._poll = select.poll()
        self._probe = (0, -1)
        shared = mmap.mmap(-1, max(8 * workers * threads, 1))
        marks = memoryview(shared).cast("d")
        self._places = [self._place(marks[n * threads : (n + 1) * threads]) for n in range(workers)]

    def run(
        self, ready: Callable[[], int], on_ready: Callable[[int], bool], ready_timeout_s: float
    ) -> None:
        """Return when the connection has ended, ``stop`` was called, or ``on_ready`` said False."""
        wakeup, wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll.register(wakeup, select.POLLIN)
        signal.set_wakeup_fd(wakeup_write)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        try:
            for place in self._places:
                self._start(place)
            self._start_probe(ready)
            deadline_s = time.monotonic() + ready_timeout_s
            while not self._stop and self._turn(on_ready, deadline_s):
                pass
        finally:
            signal.set_wakeup_fd(-1)
            self._end()
            os.close(wakeup)
            os.close(wakeup_write)

    def _turn(self, on_ready: Callable[[int], bool], deadline_s: float) -> bool:
        """Wait for something to happen and deal with it; False at the end."""
        for fd, _ in self._poll.poll(self._pause_s() * 1000):
            if fd == self._probe[1] and not on_ready(self._reap_probe()):
                return False
            for place in self._places:
                if fd == place.pid_fd and not self._reap(place):
                    return False
        now_s = time.monotonic()
        if self._probe[0] and now_s > deadline_s:
            os.kill(self._probe[0], signal.SIGKILL)
            return on_ready(-1)
        for place in self._places:
            if not place.pid and now_s >= place.start_at_s:
                self._restart(place)
            elif place.pid and any(0 < mark < now_s - self._hang_s for mark in place.marks):
                self._say(f"worker {place.pid} hangs; it is killed and replaced")
                os.kill(place.pid, signal.SIGKILL)
                _clear(place.marks)
        return True

    def _pause_s(self) -> float:
        """How long to wait for events: shorter where a worker is to be started soon."""
        now_s = time.monotonic()
        starts = [place.start_at_s - now_s for place in self._places if not place.pid]
        return max(min([CHECK_S, *starts]), 0.001)

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._stop = True

    def _place(self, marks: memoryview[float]) -> _Place:
        """A place with a descriptor of its own, or with the connection's first where none can
        be had."""
        try:
            return _Place(device.open_clone(self._fd), marks, own=True)
        except LodefsError as error:
            self._say(f"workers share one descriptor: {error}")
            return _Place(self._fd, marks, own=False)

    def _start(self, place: _Place) -> None:
        _clear(place.marks)
        place.started_s = time.monotonic()
        supervisor = os.getpid()
        pid = os.fork()
        if not pid:
            self._become(supervisor, lambda: self._work(place.fd, place.marks), keep=place.fd)
        place.pid = pid
        place.pid_fd = os.pidfd_open(pid)
        self._poll.register(place.pid_fd, select.POLLIN)

    def _restart(self, place: _Place) -> None:
        try:
            self._start(place)
        except OSError as error:  # no memory or process to be had now
            self._say(f"no worker can be started: {error.strerror}")
            place.start_at_s = time.monotonic() + RESTART_PAUSE_S_MAX
            return
        if self._session.resend and not device.notify(self._fd, abi.NOTIFY_RESEND):
            self._say("the kernel does not send the requests of the dead worker again")

    def _start_probe(self, ready: Callable[[], int]) -> None:
        supervisor = os.getpid()
        pid = os.fork()
        if not pid:
            self._become(supervisor, ready, keep=-1)
        self._probe = (pid, os.pidfd_open(pid))
        self._poll.register(self._probe[1], select.POLLIN)

    def _become(self, supervisor: int, main: Callable[[], int | None], *, keep: int) -> NoReturn:
        """In a new child: run ``main`` and exit with what it returns. A child ends with its
        supervisor."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all
            _die_with_parent(supervisor)
            for fd in {self._fd, *(place.fd for place in self._places)} - {keep}:
                os.close(fd)
            status = main() or 0
        except BaseException as error:  # noqa: BLE001 - no child may go on as its parent
            self._say(f"child {os.getpid()}: {type(error).__name__}: {error}")
        finally:
            os._exit(status & 0xFF)

    def _reap_probe(self) -> int:
        pid, pid_fd = self._probe
        self._probe = (0, -1)
        self._poll.unregister(pid_fd)
        os.close(pid_fd)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _reap(self, place: _Place) -> bool:
        """A worker ended: plan its successor; False where that is because the connection ended."""
        code = self._collect(place)
        if ended(self._fd):
            return False
        if not self._session.resend and not self._renew(place):
            return False
        now_s = time.monotonic()
        steady = now_s - place.started_s >= STEADY_S
        place.pause_s = 0.0 if steady else min(2 * place.pause_s + 0.01, RESTART_PAUSE_S_MAX)
        place.start_at_s = now_s + (0.0 if steady else place.pause_s)
        self._say(f"a worker ended with status {code}; another takes its place")
        return True

    def _renew(self, place: _Place) -> bool:
        """Without RESEND: fail the dead worker's requests by closing its descriptor."""
        if not place.own:
            self._say("a worker died, and this kernel cannot send its requests again: giving up")
            return False
        os.close(place.fd)
        fresh = self._place(place.marks)
        place.fd, place.own = fresh.fd, fresh.own
        return True

    def _collect(self, place: _Place) -> int:
        self._poll.unregister(place.pid_fd)
        os.close(place.pid_fd)
        code = os.waitstatus_to_exitcode(os.waitpid(place.pid, 0)[1])
        place.pid, place.pid_fd = 0, -1
        return code

    def _end(self) -> None:
        """End all children, gently where the connection has ended, and close the descriptors."""
        deadline_s = time.monotonic() + (END_TIMEOUT_S if ended(self._fd) else 0)
        for place in self._places:
            if place.pid:
                _wait(place.pid_fd, deadline_s - time.monotonic())
                os.kill(place.pid, signal.SIGKILL)
                self._collect(place)
        # Closing the last descriptor ends the connection, and with it a probe that waits for it.
        for fd in {self._fd, *(place.fd for place in self._places)}:
            os.close(fd)
        if self._probe[0]:
            os.kill(self._probe[0], signal.SIGKILL)
            self._reap_probe()


def ended(fd: int) -> bool:
    """Whether a connection is over: unmounted or aborted."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _clear(marks: memoryview[float]) -> None:
    for index in range(len(marks)):
        marks[index] = 0.0


def _wait(pid_fd: int, seconds: float) -> None:
    select.select([pid_fd], [], [], max(seconds, 0))


def _die_with_parent(parent: int) -> None:
    """prctl(2): SIGKILL when the parent ends. It may have ended before."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
