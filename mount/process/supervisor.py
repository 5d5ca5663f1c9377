"""The process that answers for a mount: holds its device descriptors, keeps workers alive on them.

Since the descriptors are the supervisor's, a worker that is killed loses nothing: its successor
gets the same descriptor, and the kernel sends the unanswered requests again
(FUSE_NOTIFY_RESEND, Linux 6.9). Before 6.9 a worker's descriptor is its alone: it is closed with
the worker's death, which fails its requests (ECONNABORTED) instead of leaving them without an
answer.

With RESEND the supervisor can be lost too: workers hold all descriptors, serve on without it, and
hand the mount to the next supervisor (mount.process.handover), which puts its own workers in
their place.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

import msgspec

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.protocol.figures.mount_counts import Column
from lodefs.chunkstore.system import processes
from lodefs.chunkstore.system.processes import die_with_parent, is_over
from lodefs.mount.kernel import device, fuse_abi
from lodefs.mount.kernel.session import Session
from lodefs.mount.process import startup, worker_place
from lodefs.mount.process.handover import TAKEN, ControlServer
from lodefs.mount.process.startup import Requester
from lodefs.mount.process.worker_place import WorkerPlace
from lodefs.mount.shm.process_table import ProcessTable
from lodefs.mount.shm.traffic_counters import RowCounter, uncounted

CHECK_S = 1.0  # how often workers are looked at
END_TIMEOUT_S = 5.0  # for workers to end by themselves when the mount is gone
KILL_S = 0.1  # so long it takes at most, where nothing holds a process
FAIL_PAUSE_S = 0.01
START_TIMEOUT_S = 30.0  # for own workers to serve before those of a predecessor are ended


class WorkerContext(msgspec.Struct, frozen=True):
    """What a worker is given. ``supervisor_fd`` is a pidfd; ``marks`` are of its threads; ``slot``
    is of the roster, -1 without one; ``life_fd`` is the supervisor's.

    ``serving`` is to be called once it serves, in the main thread, and again when ``made_fd`` gets
    readable: where it can live without its supervisor, it does from then on.
    """

    index: int
    fd: int
    marks: memoryview[float]
    supervisor_fd: int
    serving: Callable[[], None]
    made_fd: int
    slot: int = -1
    life_fd: int = -1


WorkerFunction = Callable[[WorkerContext], None]


class Private(Protocol):
    """A socket, or what has one."""

    def close(self) -> None:
        """Again and again is fine."""
        ...


@dataclass(frozen=True)
class SupervisorConfig:
    """What a supervisor runs: ``workers`` processes of ``work`` on the connection ``fd``.

    ``hang_s``: a thread busy for longer makes its worker count as hanging, and so does a worker
    that is stopped for longer. ``clones`` are descriptors for workers; those beyond them share
    ``fd``, unless they get their own (without RESEND). ``call_fd``: one process more, with a
    clone of its own, is started when that gets readable, to read it; it answers no requests, and
    nothing waits for it. With a ``process_table`` workers outlive the supervisor;
    ``control_server`` is where others ask for the mount. ``kept``: the descriptors are also kept
    elsewhere, so that the mount lives on without any process. ``requester``: acknowledges a new
    mount when it is ready; None: that is not needed. ``private``: what only the supervisor has, so
    that its end is seen at the other side. ``on_made`` is called when a new mount was
    acknowledged. ``life_fd``: the mount ends when that is readable; -1: for no such reason.
    """

    fd: int
    session: Session
    work: WorkerFunction
    workers: int
    threads: int
    hang_s: float
    log: Callable[[str], None]
    clones: Sequence[int] = ()
    call_fd: int = -1
    process_table: ProcessTable | None = None
    control_server: ControlServer | None = None
    kept: bool = False
    requester: Requester | None = None
    private: Sequence[Private] = ()
    on_made: Callable[[], None] = lambda: None
    life_fd: int = -1
    counter: RowCounter = field(default_factory=uncounted)


class Supervisor:
    """Keeps the processes of a SupervisorConfig running until the connection ends.

    ``left``: another supervisor has taken the mount, or may. ``settled``: its own workers serve,
    and others do not any more. ``made``: a new mount was acknowledged. ``over``: the connection had
    ended when this did. Must be called in a process without threads.
    """

    def __init__(self, config: SupervisorConfig) -> None:
        self.left = False
        self.settled = False
        self.over = False
        self.made = config.requester is None
        self._requester = config.requester
        self._private = config.private
        self._on_made = config.on_made
        self._life_fd = config.life_fd
        self._counter = config.counter
        self._made_fd = (
            config.requester.done_fd if config.requester else startup.new_done_fd(done=True)
        )
        self._may_leave = config.kept or config.process_table is not None
        self._process_table = config.process_table
        self._control_server = config.control_server
        self._successor: socket.socket | None = None
        self._me = -1
        self._fd = config.fd
        self._session = config.session
        self._work = config.work
        self._hang_s = config.hang_s
        self._log = config.log
        self._stop = False
        self._poll = select.poll()
        self._probe = (0, -1)
        workers, clones = config.workers, config.clones
        call_fd = config.call_fd if len(clones) > workers else -1
        processes = workers if call_fd < 0 else workers + 1
        self._places = worker_place.make(processes, config.threads, config.fd, clones)
        for place in self._places[workers:]:
            place.call_fd = call_fd
        self._more = list(clones[processes:])  # what a predecessor with more workers used

    def run(
        self,
        ready: Callable[[], int] | None,
        on_ready: Callable[[int], bool],
        ready_timeout_s: float,
        confirm: Callable[[], None] = lambda: None,
    ) -> None:
        """Return when the connection has ended, the mount was taken over, ``on_ready`` said
        False, the requester has gone or was too slow before the mount was made, or a signal came:
        SIGTERM, SIGINT, SIGHUP to end, SIGUSR2 to leave it.

        ``ready`` is run in a child process; what that exits with is given to ``on_ready``. None:
        that is called with 0 at once.
        ``confirm`` is called when the workers serve, before those of a predecessor are ended.
        """
        wakeup, wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll.register(wakeup, select.POLLIN)
        signal.set_wakeup_fd(wakeup_write)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
            signal.signal(number, self._on_signal)
        self._me = os.pidfd_open(os.getpid())
        try:
            for place in self._places:
                if place.call_fd < 0:
                    self._start(place)
            deadline_s = time.monotonic() + ready_timeout_s
            if ready is not None:
                self._start_probe(ready)
            if self._requester is not None:
                self._poll.register(self._requester, select.POLLIN)
            else:
                self._succeed(confirm)
            if self._control_server is not None:
                self._poll.register(self._control_server, select.POLLIN)
            if self._life_fd >= 0:
                self._poll.register(self._life_fd, select.POLLIN)
            if ready is None and not on_ready(0):
                return
            while not self._stop and self._turn(on_ready, deadline_s):
                pass
        finally:
            signal.set_wakeup_fd(-1)
            self._end()
            for fd in (wakeup, wakeup_write, self._me):
                os.close(fd)

    def _turn(self, on_ready: Callable[[int], bool], deadline_s: float) -> bool:
        """Wait for something to happen and deal with it; False at the end."""
        for fd, _ in self._poll.poll(self._pause_s() * 1000):
            if not self._react(fd, on_ready):
                return False
        now_s = time.monotonic()
        if self._probe[0] and now_s > deadline_s:
            os.kill(self._probe[0], signal.SIGKILL)
            return on_ready(-1)
        if not self.made and now_s > deadline_s:
            return False
        for place in self._places:
            may_start = self.made or place.call_fd < 0
            if may_start and not place.pid and not place.listening and now_s >= place.start_at_s:
                self._restart(place)
            elif place.pid and place.hangs(now_s, self._hang_s):
                self._log(f"worker {place.pid} hangs or is stopped; it is killed and replaced")
                os.kill(place.pid, signal.SIGKILL)
                place.was_killed()
        return True

    def _react(self, fd: int, on_ready: Callable[[int], bool]) -> bool:
        """Deal with a descriptor that is readable; False at the end."""
        if fd == self._life_fd:
            self._log("what this mount was made for has ended")
            return False
        requester = self._requester
        if requester is not None and fd == requester.fileno() and not self._settle(requester):
            return False
        if fd == self._probe[1] and not on_ready(self._reap_probe()):
            return False
        for place in self._places:
            if fd == place.pid_fd and not self._reap(place):
                return False
            if place.listening and fd == place.call_fd:
                self._start_called(place)
        if self._control_server is not None and fd == self._control_server.fileno():
            self._serve_control(self._control_server)
        if self._successor is not None and fd == self._successor.fileno():
            self._hear(self._successor)
        return True

    def _pause_s(self) -> float:
        """How long to wait for events: shorter where a worker is to be started soon."""
        now_s = time.monotonic()
        starts = [
            place.start_at_s - now_s
            for place in self._places
            if not place.pid and not place.listening
        ]
        return max(min([CHECK_S, *starts]), 0.001)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._stop = True
        self.left = self.left or (number == signal.SIGUSR2 and self._may_leave and self.made)

    def _serve_control(self, control_server: ControlServer) -> None:
        successor = control_server.answer(busy=self._successor is not None, ready=self.made)
        if successor is not None:
            self._successor = successor
            self._poll.register(successor, select.POLLIN)

    def _hear(self, successor: socket.socket) -> None:
        """What one says who was given all descriptors: that it goes on, or nothing (it failed, and
        workers that it left are ended)."""
        self._poll.unregister(successor)
        try:
            told = successor.recv(len(TAKEN))
        except OSError:
            told = b""
        if told == TAKEN:
            self.left = self._stop = True  # the connection stays open until this process ends
            return
        self._successor = None
        successor.close()
        if self._process_table is not None:
            with contextlib.suppress(Unavailable):  # they serve on until the next one
                self._replace(self._process_table, list(self._others(self._process_table)))

    def _settle(self, requester: Requester) -> bool:
        """Once the requester has acknowledged the mount, its workers live without us.

        False if the requester has gone before or meanwhile, so that nobody wants the mount.
        """
        if not requester.acknowledged():
            return False
        self._poll.unregister(requester)
        self.made = True
        requester.done()
        self._succeed(lambda: None)
        self._requester = None
        self.made = requester.settle()
        if self.made:
            self._on_made()
        return self.made

    def _succeed(self, confirm: Callable[[], None]) -> None:
        """Wait until all own workers serve; then end those that others left, one by one.

        Unavailable where there are others, and the own do not start.
        """
        if self._process_table is None:
            self.settled = True
            return
        others = list(self._others(self._process_table))
        if not self._own_serve() and others:
            raise Unavailable("the workers of the new supervisor do not start; see the log")
        confirm()
        self.settled = True
        self._process_table.turn()
        if self._session.resend:
            self._resend()  # those of workers that died before
        self._replace(self._process_table, others)

    def _others(self, process_table: ProcessTable) -> Iterator[tuple[int, int, int]]:
        """Slot, pid and pidfd of each worker that is another supervisor's. Unavailable."""
        own = {place.slot for place in self._places}
        for slot, pid, pid_fd in process_table.living():
            if slot in own:
                os.close(pid_fd)
            else:
                yield slot, pid, pid_fd

    def _replace(self, process_table: ProcessTable, others: Sequence[tuple[int, int, int]]) -> None:
        """End workers of another supervisor, one by one; the own answer what these had."""
        for slot, pid, pid_fd in others:
            processes.send(pid_fd)
            is_over(pid_fd, END_TIMEOUT_S)
            os.close(pid_fd)
            process_table.clear(slot)
            self._log(f"worker {pid} of another supervisor is replaced")
            self._resend()

    def _own_serve(self) -> bool:
        """Wait until all workers serve, and would go on without this process; False where one
        ends, or is not there in time, or the requester goes."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        started = [place for place in self._places if place.pid]
        watched = [place.pid_fd for place in started]
        if self._requester is not None:
            watched.append(self._requester.fileno())
        process_table = self._process_table
        while process_table is not None and any(
            not process_table.pid(place.slot) for place in started
        ):
            gone, _, _ = select.select(watched, [], [], 0.001)
            if gone or self._stop or time.monotonic() > deadline_s:
                return False
        return True

    def _start(self, place: WorkerPlace) -> None:
        place.begin(time.monotonic())
        supervisor = os.getpid()
        if self._process_table is not None:
            place.slot = self._process_table.reserve()
        if not self._session.resend:
            place.open_private(self._fd, self._log)
        try:
            pid = os.fork()
            if not pid:
                self._become_worker(supervisor, place)
            place.pid_fd = self._watch(pid)
            place.pid = pid
        finally:
            if not self._session.resend:
                place.close_private(self._fd)

    def _become_worker(self, supervisor: int, place: WorkerPlace) -> NoReturn:
        context = WorkerContext(
            place.index,
            place.fd,
            place.marks,
            self._me,
            lambda: self._serving(place.slot),
            self._made_fd,
            place.slot,
            self._life_fd,
        )
        # Who answers nobody must not keep the requests of others alive.
        is_holder = self._process_table is not None and place.call_fd < 0
        keep = self._fds() if is_holder else {place.fd}
        self._become(supervisor, lambda: self._work(context), keep=keep)

    def _restart(self, place: WorkerPlace) -> None:
        """A process for an empty place; one that is called is only waited for."""
        if place.call_fd >= 0:
            self._poll.register(place.call_fd, select.POLLIN)
            place.listening = True
        elif self._try_start(place) and self._session.resend and not self._resend():
            self._log("the kernel does not send the requests of the dead worker again")

    def _resend(self) -> bool:
        """Have the kernel send unanswered requests again; whether it does."""
        self._counter.add(Column.RESENDS, 1)
        return device.notify(self._fd, fuse_abi.NOTIFY_RESEND)

    def _start_called(self, place: WorkerPlace) -> None:
        self._poll.unregister(place.call_fd)
        place.listening = False
        if ended(self._fd):
            place.start_at_s = time.monotonic() + CHECK_S  # workers are about to say so too
        else:
            self._try_start(place)

    def _try_start(self, place: WorkerPlace) -> bool:
        """Whether it is started; else that is to be tried again later."""
        try:
            self._start(place)
        except (OSError, Unavailable) as error:  # no memory or process to be had now
            self._log(f"no worker can be started: {error}")
            if self._process_table is not None and place.slot >= 0:
                self._process_table.clear(place.slot)
            place.delay_start(time.monotonic())
            return False
        return True

    def _start_probe(self, ready: Callable[[], int]) -> None:
        supervisor = os.getpid()
        pid = os.fork()
        if not pid:
            self._become(supervisor, ready, keep=set())
        self._probe = (pid, self._watch(pid))

    def _watch(self, child: int) -> int:
        """A pidfd by which the end of a new child is seen. OSError; then there is no child."""
        pid_fd = processes.watch(child)
        self._poll.register(pid_fd, select.POLLIN)
        return pid_fd

    def _serving(self, slot: int) -> None:
        """In a worker, when the mount is made: it is written down, so that any supervisor can find
        it, and lives on its own then."""
        if self._process_table is not None and startup.is_done(self._made_fd):
            die_with_parent(None)
            self._process_table.enter(slot)

    def _fds(self) -> set[int]:
        return {self._fd, *self._more, *(place.fd for place in self._places)}

    def _become(
        self, supervisor: int, main: Callable[[], int | None], *, keep: set[int]
    ) -> NoReturn:
        """In a new child: run ``main`` and exit with what it returns. A child ends with its
        supervisor, at first."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all
            die_with_parent(supervisor)
            for fd in self._fds() - keep:
                os.close(fd)
            for other in (self._successor, self._requester, *self._private):
                if other is not None:
                    other.close()
            status = main() or 0
        except BaseException as error:  # noqa: BLE001 - no child may go on as its parent
            self._log(f"child {os.getpid()}: {type(error).__name__}: {error}")
        finally:
            os._exit(status & 0xFF)

    def _reap_probe(self) -> int:
        pid, pid_fd = self._probe
        self._probe = (0, -1)
        self._poll.unregister(pid_fd)
        os.close(pid_fd)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _reap(self, place: WorkerPlace) -> bool:
        """A worker ended: plan its successor; False where that is because the connection ended."""
        code = self._collect(place)
        if ended(self._fd):
            return False
        if not self._session.resend and not place.own:  # who shares it keeps the requests
            self._log("a worker died, and this kernel cannot send its requests again: giving up")
            return False
        self._counter.add(Column.WORKER_RESTARTS, int(place.call_fd < 0))
        place.plan_start(time.monotonic())
        who = "a worker" if place.call_fd < 0 else "the process that stores ahead"
        self._log(f"{who} ended with status {code}; another takes its place")
        return True

    def _collect(self, place: WorkerPlace) -> int:
        self._poll.unregister(place.pid_fd)
        os.close(place.pid_fd)
        code = os.waitstatus_to_exitcode(os.waitpid(place.pid, 0)[1])
        place.pid, place.pid_fd = 0, -1
        if self._process_table is not None:
            self._process_table.clear(place.slot)
        return code

    def _end(self) -> None:
        """End all children, gently where the connection has ended, and close the descriptors.

        Where the mount was taken over or left, workers go on.
        """
        self.over = ended(self._fd)
        if self.left:
            for place in self._places:
                if place.pid:
                    os.close(place.pid_fd)
                    place.pid = 0
        elif self._process_table is not None and self.settled and not ended(self._fd):
            try:
                self._process_table.kill_all()
            except Unavailable as error:
                self._log(f"workers may be left: {error}")
        deadline_s = time.monotonic() + (END_TIMEOUT_S if ended(self._fd) else 0)
        living = [place for place in self._places if place.pid]
        for place in living:
            is_over(place.pid_fd, deadline_s - time.monotonic())
            os.kill(place.pid, signal.SIGKILL)
        pid_fds = [place.pid_fd for place in living]
        if self._probe[0]:
            os.kill(self._probe[0], signal.SIGKILL)
            pid_fds += [self._probe[1]] if self._session.resend else []
        if not self.left:
            self._await_killed(pid_fds)
        for place in living:
            if is_over(place.pid_fd):
                self._collect(place)
        # Closing the last descriptor ends the connection, and with it a probe that waits for it.
        for fd in self._fds():
            os.close(fd)
        self._collect_probe()

    def _collect_probe(self) -> None:
        """Reap a killed probe, if any. It may wait on if descriptors are kept elsewhere."""
        if not self._probe[0]:
            return
        if is_over(self._probe[1], END_TIMEOUT_S):
            self._reap_probe()

    def _await_killed(self, pid_fds: Sequence[int]) -> None:
        """Until the processes have ended that were killed. One that stores bytes cannot while the
        page has a reader (mount.read.prefetcher), and a probe not before it has its answer:
        requests are failed, unless others, which a successor has not replaced, answer them."""
        others_answer = self.made and not self.settled
        deadline_s = time.monotonic() + END_TIMEOUT_S
        is_needed = not all(is_over(pid_fd, KILL_S) for pid_fd in pid_fds) or others_answer
        if pid_fds and self._session.resend and is_needed:
            self._resend()  # those that dead workers had
        while not all(map(is_over, pid_fds)) and time.monotonic() < deadline_s:
            if others_answer or not device.fail_request(self._fd):
                left = next((fd for fd in pid_fds if not is_over(fd)), pid_fds[0])
                is_over(left, FAIL_PAUSE_S)


def ended(fd: int) -> bool:
    """Whether a connection is over: unmounted or aborted."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
