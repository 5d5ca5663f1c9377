"""The process that answers for a mount: it holds the device descriptors and keeps workers alive.

Since the supervisor holds the descriptors, nothing is lost when a worker is killed: its successor
gets the same descriptor, and the kernel sends the unanswered requests again (FUSE_NOTIFY_RESEND,
Linux 6.9). Before 6.9 only the worker holds its descriptor. It is closed when the worker dies, so
that its requests fail (ECONNABORTED) instead of waiting for ever.

With RESEND the supervisor can be lost, too: workers hold all descriptors, continue to serve, and
hand the mount to the next supervisor (mount.process.handover), which replaces them by its own.
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

CHECK_S = 1.0  # how often workers are checked
END_TIMEOUT_S = 5.0  # for workers to end by themselves after the mount
KILL_S = 0.1  # a killed process ends within this, unless something holds it
FAIL_PAUSE_S = 0.01
START_TIMEOUT_S = 30.0  # for its own workers to serve, before it ends those of a predecessor


class WorkerContext(msgspec.Struct, frozen=True):
    """The arguments of a worker. ``supervisor_fd``: a pidfd; ``marks``: of its threads; ``slot``:
    in the process table, -1 without one; ``life_fd``: as for the supervisor.

    The worker calls ``serving`` in its main thread once it serves, and again when ``made_fd`` is
    readable. If it can live without its supervisor, it does so from then on.
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
    """A socket, or an object that has one."""

    def close(self) -> None:
        """May be called more than once."""
        ...


@dataclass(frozen=True)
class SupervisorConfig:
    """The plan of a supervisor: ``workers`` processes of ``work`` on the connection ``fd``.

    ``hang_s``: a worker hangs if one of its threads is busy, or it is stopped, for longer.
    ``clones``: descriptors for workers; further workers share ``fd``, unless they get their own
    (without RESEND). ``call_fd``: when it is readable, one more process is started to read it, with
    a clone of its own; it answers no requests, and nothing waits for it. With a ``process_table``
    workers outlive the supervisor; at ``control_server`` others ask for the mount. ``kept``: the
    descriptors are also kept elsewhere, so that the mount lives on without any process.
    ``requester``: acknowledges a new mount when it is ready; None: no acknowledgement is needed.
    ``private``: what only the supervisor holds, so that the other side sees its end. ``on_made``:
    called when a new mount was acknowledged. ``life_fd``: the mount ends when it is readable; -1:
    none.
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
    and no others. ``made``: a new mount was acknowledged. ``over``: the connection had ended before
    this process did. Must be used in a process without threads.
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
        self._more = list(clones[processes:])  # descriptors of a predecessor with more workers

    def run(
        self,
        ready: Callable[[], int] | None,
        on_ready: Callable[[int], bool],
        ready_timeout_s: float,
        confirm: Callable[[], None] = lambda: None,
    ) -> None:
        """Returns when the connection has ended, the mount was taken over, ``on_ready`` returned
        False, the requester has gone or was too slow before the mount was complete, or a signal
        came: SIGTERM, SIGINT or SIGHUP end the mount, SIGUSR2 leaves it.

        ``ready`` runs in a child process, and ``on_ready`` gets its exit code; without ``ready`` it
        gets 0 at once. ``confirm`` is called when the workers serve, before those of a predecessor
        are ended.
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
        """Waits for an event and handles it; False at the end."""
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
        """Handles a readable descriptor; False at the end."""
        if fd == self._life_fd:
            self._log("the process that this mount was made for has ended")
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
        """Returns the time to wait for events: shorter if a worker is to be started soon."""
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
        """Reads the message of a process that was given all descriptors: it goes on, or it has
        failed; workers that a failed one left are ended."""
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
            with contextlib.suppress(Unavailable):  # they continue to serve until the next one
                self._replace(self._process_table, list(self._others(self._process_table)))

    def _settle(self, requester: Requester) -> bool:
        """Lets the workers live without this process, once the requester has acknowledged.

        Returns False if the requester has gone, so that nobody wants the mount.
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
        """Waits until all its own workers serve, then ends those of others, one by one.

        Raises: Unavailable if there are others, and its own workers do not start.
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
        """Slot, pid and pidfd of each worker of another supervisor. Raises: Unavailable."""
        own = {place.slot for place in self._places}
        for slot, pid, pid_fd in process_table.living():
            if slot in own:
                os.close(pid_fd)
            else:
                yield slot, pid, pid_fd

    def _replace(self, process_table: ProcessTable, others: Sequence[tuple[int, int, int]]) -> None:
        """Ends workers of another supervisor, one by one; its own answer their requests."""
        for slot, pid, pid_fd in others:
            processes.send(pid_fd)
            is_over(pid_fd, END_TIMEOUT_S)
            os.close(pid_fd)
            process_table.clear(slot)
            self._log(f"worker {pid} of another supervisor is replaced")
            self._resend()

    def _own_serve(self) -> bool:
        """Waits until all workers serve, and could go on without this process. False if one ends,
        is not ready in time, or the requester goes."""
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
        # A process that answers no requests must not keep those of others alive.
        is_holder = self._process_table is not None and place.call_fd < 0
        keep = self._fds() if is_holder else {place.fd}
        self._become(supervisor, lambda: self._work(context), keep=keep)

    def _restart(self, place: WorkerPlace) -> None:
        """Starts a process in an empty place; a process that is called is only waited for."""
        if place.call_fd >= 0:
            self._poll.register(place.call_fd, select.POLLIN)
            place.listening = True
        elif self._try_start(place) and self._session.resend and not self._resend():
            self._log("the kernel does not send the requests of the dead worker again")

    def _resend(self) -> bool:
        """Makes the kernel send unanswered requests again; False if it does not."""
        self._counter.add(Column.RESENDS, 1)
        return device.notify(self._fd, fuse_abi.NOTIFY_RESEND)

    def _start_called(self, place: WorkerPlace) -> None:
        self._poll.unregister(place.call_fd)
        place.listening = False
        if ended(self._fd):
            place.start_at_s = time.monotonic() + CHECK_S  # workers are about to report this, too
        else:
            self._try_start(place)

    def _try_start(self, place: WorkerPlace) -> bool:
        """Starts a process. Returns False if that must be tried again later."""
        try:
            self._start(place)
        except (OSError, Unavailable) as error:  # no memory or process is available now
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
        """Returns a pidfd that shows the end of a new child. Raises: OSError; then there is no
        child."""
        pid_fd = processes.watch(child)
        self._poll.register(pid_fd, select.POLLIN)
        return pid_fd

    def _serving(self, slot: int) -> None:
        """Runs in a worker when the mount is complete: records the worker, so that any supervisor
        can find it. From then on it lives on its own."""
        if self._process_table is not None and startup.is_done(self._made_fd):
            die_with_parent(None)
            self._process_table.enter(slot)

    def _fds(self) -> set[int]:
        return {self._fd, *self._more, *(place.fd for place in self._places)}

    def _become(
        self, supervisor: int, main: Callable[[], int | None], *, keep: set[int]
    ) -> NoReturn:
        """In a new child: runs ``main``, and exits with its result. At first a child ends with its
        supervisor."""
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
        """Plans the successor of a worker that ended; False if the connection has ended."""
        code = self._collect(place)
        if ended(self._fd):
            return False
        if (
            not self._session.resend and not place.own
        ):  # a process that shares it keeps the requests alive
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
        """Ends all children, gently if the connection has ended, and closes the descriptors.

        If the mount was taken over or left, workers go on.
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
        # Closing the last descriptor ends the connection, and so a probe that waits for it.
        for fd in self._fds():
            os.close(fd)
        self._collect_probe()

    def _collect_probe(self) -> None:
        """Reaps a killed probe, if any. It may wait longer if descriptors are kept elsewhere."""
        if not self._probe[0]:
            return
        if is_over(self._probe[1], END_TIMEOUT_S):
            self._reap_probe()

    def _await_killed(self, pid_fds: Sequence[int]) -> None:
        """Waits until killed processes have ended. One that stores bytes cannot end while the page
        has a reader (mount.read.prefetcher), and a probe not before its answer. So requests are
        failed, unless other workers, which a successor has not replaced, answer them."""
        others_answer = self.made and not self.settled
        deadline_s = time.monotonic() + END_TIMEOUT_S
        is_needed = not all(is_over(pid_fd, KILL_S) for pid_fd in pid_fds) or others_answer
        if pid_fds and self._session.resend and is_needed:
            self._resend()  # the requests of dead workers
        while not all(map(is_over, pid_fds)) and time.monotonic() < deadline_s:
            if others_answer or not device.fail_request(self._fd):
                left = next((fd for fd in pid_fds if not is_over(fd)), pid_fds[0])
                is_over(left, FAIL_PAUSE_S)


def ended(fd: int) -> bool:
    """Whether a connection has ended: it was unmounted or aborted."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
