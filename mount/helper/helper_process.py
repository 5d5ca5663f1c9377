"""The mount helper: one thread, everything loaded that a mount needs, a fork for each order.

``main``, with FD as argument, serves the socket FD. An order comes as one packet
with one descriptor (SCM_RIGHTS, unix(7)): the socket on which its child answers. The child's time
is limited by a timer of its own (SIGALRM), so that the limit holds without this process too. A
child that mounts becomes the mount process: once the requester has acknowledged the mount, this
process has nothing to do with it any more.
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
from lodefs.chunkstore.protocol import rpc
from lodefs.chunkstore.protocol.wire import Failure
from lodefs.chunkstore.system import processes
from lodefs.mount.helper import helper_requests
from lodefs.mount.helper.helper_requests import Operation
from lodefs.mount.mount_spec import MountRequest, Reply, TakeOver
from lodefs.mount.process import spawn, startup
from lodefs.mount.process.startup import Requester

CHILDREN_MAX = 32  # at work at a time; further orders wait
WAITING_MAX = 256  # further ones stay in the socket
CROWDED_PAUSE_S = 0.02  # while orders wait for children to give their answers
CLEAN_UP_TIMEOUT_S = 10.0
GRACE_S = 0.2  # for a child whose time is up to answer
KILL_S = 2.0  # for it to undo what it did and to end
PAUSE_S_MAX = 3600.0  # poll(2) takes no more than 2^31 ms
# Whatever the owner does with these, here they end a process.
_DEFAULT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)


class HelperRequest(msgspec.Struct, frozen=True):
    """An order, and until when it may be worked on (time.monotonic)."""

    operation: Operation
    deadline_s: float

    @property
    def place(self) -> str:
        """The directory that it is about."""
        operation = self.operation
        if isinstance(operation, MountRequest):
            return operation.options.mountpoint
        return operation.mountpoint if isinstance(operation, TakeOver) else operation.place


@dataclass(frozen=True, slots=True)
class _Child:
    """A process at work. ``answer_fd``: its requester's socket; ``done_fd``: an eventfd that gets
    readable when the requester has its answer. ``verdict``: of one that cleans up after another,
    what the requester hears then."""

    pid_fd: int
    request: HelperRequest
    answer_fd: int
    done_fd: int
    verdict: Reply | None = None

    def close(self) -> None:
        """Forget it: it has ended, or needs no watching any more."""
        for fd in (self.pid_fd, self.answer_fd, self.done_fd):
            os.close(fd)


class HelperProcess:
    """Serves ``control`` until the owner has closed its end. Children that are at work then go
    on."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, _Child] = {}  # by pidfd and by done_fd
        self._late: set[int] = set()  # pidfds of those whose requester was told so already
        self._waiting: list[tuple[HelperRequest, int]] = []  # orders, and their requesters' sockets
        self._poll = select.poll()
        self._listening = False

    def run(self) -> None:
        """Return when the owner has gone."""
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
        """Hear of new orders, where there is room for them."""
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
        """Until the next child ought to have ended, or an order that waits may be begun."""
        if self._waiting:
            return CROWDED_PAUSE_S
        ends_s = [
            child.request.deadline_s + (KILL_S if child.pid_fd in self._late else GRACE_S)
            for child in self._at_work()
        ]
        left_s = min(ends_s, default=math.inf) - time.monotonic()
        return min(max(left_s, CROWDED_PAUSE_S), PAUSE_S_MAX)

    def _end_late(self) -> None:
        """Children whose time is up have ended by now, unless they are stopped, or the kernel does
        not let them go: their requesters are told, and they are killed."""
        hangs = _failed(
            "not done in time: it is being undone, or the kernel hangs", "DeadlineExceeded"
        )
        for child in self._at_work():
            late_s = time.monotonic() - child.request.deadline_s
            if late_s > GRACE_S and child.pid_fd not in self._late:
                self._late.add(child.pid_fd)
                _answer(child.answer_fd, child.verdict or hangs)
            if late_s > KILL_S and child.verdict is None:
                processes.send(child.pid_fd)

    def _take(self) -> bool:
        """Receive the next order; False where no more will come."""
        try:
            data, fds = rpc.receive(self._control, fds_max=1)
        except ConnectionError:
            return False
        except OSError:
            return True  # no more descriptors: its requester sees the end of its socket
        self._waiting += [(msgpack_decoder(HelperRequest).decode(data), fd) for fd in fds]
        return True

    def _start_waiting(self) -> None:
        """Begin the orders that can be begun now, and refuse those whose time is up.

        While an earlier mount on the same directory is being undone, no other is made there.
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
                    "an earlier mount there is being taken back" if is_barred else "too much to do"
                )
                _answer(fd, _failed(f"not begun in time: {why}; try again", "DeadlineExceeded"))
                os.close(fd)

    def _is_undone(self, child: _Child) -> bool:
        is_mount = isinstance(child.request.operation, MountRequest)
        return child.verdict is not None or (
            is_mount and time.monotonic() > child.request.deadline_s
        )

    def _start(self, request: HelperRequest, answer_fd: int, verdict: Reply | None = None) -> None:
        """A child for an order, or one that cleans up after another, of which ``verdict`` says how
        it failed."""
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
            if pid:  # nobody could watch it
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
        """A child has answered, or has ended: without an answer the requester is told so, when
        what the child may have mounted is away."""
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
    """What a child calls that is forked in the block: it waits until its parent leaves the block,
    or has ended. Ended children are reaped at once, and then nobody could watch them any more."""
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
    """What a child does; one that mounts becomes the mount process."""
    requester = Requester(socket.socket(fileno=answer_fd), done_fd)
    try:
        left_s = request.deadline_s - time.monotonic()
        if left_s <= 0:
            raise DeadlineExceeded("not begun in time")
        helper_requests.perform(request.operation, requester, left_s)
    except Exception as error:  # noqa: BLE001 - whatever it was, the requester must hear of it
        requester.fail(error)


def _clean_up(place: str) -> None:
    """Take away what a mount process left that was killed, in limited time."""
    signal.setitimer(signal.ITIMER_REAL, CLEAN_UP_TIMEOUT_S)
    spawn.detach_killed(place)


def _become(main: Callable[[], None], *keep: int) -> NoReturn:
    """In a new child: run ``main`` with no descriptors but ``keep`` and the standard ones."""
    status = 1
    try:
        spawn.detach_from_parent(*keep)
        main()
        status = 0
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else 1
    except BaseException as error:  # noqa: BLE001 - no child may go on as its parent
        sys.stderr.write(f"lodefs mount helper[{os.getpid()}]: {type(error).__name__}: {error}\n")
        sys.stderr.flush()
    finally:
        os._exit(status)


def _load() -> None:
    """What children would load else, each of them: to mount, and in workers to read the cache."""
    import ctypes  # noqa: F401

    with contextlib.suppress(ImportError):
        import lodefs.chunkstore.nodecache.view  # noqa: F401


def main() -> None:
    """The process as a program."""
    for number in _DEFAULT:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended mounts leave no zombies
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _load()
    gc.collect()
    gc.freeze()  # children need no copies of what is theirs only to be read
    HelperProcess(socket.socket(fileno=int(sys.argv[1]))).run()
