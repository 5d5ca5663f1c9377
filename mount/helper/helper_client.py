"""Mounting and unmounting for a program with threads, which cannot fork: a process that can.

The mount helper (``helper_process``) has loaded all that a mount needs, so that one costs no start
of a Python; it is started anew should it die. It is a program of its own and no fork of this
one, since libraries of this one may have left something to be done at forks (libuv closes
descriptors there). Each order is done by a child of the mount helper within a time limit, so that a
kernel that hangs never holds up this program. Mounts outlive both.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

from lodefs.chunkstore.errors import DeadlineExceeded, Unavailable
from lodefs.chunkstore.format.decoding import msgpack_decoder
from lodefs.chunkstore.protocol import rpc
from lodefs.chunkstore.protocol.wire import error_of
from lodefs.chunkstore.system import processes
from lodefs.mount.helper.helper_process import HelperRequest
from lodefs.mount.helper.helper_requests import Operation
from lodefs.mount.mount_spec import MountRequest, Reply
from lodefs.mount.process import spawn, startup

MARGIN_S = (
    1.0  # for an answer to come after the time limit, before the mount helper counts as hanging
)
END_TIMEOUT_S = 5.0


class _Process:
    """A mount helper that runs: ``control`` is our end of its socket. Unavailable where none can be
    started."""

    def __init__(self) -> None:
        ours: socket.socket | None = None
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self.pid = spawn.spawn("lodefs.mount.helper.helper_process", theirs.fileno())
            self.pid_fd = processes.watch(self.pid)
        except OSError as error:
            if ours is not None:
                ours.close()
            raise Unavailable(f"no process that mounts can be started: {error}") from error
        self.control = ours
        self.control.settimeout(0)

    def end(self, timeout_s: float) -> None:
        """Let it end, or end it."""
        self.control.close()
        if not processes.is_over(self.pid_fd, timeout_s):
            processes.send(self.pid_fd)
        processes.reap(self.pid)
        os.close(self.pid_fd)


class MountHelper:
    """For any thread. Started at once, so that it is ready when the first order comes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._process: _Process | None = _Process()

    def __enter__(self) -> MountHelper:
        return self

    def __exit__(self, *_: object) -> None:
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

    def run(self, operation: Operation, timeout_s: float) -> Reply:
        """Have an order done. Its errors; DeadlineExceeded; Unavailable where that fails twice."""
        request = HelperRequest(operation, time.monotonic() + timeout_s)
        answer = self._try(request) or self._try(request)
        if answer is None:
            raise Unavailable("the process that mounts was killed; try again")
        if answer.failure is not None:
            raise error_of(answer.failure)
        return answer

    def _try(self, request: HelperRequest) -> Reply | None:
        """None where the order was lost, with the mount helper or with its child."""
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise Unavailable(f"no order to mount can be given: {error}") from error
        with ours:
            with theirs:
                process = self._send(request, theirs.fileno())
            ours.settimeout(_left_s(request) + MARGIN_S)
            try:
                reply = msgpack_decoder(Reply).decode(rpc.receive(ours).data)
            except TimeoutError as error:
                self._drop(process)  # it did not even say that the time is up
                raise DeadlineExceeded("not done in time: the process that mounts hangs") from error
            except ConnectionError:
                return None
            if reply.failure is None:
                _acknowledge(request, ours)
        return reply

    def _send(self, request: HelperRequest, fd: int) -> _Process:
        """Give an order to the mount helper, to a new one where it is gone. Unavailable,
        DeadlineExceeded."""
        for _ in range(2):
            process, control = self._reach(request)
            with control:
                try:
                    _send_in_time(control, fd, request)
                    return process
                except OSError:
                    self._drop(process)
        raise Unavailable("the process that mounts does not run; try again")

    def _reach(self, request: HelperRequest) -> tuple[_Process, socket.socket]:
        """The mount helper, and a socket to it that stays open when another thread ends it."""
        if not self._lock.acquire(timeout=_left_s(request)):
            raise DeadlineExceeded("not begun in time: the process that mounts is being started")
        try:
            if self._closed:
                raise Unavailable("the process that mounts does not run; try again")
            process = self._process = self._process or _Process()
            return process, process.control.dup()
        except OSError as error:
            raise Unavailable(f"no order to mount can be given: {error}") from error
        finally:
            self._lock.release()

    def _drop(self, process: _Process) -> None:
        with self._lock:
            if self._process is not process:
                return
            self._process = None
        process.end(0)


def _acknowledge(request: HelperRequest, channel: socket.socket) -> None:
    """A mount that is ready stays when it is acknowledged in time; other orders need nothing."""
    if not isinstance(request.operation, MountRequest):
        return
    channel.settimeout(_left_s(request) + MARGIN_S)
    with contextlib.suppress(TimeoutError):
        if startup.acknowledge(channel):
            return
    if startup.withdraw(channel):
        return
    if not _left_s(request):
        raise DeadlineExceeded("not done in time")
    raise Unavailable("the mount's process was killed; try again")


def _send_in_time(control: socket.socket, fd: int, request: HelperRequest) -> None:
    """OSError where the mount helper is gone; DeadlineExceeded where it takes no order in time."""
    control.settimeout(max(_left_s(request), 0.001))
    try:
        rpc.send(control, request, [fd])
    except TimeoutError as error:
        raise DeadlineExceeded(
            "not begun in time: too much is being mounted now; try again"
        ) from error


def _left_s(request: HelperRequest) -> float:
    return max(request.deadline_s - time.monotonic(), 0)
