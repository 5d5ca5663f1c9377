"""Mounting and unmounting for a program with threads, which cannot fork: a process that can.

The nursery (mount.forkserver) has loaded all that a mount needs, so that one costs no start of a
Python; it is started anew should it die. It is a program of its own and no fork of this one, since
libraries of this one may have left something to be done at forks (libuv closes descriptors there).
Each order is done by a child of the nursery within a time limit, so that a kernel that hangs never
holds up this program. Mounts outlive both.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from types import TracebackType

import msgspec

from chunkstore.errors import DeadlineExceeded, Unavailable
from chunkstore.wire import error_of
from mount import starting
from mount.forkserver import Ticket
from mount.orders import Answer, Order

ANSWER_BYTES_MAX = 65536
MARGIN_S = 1.0  # for an answer to come after the time limit, before the nursery counts as hanging
SEND_TIMEOUT_S = 1.0  # for room among the orders that wait
END_TIMEOUT_S = 5.0


class _Process:
    """A nursery that runs: ``control`` is our end of its socket."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.pid = starting.spawn("mount.forkserver", theirs.fileno())
        self.pid_fd = os.pidfd_open(self.pid)
        self.control.settimeout(SEND_TIMEOUT_S)

    def end(self, timeout_s: float) -> None:
        """Let it end, or end it."""
        self.control.close()
        if not select.select([self.pid_fd], [], [], timeout_s)[0]:
            signal.pidfd_send_signal(self.pid_fd, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        os.close(self.pid_fd)


class Nursery:
    """For any thread. Started at once, so that it is ready when the first order comes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._process: _Process | None = _Process()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Its process now; 0 where it is to be started anew."""
        process = self._process
        return process.pid if process is not None else 0

    def close(self) -> None:
        """End it; orders that are at work end by themselves, and mounts stay."""
        with self._lock:
            self._closed = True
            process, self._process = self._process, None
        if process is not None:
            process.end(END_TIMEOUT_S)

    def run(self, order: Order, timeout_s: float) -> Answer:
        """Have an order done. Its errors; DeadlineExceeded; Unavailable where that fails twice."""
        ticket = Ticket(order, time.monotonic() + timeout_s)
        answer = self._try(ticket) or self._try(ticket)
        if answer is None:
            raise Unavailable("the process that mounts was killed; try again")
        if answer.failure is not None:
            raise error_of(answer.failure)
        return answer

    def _try(self, ticket: Ticket) -> Answer | None:
        """None where the order was lost, with the nursery or with its child."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                process = self._send(msgspec.msgpack.encode(ticket), theirs.fileno())
            ours.settimeout(max(ticket.deadline_s - time.monotonic(), 0) + MARGIN_S)
            try:
                data = ours.recv(ANSWER_BYTES_MAX)
            except TimeoutError as error:
                self._drop(process)  # it did not even say that the time is up
                raise DeadlineExceeded("not done in time: the process that mounts hangs") from error
        return msgspec.msgpack.decode(data, type=Answer) if data else None

    def _send(self, data: bytes, fd: int) -> _Process:
        """Give an order to the nursery, to a new one where it is gone. Unavailable."""
        for _ in range(2):
            with self._lock:
                if self._closed:
                    break
                process = self._process = self._process or _Process()
                try:
                    socket.send_fds(process.control, [data], [fd])
                    return process
                except TimeoutError as error:
                    raise Unavailable("too much is being mounted now; try again") from error
                except OSError:
                    self._process = None
            process.end(0)
        raise Unavailable("the process that mounts does not run; try again")

    def _drop(self, process: _Process) -> None:
        with self._lock:
            if self._process is not process:
                return
            self._process = None
        process.end(0)
