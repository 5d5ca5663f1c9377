"""The mount helper: one thread, with all loaded that a mount needs, and a fork for each order.

``main``, with the argument FD, serves the socket FD. An order is one packet with one descriptor
(SCM_RIGHTS, unix(7)): the socket on which its child answers. The child's own timer (SIGALRM) limits
its time, so that the limit holds without this process. A child that mounts becomes the mount
process: once the requester has acknowledged the mount, this process no longer deals with it.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import msgspec

from lodefs.chunkstore.errors import DeadlineExceeded
from lodefs.chunkstore.format.decoding import msgpack_decoder
from lodefs.chunkstore.nodecache import cached_snapshot
from lodefs.chunkstore.protocol import rpc
from lodefs.chunkstore.protocol.wire import Failure
from lodefs.chunkstore.system import processes
from lodefs.mount.helper import helper_requests
from lodefs.mount.helper.helper_requests import Operation
from lodefs.mount.mount_spec import MountRequest, Reply, TakeOver
from lodefs.mount.process import spawn, startup
from lodefs.mount.process.startup import Requester

CHILDREN_MAX = 32  # at work at once; further orders wait
WAITING_MAX = 256  # waiting orders; further ones stay in the socket
CROWDED_PAUSE_S = 0.02  # between looks while orders wait for children
CLEAN_UP_TIMEOUT_S = 10.0
GRACE_S = 0.2  # for a child to answer after its time limit
KILL_S = 2.0  # for it to undo its work and end
PAUSE_S_MAX = 3600.0  # poll(2) takes no more than 2^31 ms
# Whatever the owner does with these signals, here they end a process.
_DEFAULT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)


class HelperRequest(msgspec.Struct, frozen=True):
    """An order, and the time until which it may run (time.monotonic)."""

    operation: Operation
    deadline_s: float

    @property
    def place(self) -> str:
        """The directory of the order."""
        operation = self.operation
        if isinstance(operation, MountRequest):
            return operation.options.mountpoint
        return operation.mountpoint if isinstance(operation, TakeOver) else operation.place


@dataclass(frozen=True, slots=True)
class _Child:
    """A process at work. ``answer_fd``: its requester's socket; ``done_fd``: an eventfd that
    becomes readable when the requester has its answer. ``verdict``: for a child that cleans up
    after another, the answer that the requester gets at the end."""

    pid_fd: int
    request: HelperRequest
    answer_fd: int
    done_fd: int
    verdict: Reply | None = None

    def close(self) -> None:
        """Forgets it: it has ended, or need not be watched any more."""
        for fd in (self.pid_fd, self.answer_fd, self.done_fd):
            os.close(fd)


class HelperProcess:
    """Serves ``control`` until the owner has closed its end. Children at work then continue."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, _Child] = {}  # by pidfd and by done_fd
        self._late: set[int] = set()  # pidfds of children whose requester knows that they are late
        self._waiting: list[tuple[HelperRequest, int]] = []  # orders, and their requesters' sockets
        self._poll = select.poll()
        self._listening = False

    def run(self) -> None:
        """Returns when the owner has gone."""
        while True:
            self._listen()
            for fd, _ in self._poll.poll(self._pause_s() * 1000):
                child = self._children.get(fd)
                if child is not None:
                    self._finish(child, ended=fd == child.pid_fd)
                elif fd == self._control.fileno() and not self._take():
                    return
            self._end_late()
            self._start_waiting()

    def _listen(self) -> None:
        """Accepts new orders, if there is room for them."""
        wanted = len(self._waiting) < WAITING_MAX
        if wanted != self._listening:
            self._listening = wanted
            if wanted:
                self._poll.register(self._control, select.POLLIN)
            else:
                self._poll.unregister(self._control)

    def _at_work(self) -> list[_Child]:
        return [child for fd, child in self._children.items() if fd == child.pid_fd]

    def _pause_s(self) -> float:
        """Returns the time until the next child should have ended, or a waiting order may begin."""
        if self._waiting:
            return CROWDED_PAUSE_S
        ends_s = [
            child.request.deadline_s + (KILL_S if child.pid_fd in self._late else GRACE_S)
            for child in self._at_work()
        ]
        left_s = min(ends_s, default=math.inf) - time.monotonic()
        return min(max(left_s, CROWDED_PAUSE_S), PAUSE_S_MAX)

    def _end_late(self) -> None:
        """Handles children that should have ended, but are stopped, or held by the kernel: tells
        their requesters, and kills them."""
        hangs = _failed(
            "not done in time: the order is being undone, or the kernel hangs", "DeadlineExceeded"
        )
        for child in self._at_work():
            late_s = time.monotonic() - child.request.deadline_s
            if late_s > GRACE_S and child.pid_fd not in self._late:
                self._late.add(child.pid_fd)
                _answer(child.answer_fd, child.verdict or hangs)
            if late_s > KILL_S and child.verdict is None:
                processes.send(child.pid_fd)

    def _take(self) -> bool:
        """Receives the next order; False if no more will come."""
        try:
            data, fds = rpc.receive(self._control, fds_max=1)
        except ConnectionError:
            return False
        except OSError:
            return True  # no descriptors are left: its requester sees the end of its socket
        self._waiting += [(msgpack_decoder(HelperRequest).decode(data), fd) for fd in fds]
        return True

    def _start_waiting(self) -> None:
        """Begins the orders that can begin now, and refuses those whose time is up.

        While an earlier mount on the same directory is being undone, no other begins there.
        """
        at_work = len(self._at_work()) - len(self._late)
        undone = {child.request.place for child in self._at_work() if self._is_undone(child)}
        waiting, self._waiting = self._waiting, []
        for request, fd in waiting:
            is_barred = isinstance(request.operation, MountRequest) and request.place in undone
            if at_work < CHILDREN_MAX and not is_barred:
                self._start(request, fd)
                at_work += 1
            elif time.monotonic() < request.deadline_s:
                self._waiting.append((request, fd))
            else:
                why = (
                    "an earlier mount there is being undone"
                    if is_barred
                    else "too much is under way"
                )
                _answer(fd, _failed(f"not begun in time: {why}; try again", "DeadlineExceeded"))
                os.close(fd)

    def _is_undone(self, child: _Child) -> bool:
        is_mount = isinstance(child.request.operation, MountRequest)
        return child.verdict is not None or (
            is_mount and time.monotonic() > child.request.deadline_s
        )

    def _start(self, request: HelperRequest, answer_fd: int, verdict: Reply | None = None) -> None:
        """Starts a child for an order, or one that cleans up after another, whose failure is
        ``verdict``."""
        done_fd = startup.new_done_fd()
        pid = 0
        try:
            with _gate() as await_watcher:
                pid = os.fork()
                if not pid:
                    await_watcher()
                    if verdict is None:
                        _become(partial(_work, request, answer_fd, done_fd), answer_fd, done_fd)
                    _become(partial(_clean_up, request.place))
                pid_fd = os.pidfd_open(pid)
        except OSError as error:
            if pid:  # nobody could watch the child
                os.kill(pid, signal.SIGKILL)
            why = _failed(f"no process can be started: {error.strerror}")
            _answer(answer_fd, verdict or why)
            os.close(answer_fd)
            os.close(done_fd)
            return
        child = _Child(pid_fd, request, answer_fd, done_fd, verdict)
        for fd in (pid_fd, done_fd):
            self._children[fd] = child
            self._poll.register(fd, select.POLLIN)

    def _finish(self, child: _Child, *, ended: bool) -> None:
        """Handles a child that has answered or ended. Without an answer the requester is told, once
        whatever the child may have mounted is removed."""
        for fd in (child.pid_fd, child.done_fd):
            self._poll.unregister(fd)
            del self._children[fd]
        self._late.discard(child.pid_fd)
        if child.verdict is not None:
            _answer(child.answer_fd, child.verdict)
        elif ended and not startup.is_done(child.done_fd):
            late = time.monotonic() >= child.request.deadline_s
            text = "not done in time" if late else "its process ended without an answer"
            verdict = _failed(text, "DeadlineExceeded" if late else "Unavailable")
            if isinstance(child.request.operation, MountRequest):
                self._start(child.request, os.dup(child.answer_fd), verdict)
            else:
                _answer(child.answer_fd, verdict)
        child.close()


@contextlib.contextmanager
def _gate() -> Iterator[Callable[[], None]]:
    """Yields a function that a child forked within the block calls first: it waits until its parent
    has left the block, or has ended. Ended children are reaped at once, and then could not be
    watched."""
    waiting, parents = os.pipe2(os.O_CLOEXEC)

    def wait() -> None:
        os.close(parents)
        os.read(waiting, 1)

    try:
        yield wait
    finally:
        os.close(waiting)
        os.close(parents)


def _failed(text: str, error: str = "Unavailable") -> Reply:
    return Reply(failure=Failure(error, text))


def _answer(fd: int, reply: Reply) -> None:
    with socket.socket(fileno=os.dup(fd)) as channel, contextlib.suppress(OSError):
        rpc.send(channel, reply, flags=socket.MSG_DONTWAIT)


def _work(request: HelperRequest, answer_fd: int, done_fd: int) -> None:
    """Does the work of a child; one that mounts becomes the mount process."""
    requester = Requester(socket.socket(fileno=answer_fd), done_fd)
    try:
        left_s = request.deadline_s - time.monotonic()
        if left_s <= 0:
            raise DeadlineExceeded("not begun in time")
        helper_requests.perform(request.operation, requester, left_s)
    except Exception as error:  # noqa: BLE001 - the requester must get any error
        requester.fail(error)


def _clean_up(place: str) -> None:
    """Removes, in limited time, what a killed mount process has left."""
    signal.setitimer(signal.ITIMER_REAL, CLEAN_UP_TIMEOUT_S)
    spawn.detach_killed(place)


def _become(main: Callable[[], None], *keep: int) -> NoReturn:
    """In a new child: runs ``main`` with no descriptors but ``keep`` and the standard ones."""
    status = 1
    try:
        spawn.detach_from_parent(*keep)
        main()
        status = 0
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else 1
    except BaseException as error:  # noqa: BLE001 - no child may continue as its parent
        sys.stderr.write(f"lodefs mount helper[{os.getpid()}]: {type(error).__name__}: {error}\n")
        sys.stderr.flush()
    finally:
        os._exit(status)


def _load() -> None:
    """Loads what each child would load otherwise: to mount, and in workers to read the cache."""
    import ctypes  # noqa: F401

    with contextlib.suppress(ImportError):
        cached_snapshot.load()


def main() -> None:
    """Runs the process as a program."""
    for number in _DEFAULT:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended mounts leave no zombies
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _load()
    gc.collect()
    gc.freeze()  # keeps memory that children only read shared with them
    HelperProcess(socket.socket(fileno=int(sys.argv[1]))).run()
