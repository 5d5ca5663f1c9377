"""The nursery's process: one thread, everything loaded that a mount needs, a fork for each order.

``python -P -m mount.node.helper_process FD`` serves the socket FD. An order comes as one packet
with one descriptor (SCM_RIGHTS, unix(7)): the socket on which its child answers. The child's time
is limited by a timer of its own (SIGALRM), so that the limit holds without this process too.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

import msgspec

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.nodeapi.wire import Failure
from lodefs.mount.node import helper_requests
from lodefs.mount.node.helper_requests import Answer, Order
from lodefs.mount.shm.startup_state import Progress, Stage

CHILDREN_MAX = 32  # at work at a time; further orders wait
WAITING_MAX = 256  # further ones stay in the socket
CROWDED_PAUSE_S = 0.02  # while orders wait for children to give their answers
ORDER_BYTES_MAX = 65536
TAKE_BACK_TIMEOUT_S = 10.0
GRACE_S = 0.2  # for a child whose time is up to end
PAUSE_S_MAX = 3600.0  # poll(2) takes no more than 2^31 ms
_FD_MAX = 65536
# Whatever the owner does with these, here they end a process.
_DEFAULT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM)


class Ticket(msgspec.Struct, frozen=True):
    """An order, and until when it may be worked on (time.monotonic)."""

    order: Order
    deadline_s: float

    @property
    def place(self) -> str:
        """The directory that it is about."""
        order = self.order
        return order.options.mountpoint if isinstance(order, helper_requests.Mount) else order.place


@dataclass(frozen=True, slots=True)
class _Child:
    """``answer_fd``: where its owner listens. ``stage``: memory that it shares with us.
    ``verdict``: of one that takes back what another began, what its owner hears then."""

    pid: int
    ticket: Ticket
    answer_fd: int
    stage: Stage
    verdict: Answer | None = None


class ForkServer:
    """Serves ``control`` until the owner has closed its end. Children that are at work then go
    on."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, _Child] = {}  # by pidfd
        self._late: set[int] = set()  # of these, those whose owner was told so already
        self._waiting: list[tuple[Ticket, int]] = []  # orders, and where their owners listen
        self._poll = select.poll()
        self._listening = False

    def run(self) -> None:
        """Return when the owner has gone."""
        while True:
            self._listen()
            for fd, _ in self._poll.poll(self._pause_s() * 1000):
                if fd in self._children:
                    self._reap(fd)
                elif not self._take():
                    return
            self._tell_late()
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

    def _pause_s(self) -> float:
        """Until the next child ought to have ended, or an order that waits may be begun."""
        if self._waiting:
            return CROWDED_PAUSE_S
        ends_s = [c.ticket.deadline_s for fd, c in self._children.items() if fd not in self._late]
        left_s = min(ends_s, default=math.inf) + GRACE_S - time.monotonic()
        return min(max(left_s, 0), PAUSE_S_MAX)

    def _tell_late(self) -> None:
        """Not even its timer ends a child that the kernel does not let go."""
        hangs = _failed("the kernel hangs", "DeadlineExceeded")
        for fd, child in self._children.items():
            if fd not in self._late and time.monotonic() > child.ticket.deadline_s + GRACE_S:
                self._late.add(fd)
                _answer(child.answer_fd, child.verdict or hangs)

    def _take(self) -> bool:
        """Receive the next order; False where no more will come."""
        try:
            data, fds, _, _ = socket.recv_fds(self._control, ORDER_BYTES_MAX, 1)
        except OSError:
            return False
        if not data:
            return False
        for fd in fds[:1]:
            fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
            self._waiting.append((msgspec.msgpack.decode(data, type=Ticket), fd))
        return True

    def _start_waiting(self) -> None:
        """Begin the orders that can be begun now, and refuse those whose time is up.

        A child whose owner has an answer takes no room: it sees off others for a while, or the
        kernel does not let it go. Where a mount is being taken back, no other is made meanwhile.
        """
        at_work = sum(
            fd not in self._late and child.stage.progress != Progress.TOLD
            for fd, child in self._children.items()
        )
        left = {one.ticket.place for one in self._children.values() if one.verdict is not None}
        waiting, self._waiting = self._waiting, []
        for ticket, fd in waiting:
            is_barred = isinstance(ticket.order, helper_requests.Mount) and ticket.place in left
            if at_work < CHILDREN_MAX and not is_barred:
                self._start(ticket, fd)
                at_work += 1
            elif time.monotonic() < ticket.deadline_s:
                self._waiting.append((ticket, fd))
            else:
                why = (
                    "an earlier mount there is being taken back" if is_barred else "too much to do"
                )
                _answer(fd, _failed(f"not begun in time: {why}; try again", "DeadlineExceeded"))
                os.close(fd)

    def _start(self, ticket: Ticket, answer_fd: int, begun: _Child | None = None) -> None:
        """A child for an order, or one that takes back what another has ``begun``."""
        stage = Stage()
        try:
            pid = os.fork()
        except OSError as error:
            _answer(answer_fd, _failed(f"no process can be started: {error.strerror}"))
            os.close(answer_fd)
            return
        if not pid:
            if begun is None:
                _become(partial(_work, ticket, answer_fd, stage), keep=answer_fd)
            _become(partial(_take_back, ticket.order, begun.stage))
        child = _Child(pid, ticket, answer_fd, stage)
        if begun is not None:
            child = replace(child, verdict=begun.verdict)
        pid_fd = os.pidfd_open(pid)
        self._children[pid_fd] = child
        self._poll.register(pid_fd, select.POLLIN)

    def _reap(self, pid_fd: int) -> None:
        """A child has ended: where it gave no answer, say so, when what it began is undone."""
        self._poll.unregister(pid_fd)
        os.close(pid_fd)
        self._late.discard(pid_fd)
        child = self._children.pop(pid_fd)
        code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        verdict = child.verdict
        if code and verdict is None:
            late = code == -signal.SIGALRM
            text = "not done in time" if late else f"its process ended with status {code}"
            verdict = _failed(text, "DeadlineExceeded" if late else "Unavailable")
            if child.stage.progress == Progress.MAKING:
                self._start(child.ticket, child.answer_fd, replace(child, verdict=verdict))
                return
        if verdict is not None:
            _answer(child.answer_fd, verdict)
        os.close(child.answer_fd)


def _failed(text: str, error: str = "Unavailable") -> Answer:
    return Answer(Failure(error, text))


def _answer(fd: int, answer: Answer) -> bool:
    """Whether somebody could be told."""
    with socket.socket(fileno=os.dup(fd)) as channel:
        try:
            channel.send(msgspec.msgpack.encode(answer), socket.MSG_DONTWAIT)
        except OSError:
            return False
    return True


def _work(ticket: Ticket, answer_fd: int, stage: Stage) -> None:
    """What a child does."""
    left_s = ticket.deadline_s - time.monotonic()
    if left_s <= 0:
        _answer(answer_fd, _failed("not begun in time", "DeadlineExceeded"))
        return
    signal.setitimer(signal.ITIMER_REAL, left_s)
    try:
        answer, afterwards = helper_requests.perform(ticket.order, stage)
    except LodefsError as error:
        answer, afterwards = _failed(str(error), type(error).__name__), None
    except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
        answer, afterwards = _failed(f"{type(error).__name__}: {error}"), None
    signal.setitimer(signal.ITIMER_REAL, 0)  # from here on it counts as done
    if _answer(answer_fd, answer):
        stage.progress = Progress.TOLD
    elif stage.progress == Progress.MAKING:
        helper_requests.take_back(ticket.order, stage)
    os.close(answer_fd)
    if afterwards is not None:
        afterwards()


def _take_back(order: Order, stage: Stage) -> None:
    signal.setitimer(signal.ITIMER_REAL, TAKE_BACK_TIMEOUT_S)
    helper_requests.take_back(order, stage)


def _become(main: Callable[[], None], *, keep: int = -1) -> NoReturn:
    """In a new child: run ``main`` with no descriptor but ``keep`` and the standard ones."""
    status = 1
    try:
        if keep < 0:
            os.closerange(3, _FD_MAX)
        else:
            os.closerange(3, keep)
            os.closerange(keep + 1, _FD_MAX)
        main()
        status = 0
    except BaseException as error:  # noqa: BLE001 - no child may go on as its parent
        sys.stderr.write(f"lodefs mount nursery[{os.getpid()}]: {type(error).__name__}: {error}\n")
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
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _load()
    gc.collect()
    gc.freeze()  # children need no copies of what is theirs only to be read
    ForkServer(socket.socket(fileno=int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
