"""A worker: threads of one process that answer the requests of one device descriptor.

One thread leads: it alone waits on the device, and answers what it reads. Before it waits for
something slow, such as a chunk that is not on the node, it passes the lead on, so that a cold read
blocks neither hits nor lookups (mount/fs/device_lead.py). While nothing is slow, only one thread
runs, and threads do not compete for the interpreter's lock. (Leader/followers: Schmidt et al., PLoP
2000.) A thread that passes the lead on for the first time starts the next thread. So there always
is one that can take the lead, and a mount that never waits has only one. A worker knows nothing
that another one could not ask the proxy for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Lock, Thread
from typing import Protocol

from lodefs.chunkstore.errors import NotFound, Unavailable
from lodefs.chunkstore.protocol.read_client import WaitTimes
from lodefs.mount.fs.device_lead import BeforeBlocking, CurrentRequest, DeviceTurn, DiskWatch
from lodefs.mount.fs.dispatch import Answer, Dispatcher, SlowError
from lodefs.mount.fs.filesystem import LARGE, FileSystem, Reader
from lodefs.mount.fs.pending_requests import PendingRequests
from lodefs.mount.kernel import device, fuse_abi
from lodefs.mount.kernel.session import Session
from lodefs.mount.shm.request_trace import TraceWriter
from lodefs.mount.shm.traffic_counters import RowCounter, uncounted

FAILURES_PER_S = 1.0  # limit for lines in the log
FAILURES_BURST = 10.0
EPOCH_PAUSE_S = 10.0
PATIENCE_S = 0.05  # how long other workers may take a request first


class Marks(Protocol):
    """The time since which each thread has been busy (time.monotonic), 0.0 for one that waits."""

    def __setitem__(self, index: int, value: float, /) -> None: ...


class Failures:
    """Logs failed requests, but only a few per second."""

    def __init__(self, log: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._tokens = FAILURES_BURST
        self._last_s = clock()
        self._dropped = 0

    def __call__(self, what: str, error: Exception) -> None:
        """Logs a failed request."""
        now_s = self._clock()
        self._tokens = min(FAILURES_BURST, self._tokens + (now_s - self._last_s) * FAILURES_PER_S)
        self._last_s = now_s
        if self._tokens < 1:
            self._dropped += 1
            return
        self._tokens -= 1
        more = f" (and {self._dropped} more failures)" if self._dropped else ""
        self._dropped = 0
        self._log(f"{what}: {type(error).__name__}: {error}{more}")


class Renewal:
    """Tells the kernel to look all names up again, if it holds nodes that the proxy does not know.

    That happens when the proxy lost its cache while a mount went on. Acts at most once in
    EPOCH_PAUSE_S.
    """

    def __init__(self, fd: int, session: Session, clock: Callable[[], float]) -> None:
        self._fd = fd
        self._able = session.epochs
        self._clock = clock
        self._last_s = -EPOCH_PAUSE_S

    def __call__(self) -> None:
        """Tells the kernel, unless that was done recently."""
        now_s = self._clock()
        if self._able and now_s - self._last_s >= EPOCH_PAUSE_S:
            self._last_s = now_s
            device.notify(self._fd, fuse_abi.NOTIFY_INC_EPOCH)


class ThreadReader(Reader, Protocol):
    """A reader of one thread, with a time limit for each request."""

    @property
    def waited(self) -> WaitTimes:
        """The waits of the current request so far."""
        ...

    def begin(self, waited_s: float = 0.0) -> None:
        """Starts the time of the next request now, or ``waited_s`` ago."""
        ...

    def cancel(self) -> None:
        """Says, from another thread, that nobody waits for the request any more."""
        ...


ReaderFactory = Callable[[BeforeBlocking], tuple[ThreadReader, FileSystem]]


@dataclass(kw_only=True, slots=True)
class Worker:
    """The threads of one worker, with the state that they share. They serve until the connection
    ends; then ``ended`` is set.

    There are up to ``threads`` of them, and one that looks ahead while all of them wait.
    ``readers`` makes a thread's reader; it gets the object to call before it waits.
    ``on_interrupt`` learns which request, perhaps of another worker, is interrupted; ``pending``
    knows those of this worker. ``trace`` records each request while somebody watches.
    """

    fd: int
    session: Session
    readers: ReaderFactory
    threads: int
    marks: Marks
    log: Callable[[str], None]
    ended: Event
    pending: PendingRequests
    on_interrupt: Callable[[int], None] = lambda _unique: None
    clock: Callable[[], float] = time.monotonic
    trace: TraceWriter | None = None
    counter: RowCounter = field(default_factory=uncounted)
    lock: Lock = field(default_factory=Lock)  # the holder leads
    started: list[Thread] = field(default_factory=list)
    failures: Failures = field(init=False)
    renewal: Renewal = field(init=False)
    requests: device.Requests = field(init=False)
    disk_watch: DiskWatch = field(init=False)

    def __post_init__(self) -> None:
        self.failures = Failures(self.log, self.clock)
        self.renewal = Renewal(self.fd, self.session, self.clock)
        self.requests = device.Requests(self.fd)
        self.disk_watch = DiskWatch(self.fd, self.pending)

    def start(self) -> None:
        """Raises: Unavailable, if no thread can be started."""
        if not self.start_next():
            raise Unavailable("no thread can be started")

    def start_next(self) -> bool:
        """Starts one more thread, if the limit allows it; False if that must be tried again."""
        index = len(self.started)  # no race: each thread starts the one after it
        if index > self.threads or self.ended.is_set():
            return True
        is_last = index == self.threads
        work, name = (self.answer_ahead, "ahead") if is_last else (self.answer, str(index))
        args = () if is_last else (index,)
        thread = Thread(target=work, args=args, name=f"fuse-{name}", daemon=True)
        self.started.append(thread)
        try:
            thread.start()
        except RuntimeError:  # the system cannot start one now
            self.started.remove(thread)
            return False
        return True

    def answer(self, index: int) -> None:
        """Runs in a thread: answers requests until the connection ends."""
        turn = DeviceTurn(self.lock, self.start_next)
        current = CurrentRequest(turn, self.pending, self.disk_watch, self.counter.add)
        try:
            reader, filesystem = self.readers(current)
            current.ends_with(reader.cancel)
            on_failure = partial(self._failed, current)
            dispatcher = Dispatcher(filesystem, self.session, on_failure, self.on_interrupt)
            self._answer_all(index, current, dispatcher, reader)
        finally:
            self._end(turn)

    def _end(self, turn: DeviceTurn) -> None:
        """Ends a thread, with the connection or by an error. The others and the worker end, too.
        The successor gets their requests, or these fail."""
        self.ended.set()
        self.pending.end()
        self.disk_watch.close()
        turn.release()

    def answer_ahead(self) -> None:
        """Runs in a thread of its own: while all others wait, reads what no other worker reads.

        It answers what can be answered at once (umount(8) asks for statfs), so it never waits. It
        queues the rest (SlowError).
        """
        turn = DeviceTurn(self.lock)
        try:
            reader, filesystem = self.readers(_Refusal())
            dispatcher = Dispatcher(filesystem, self.session, self.failures, self.on_interrupt)
            self._look_ahead(turn, dispatcher, reader)
        finally:
            self._end(turn)

    def _look_ahead(self, turn: DeviceTurn, dispatcher: Dispatcher, reader: ThreadReader) -> None:
        buffer = bytearray(fuse_abi.REQUEST_BYTES_MIN + 4096)
        patience_s = PATIENCE_S
        while self.pending.wait_until_full():
            if not (self.pending.stays_full(patience_s) and device.is_readable(self.fd)):
                patience_s = PATIENCE_S
                continue
            patience_s = 0.0
            turn.acquire()
            size = None if self.ended.is_set() else self.requests.read(buffer)
            if size is None:
                return
            reader.begin()
            self._answer_or_queue(dispatcher, memoryview(buffer)[:size])
            turn.release()  # only after it is queued: the next leader looks into the queue first

    def _answer_or_queue(self, dispatcher: Dispatcher, message: memoryview) -> None:
        try:
            answer = dispatcher.answer(message)
        except SlowError:
            self.pending.put(bytes(message), self.clock())
            return
        if answer is not None:
            device.write_answer(self.fd, *answer)

    def _failed(self, current: CurrentRequest, what: str, error: Exception) -> None:
        if current.cancelled:
            return
        self.failures(what, error)
        if isinstance(error, NotFound):
            self.renewal()

    def _answer_all(
        self,
        index: int,
        current: CurrentRequest,
        dispatcher: Dispatcher,
        reader: ThreadReader,
    ) -> None:
        # Every request comes through here: look up once, before the loop, what it needs.
        fd, turn, pending, ended = self.fd, current.turn, self.pending, self.ended
        read_request = self.requests.read
        marks, clock, begin, trace = self.marks, self.clock, reader.begin, self.trace
        counter = self.counter
        buffer = bytearray(fuse_abi.REQUEST_BYTES_MIN + 4096)
        view = memoryview(buffer)
        while True:
            queued = pending.take() if pending.queue else None
            if queued is None:
                turn.acquire()
                if ended.is_set():
                    return
                queued = pending.take() if pending.queue else None
            if queued is None:
                size = read_request(buffer)
                if size is None:
                    return
                marks[index] = since_s = clock()
                begin()
                current.message = view[:size]
            else:
                marks[index] = now_s = clock()
                since_s = queued.since_s
                begin(now_s - since_s)
                current.message = memoryview(queued.message)
            answer = dispatcher.answer(current.message)
            if answer is not None and not current.cancelled:  # otherwise its canceller answers
                device.write_answer(fd, *answer)
                counter.answered(dispatcher.operation, int((clock() - since_s) * 1e9))
                if reader.waited.is_any:
                    counter.waited(reader.waited)
                if dispatcher.has_failed:
                    counter.failed(dispatcher.operation)
            if trace is not None and trace.is_on(since_s):
                add_request(trace, since_s, reader.waited, current.message, answer)
            current.done()
            marks[index] = 0.0


def add_request(
    trace: TraceWriter,
    since_s: float,
    waited: WaitTimes,
    message: memoryview,
    answer: Answer | None,
) -> None:
    """Adds an answered request to the trace; requests without an answer are left out."""
    if answer is None:
        return
    _, opcode, _, node, _, _, pid, *_ = fuse_abi.IN_HEADER.unpack_from(message)
    first = size_bytes = 0
    if opcode == fuse_abi.Opcode.READ:
        body = message[fuse_abi.IN_HEADER_BYTES :]
        _, first, _ = fuse_abi.READ_IN.unpack_from(body)
        size_bytes = len(answer[1])
    _, code, _ = fuse_abi.OUT_HEADER.unpack(answer[0])
    trace.add(
        since_s, waited, opcode=opcode, ino=node & ~LARGE, pid=pid, first=first,
        size_bytes=size_bytes, errno=-code,
    )  # fmt: skip


class _Refusal:
    """Passed to the reader of the thread that never waits: raises SlowError instead."""

    user = 0
    pid = 0

    def __call__(self) -> None:
        raise SlowError

    def disk(self) -> None:
        raise SlowError
