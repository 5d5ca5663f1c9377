"""The data processes of a proxy: starts, watches and restarts them, and gives them orders.

Each has a few threads and a socket for each thread. The caller of an order holds one of these
sockets until the report comes. Whatever a process does not do, the caller does itself, so that a
process may die or hang at any time.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from lodefs.chunkstore import python_process
from lodefs.chunkstore.format.decoding import msgpack_decoder
from lodefs.chunkstore.objects.ranges.transport import limit_waiting
from lodefs.chunkstore.protocol import rpc
from lodefs.proxy.data import order as orders
from lodefs.proxy.data.order import FetchReport, FetchTask

log = logging.getLogger("lodefs.data")

SLOTS_MAX = 16  # in all processes together
SLOTS_LEAST = 4  # in each process
LOOK_S = 3.0  # without a report before a process is pinged
HANG_S = 10.0  # before a process that does not answer is killed
GRACE_S = 30.0  # for writing, beyond the time of an order's transfer
END_S = 5.0  # for a killed process to end
START_S = 30.0  # for a process to report that it takes orders
CLOSE_S = 10.0  # for all processes to end when the proxy ends
PAUSE_S_FIRST, PAUSE_S_MAX = 0.1, 60.0  # before a process that ended early is restarted
SOON_S = 10.0
# Prefixes of variables that it must not have
_SECRET = ("AWS_", "LODEFS_", "NOTIFY_", "LISTEN_", "WATCHDOG_")


class NotDone(Exception):
    """An order was not carried out. ``is_over``: certainly nothing more of it will be written.
    ``is_disk_slow``: the disk was the reason."""

    def __init__(self, message: str, *, is_over: bool = True, is_disk_slow: bool = False) -> None:
        super().__init__(message)
        self.is_over = is_over
        self.is_disk_slow = is_disk_slow


@dataclass(frozen=True, slots=True)
class DataSettings:
    """The number of processes, and settings for tests. ``kept_fds`` are descriptors that they keep
    open for their lifetime, for a lock. ``argv`` is the program."""

    processes: int
    kept_fds: Sequence[int] = ()
    argv: Sequence[str] = field(
        default_factory=lambda: python_process.command("lodefs.proxy.data.process")
    )
    start_s: float = START_S
    look_s: float = LOOK_S
    hang_s: float = HANG_S

    @property
    def slots(self) -> int:
        """The number of slots in each process."""
        return slots_of(self.processes)


class DataProcesses:
    """The processes of one proxy, started when they are first needed. For any thread, until
    ``close``."""

    def __init__(self, settings: DataSettings) -> None:
        self._settings = settings
        self._starting = threading.Lock()  # guards the fields below
        self._keepers: list[_Keeper] = []
        self._is_closed = False

    def start(self) -> bool:
        """Starts them, once. Returns whether one takes orders already."""
        if not self._keepers:
            with self._starting:
                if not self._keepers and not self._is_closed:
                    count = self._settings.processes
                    self._keepers = [_Keeper(self._settings) for _ in range(count)]
        return any(keeper.is_up for keeper in self._keepers)

    def carry_out(self, order: FetchTask, fds: Sequence[int], timeout_s: float) -> FetchReport:
        """Returns the report on an order. Blocking. Raises: NotDone, OSError."""
        with orders.packed(order) as (data, first_fds):
            for keeper in sorted(self._keepers, key=lambda keeper: keeper.busy):
                slot = keeper.take()
                if slot is not None:
                    try:
                        return self._ask(slot, data, [*first_fds, *fds], timeout_s)
                    finally:
                        keeper.give_back(slot)
        raise NotDone("no data process is free")

    def _ask(self, slot: _Slot, data: bytes, fds: Sequence[int], timeout_s: float) -> FetchReport:
        process, ends_s = slot.process, time.monotonic() + timeout_s
        slot.is_good = False  # until it has reported, whatever happens meanwhile
        try:
            rpc.send(slot.sock, data, fds)
            poll = select.poll()
            poll.register(slot.sock, select.POLLIN)
            while not poll.poll(self._settings.look_s * 1000):
                if time.monotonic() >= ends_s:
                    raise TimeoutError("it is too slow")
                if not process.answers(self._settings.hang_s):
                    raise TimeoutError("it does not answer")
                if process.is_stuck:
                    raise TimeoutError("a write to its disk is stuck")
            report = msgpack_decoder(FetchReport).decode(rpc.receive(slot.sock).data)
            slot.is_good = True
            return report
        except (OSError, MemoryError, msgspec.MsgspecError) as error:
            process.kill(str(error))  # it may have done a part of it
            # A stuck process ends when its disk answers
            wait_s = 0.0 if process.is_stuck else END_S
            is_over = process.is_gone(wait_s)
            why = "a data process ended"
            raise NotDone(why, is_over=is_over, is_disk_slow=process.is_stuck) from error

    def status(self) -> dict[str, object]:
        """Returns the fields for Node.status()."""
        return {
            "data_processes": sum(keeper.is_up for keeper in self._keepers),
            "data_processes_busy_orders": sum(keeper.busy for keeper in self._keepers),
            "data_processes_orders": sum(keeper.done for keeper in self._keepers),
            "data_processes_restarts": sum(keeper.restarts for keeper in self._keepers),
        }

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return [keeper.pid for keeper in self._keepers if keeper.is_up]

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Ends all processes, and starts no more. Running orders fail. A process that a disk blocks
        is left to end by itself; it keeps ``kept_fds`` until then."""
        with self._starting:
            self._is_closed, keepers = True, self._keepers
        for keeper in keepers:
            keeper.stop()
        ends_s = time.monotonic() + timeout_s
        for keeper in keepers:
            if not keeper.join(max(ends_s - time.monotonic(), 0.0)):
                log.warning("a data process does not end, since its disk hangs")


class _Process:
    """A running process. It is pinged on ``control``, and ends when that is closed."""

    def __init__(self, settings: DataSettings) -> None:
        self.control, control = socket.socketpair()
        kinds = socket.AF_UNIX, socket.SOCK_SEQPACKET
        pairs = [socket.socketpair(*kinds) for _ in range(settings.slots)]
        theirs = [control, *(pair[1] for pair in pairs)]
        try:
            self.popen = subprocess.Popen(
                [*settings.argv, *(str(sock.fileno()) for sock in theirs)],
                stdin=subprocess.DEVNULL,
                pass_fds=[*(sock.fileno() for sock in theirs), *settings.kept_fds],
                env=_environment(os.environ),
            )
        except BaseException:
            for sock in (self.control, *(pair[0] for pair in pairs)):
                sock.close()
            raise
        finally:
            for sock in theirs:
                sock.close()
        for sock, _ in pairs:
            limit_waiting(sock, settings.hang_s)
        self.slots = [_Slot(sock, self) for sock, _ in pairs]
        self._heard = threading.Condition()
        self._pongs = 0
        self.is_stuck = False  # whether a write was stuck at the last ping
        self._is_gone = threading.Event()

    def has_word(self, timeout_s: float) -> bool:
        """Whether it sends something in time, or ends."""
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def listen(self) -> bool:
        """Receives the next message of the process. Returns False at its end."""
        try:
            word = self.control.recv(1)
        except OSError:
            return False
        with self._heard:
            self._pongs += word in (orders.PONG, orders.STUCK)
            self.is_stuck = word == orders.STUCK
            self._heard.notify_all()
        return bool(word)

    def answers(self, timeout_s: float) -> bool:
        """Whether it answers a ping in time."""
        with self._heard:
            before = self._pongs
            try:
                self.control.send(orders.PING, socket.MSG_DONTWAIT)
            except OSError:
                return False
            return self._heard.wait_for(lambda: self._pongs > before, timeout_s)

    def kill(self, why: str) -> None:
        """Sends SIGKILL, unless it has ended."""
        if self.popen.poll() is None:
            log.warning("killed the data process %d: %s", self.popen.pid, why)
            with suppress(ProcessLookupError):
                self.popen.kill()

    def is_gone(self, timeout_s: float) -> bool:
        """Whether it has ended; waits for at most ``timeout_s``."""
        return self._is_gone.wait(timeout_s)

    def reap(self, timeout_s: float | None = None) -> int:
        """Waits for its end. Returns its exit status. Raises: TimeoutExpired."""
        status = self.popen.wait(timeout_s)
        self._is_gone.set()
        return status


@dataclass(slots=True, eq=False)
class _Slot:
    """The proxy's end of the socket of one thread of a process."""

    sock: socket.socket
    process: _Process
    is_good: bool = field(default=True)


class _Keeper:
    """A thread that keeps one process running. It is the parent of each process in turn, since the
    kernel kills a process whose parent thread has ended."""

    def __init__(self, settings: DataSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()  # guards the fields below
        self._started: _Process | None = None
        self._process: _Process | None = None  # the same process, once it takes orders
        self._idle: list[_Slot] = []
        self.busy = 0
        self.done = 0
        self.restarts = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lodefs-data", daemon=True)
        self._thread.start()

    @property
    def is_up(self) -> bool:
        """Whether its process takes orders."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The id of its process; 0 if there is none."""
        process = self._process
        return process.popen.pid if process is not None else 0

    def take(self) -> _Slot | None:
        """Takes an idle thread of the process."""
        with self._lock:
            if not self._idle:
                return None
            self.busy += 1
            return self._idle.pop()

    def give_back(self, slot: _Slot) -> None:
        """Returns a slot that has its report, or never will."""
        with self._lock:
            self.busy -= 1
            self.done += slot.is_good
            if slot.is_good and slot.process is self._process:
                self._idle.append(slot)
                return
        slot.sock.close()

    def stop(self) -> None:
        """Lets the process end, and starts no other."""
        self._ended.set()
        with self._lock:
            process = self._started
        if process is not None:
            with suppress(OSError):
                process.control.shutdown(socket.SHUT_RDWR)

    def join(self, timeout_s: float) -> bool:
        """Whether the process has ended; waits for at most ``timeout_s``."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _keep(self) -> None:
        pause_s = PAUSE_S_FIRST
        while not self._ended.is_set():
            begin_s = time.monotonic()
            why = self._run_one()
            if self._ended.is_set():
                return
            self.restarts += 1
            before_s, pause_s = pause_s, next_pause_s(pause_s, time.monotonic() - begin_s)
            if pause_s <= 2 * PAUSE_S_FIRST:
                log.warning("%s: starting another one", why)
            elif before_s < pause_s == PAUSE_S_MAX:
                log.warning("%s, like those before it: fetching without it for %g s", why, pause_s)
            self._ended.wait(pause_s)

    def _run_one(self) -> str:
        """Runs one process until it ends. Returns how it ended."""
        try:
            process = self._start()
        except OSError as error:
            return f"no data process can be started ({error})"
        return f"the data process {process.popen.pid} ended ({self._serve(process)})"

    def _start(self) -> _Process:
        process = _Process(self._settings)
        with self._lock:
            self._started = process
        if self._ended.is_set():  # nobody else would end it
            process.control.shutdown(socket.SHUT_RDWR)
        return process

    def _serve(self, process: _Process) -> int:
        """Lets the process take orders until it ends. Returns its exit status."""
        if not process.has_word(self._settings.start_s):
            process.kill("it does not start")
        elif process.listen() and not self._ended.is_set():
            with self._lock:
                self._process, self._idle = process, list(process.slots)
            while process.listen():
                pass
        with self._lock:
            idle, self._idle, self._process, self._started = self._idle, [], None, None
        for slot in idle:
            slot.sock.close()
        process.control.close()
        try:
            return process.reap(END_S)
        except subprocess.TimeoutExpired:
            process.kill("it does not end")
            return process.reap()


def slots_of(processes: int) -> int:
    """Returns the number of sockets and threads in each of ``processes`` processes."""
    return max(SLOTS_LEAST, SLOTS_MAX // max(processes, 1))


def descriptors(processes: int) -> int:
    """Returns how many descriptors a proxy needs for these processes: for each a control socket,
    those of the threads, and as many again while it starts."""
    return processes * 2 * (slots_of(processes) + 1)


def next_pause_s(pause_s: float, lived_s: float) -> float:
    """Returns the next pause, after one of ``pause_s`` and a process that lived for ``lived_s``."""
    return min(2 * pause_s, PAUSE_S_MAX) if lived_s < SOON_S else PAUSE_S_FIRST


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a data process: no credentials, and nothing from systemd for the
    proxy."""
    kept = python_process.environment(environ)
    return {name: value for name, value in kept.items() if not name.startswith(_SECRET)}
