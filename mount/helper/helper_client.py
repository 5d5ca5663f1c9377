"""Mounts and unmounts for a program with threads, which cannot fork, by a process that can.

The mount helper (``helper_process``) has loaded all that a mount needs, so that a mount starts no
Python; if it dies, it is started again. It is a separate program and no fork of this one, since
libraries may have left handlers for forks (libuv closes descriptors there). A child of the mount
helper does each order within a time limit, so that a hanging kernel never blocks this program.
Mounts outlive both.
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

MARGIN_S = 1.0  # for an answer after the time limit, before the mount helper counts as hanging
END_TIMEOUT_S = 5.0


class _Process:
    """A running mount helper; ``control``: our end of its socket. Raises: Unavailable if it cannot
    be started."""

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
            raise Unavailable(f"the mount helper cannot be started: {error}") from error
        self.control = ours
        self.control.settimeout(0)

    def end(self, timeout_s: float) -> None:
        """Lets it end, and kills it if it does not."""
        self.control.close()
        if not processes.is_over(self.pid_fd, timeout_s):
            processes.send(self.pid_fd)
        processes.reap(self.pid)
        os.close(self.pid_fd)


class MountHelper:
    """Runs orders for any thread. Starts at once, so that it is ready for the first order."""

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
        """The helper's present process; 0 if it must be started again."""
        process = self._process
        return process.pid if process is not None else 0

    def close(self) -> None:
        """Ends the helper. Orders under way end by themselves, and mounts stay."""
        with self._lock:
            self._closed = True
            process, self._process = self._process, None
        if process is not None:
            process.end(END_TIMEOUT_S)

    def run(self, operation: Operation, timeout_s: float) -> Reply:
        """Runs an order. Raises its errors; DeadlineExceeded; Unavailable if that fails twice."""
        request = HelperRequest(operation, time.monotonic() + timeout_s)
        answer = self._try(request) or self._try(request)
        if answer is None:
            raise Unavailable("the mount helper was killed; try again")
        if answer.failure is not None:
            raise error_of(answer.failure)
        return answer

    def _try(self, request: HelperRequest) -> Reply | None:
        """Returns the result; None if the order was lost with the mount helper or its child."""
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise Unavailable(f"cannot send an order to the mount helper: {error}") from error
        with ours:
            with theirs:
                process = self._send(request, theirs.fileno())
            ours.settimeout(_left_s(request) + MARGIN_S)
            try:
                reply = msgpack_decoder(Reply).decode(rpc.receive(ours).data)
            except TimeoutError as error:
                self._drop(process)  # it did not even report the time-out
                raise DeadlineExceeded("not done in time: the mount helper hangs") from error
            except ConnectionError:
                return None
            if reply.failure is None:
                _acknowledge(request, ours)
        return reply

    def _send(self, request: HelperRequest, fd: int) -> _Process:
        """Sends an order to the mount helper, which is started again if needed. Raises:
        Unavailable, DeadlineExceeded."""
        for _ in range(2):
            process, control = self._reach(request)
            with control:
                try:
                    _send_in_time(control, fd, request)
                    return process
                except OSError:
                    self._drop(process)
        raise Unavailable("the mount helper does not run; try again")

    def _reach(self, request: HelperRequest) -> tuple[_Process, socket.socket]:
        """Returns the mount helper, and a socket to it that stays open even if another thread ends
        it."""
        if not self._lock.acquire(timeout=_left_s(request)):
            raise DeadlineExceeded("not begun in time: the mount helper is being started")
        try:
            if self._closed:
                raise Unavailable("the mount helper does not run; try again")
            process = self._process = self._process or _Process()
            return process, process.control.dup()
        except OSError as error:
            raise Unavailable(f"cannot send an order to the mount helper: {error}") from error
        finally:
            self._lock.release()

    def _drop(self, process: _Process) -> None:
        with self._lock:
            if self._process is not process:
                return
            self._process = None
        process.end(0)


def _acknowledge(request: HelperRequest, channel: socket.socket) -> None:
    """Acknowledges in time a mount that is ready, so that it stays; other orders need nothing."""
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
    """Raises: OSError if the helper is gone; DeadlineExceeded if it accepts no order in time."""
    control.settimeout(max(_left_s(request), 0.001))
    try:
        rpc.send(control, request, [fd])
    except TimeoutError as error:
        raise DeadlineExceeded(
            "not begun in time: too many mounts are being made; try again"
        ) from error


def _left_s(request: HelperRequest) -> float:
    return max(request.deadline_s - time.monotonic(), 0)
