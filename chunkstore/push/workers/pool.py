"""Workers: files become chunks, in this process or in several.

Messages are slot numbers; their contents lie in the slots. So a send never waits for a reader, and
two processes that send to each other cannot block.

A push passes source files in order, and a sink (pipeline.py). The workers read, cut and hash the
files, and compress the chunks that the sink wants.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import NoReturn, Self

import msgspec

from lodefs.chunkstore.errors import InvalidInput, Unavailable
from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.format.decoding import msgpack_decoder
from lodefs.chunkstore.push.remote.remote_files import is_url
from lodefs.chunkstore.push.workers.pipeline import Pipeline, Sink
from lodefs.chunkstore.push.workers.source_files import Source, SourceFile
from lodefs.chunkstore.push.workers.work_units import FILES_MAX, Planner, UnitLimits
from lodefs.chunkstore.push.workers.worker import Reply, SharedSlots, Slot, Task, Worker
from lodefs.chunkstore.system import processes
from lodefs.chunkstore.system.rate import Rate
from lodefs.chunkstore.system.safe_open import closing

UNIT_BYTES = 4 << 20
WORKERS_MAX = 16
_TASKS_MAX = 2  # per worker: one in work, and the next one ready
_SLOTS_PER_WORKER = 2  # one is placed while the other is filled

# Fewer files and bytes than this are read in this process: forking would take longer
INLINE_FILES_MAX = 200
INLINE_SIZE_BYTES_MAX = 8 << 20

Root = bytes | str | os.PathLike[str]
Work = Callable[[], bool]


def _nothing() -> bool:
    return False


class Workers:
    """Read, cut, hash and compress files, in this process (InlineWorkers) or in others
    (WorkerPool). Both pass the same units to the sink."""

    def __init__(self, limits: UnitLimits, slots: int) -> None:
        if limits.unit_bytes < limits.params.size_bytes_max:
            raise InvalidInput(f"a unit of {limits.unit_bytes} bytes cannot hold every chunk")
        self._limits = limits
        self._arena = SharedSlots(slots, limits.slot_data_bytes, limits.slot_messages_bytes)
        self._runs = 0

    def run(
        self,
        root: Root,
        files: Iterable[SourceFile],
        sink: Sink,
        meanwhile: Work = _nothing,
        rate: Rate | None = None,
    ) -> None:
        """Passes all ``files`` below the directory ``root`` through the sink, in their order.

        The sink gets the error of an unreadable file in its CutFile. A file that changed comes
        again, after files that were read meanwhile. While the workers are busy, ``meanwhile`` is
        called; it does a bit of other work and returns whether there was any. ``rate`` limits what
        is read.

        Raises: NotFound or Denied for ``root``; Unavailable if a worker died; what ``files`` and
        the sink raise. After an error the workers are closed.
        """
        if not self._arena.slots:
            raise InvalidInput("these workers are closed: make new ones")
        absolute = os.fsencode(root)
        if not is_url(absolute):
            absolute = os.path.join(os.getcwdb(), absolute)
            Source(absolute).close()  # a root that cannot be opened fails here, not in a worker
        self._runs += 1
        planner = Planner(files, self._limits)
        pipeline = Pipeline(planner, self._arena.slots, self._limits.params, sink, rate)
        try:
            self._drive(pipeline, absolute, meanwhile)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the workers and frees the memory. May be called twice."""
        self._arena.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drive(self, pipeline: Pipeline, root: bytes, meanwhile: Work) -> None:
        raise NotImplementedError


class InlineWorkers(Workers):
    """Runs all tasks in this process, one after the other: the reference, for tests and tiny
    pushes."""

    def __init__(
        self,
        params: ChunkingParams | None = None,
        *,
        unit_bytes: int = UNIT_BYTES,
        files_max: int = FILES_MAX,
    ) -> None:
        limits = UnitLimits(params or ChunkingParams(), unit_bytes, files_max)
        super().__init__(limits, slots=1)
        self._worker = Worker(limits.params)

    def close(self) -> None:
        self._worker.close()
        super().close()

    def _drive(self, pipeline: Pipeline, root: bytes, meanwhile: Work) -> None:
        while (task := pipeline.next_task(root, self._runs)) is not None:
            pipeline.done(task[0], self._worker.perform(*task))
        while meanwhile():
            pass


class WorkerPool(Workers):
    """Worker processes, forked by the constructor, with slots in memory that all share.

    Construct it before threads are started. ``workers`` defaults to one more than the cores.
    """

    def __init__(
        self,
        params: ChunkingParams | None = None,
        *,
        workers: int | None = None,
        unit_bytes: int = UNIT_BYTES,
        files_max: int = FILES_MAX,
    ) -> None:
        count = default_workers() if workers is None else workers
        if not 1 <= count <= WORKERS_MAX:
            raise InvalidInput(f"{count} workers: the number must be from 1 to {WORKERS_MAX}")
        limits = UnitLimits(params or ChunkingParams(), unit_bytes, files_max)
        super().__init__(limits, slots=count * _SLOTS_PER_WORKER)
        self._workers: list[WorkerProcess] = []
        try:
            for _ in range(count):
                self._workers.append(WorkerProcess.start(self._arena, limits.params))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The ids of the worker processes."""
        return [worker.pid for worker in self._workers]

    def close(self) -> None:
        for worker in self._workers:
            worker.socket.close()  # idle workers end now, all at once
        while self._workers:
            self._workers.pop().end()
        super().close()

    def _drive(self, pipeline: Pipeline, root: bytes, meanwhile: Work) -> None:
        """Gives tasks to the workers and takes their replies until nothing is left. It scans ahead
        meanwhile, since many small files keep this process busy and large ones the workers."""
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.socket, selectors.EVENT_READ, worker)
            while True:
                self._dispatch(pipeline, root)
                if not any(worker.tasks for worker in self._workers):
                    return
                events = selector.select(0)
                while not events and (pipeline.plan_ahead() or meanwhile()):
                    events = selector.select(0)
                for key, _ in events or selector.select():
                    ready: WorkerProcess = key.data
                    pipeline.done(*ready.receive())

    def _dispatch(self, pipeline: Pipeline, root: bytes) -> None:
        """Gives tasks to the workers that have the fewest, as long as there are tasks."""
        while True:
            worker = min(self._workers, key=lambda worker: worker.tasks)
            if worker.tasks >= _TASKS_MAX:
                return
            task = pipeline.next_task(root, self._runs)
            if task is None:
                return
            worker.send(*task)


def default_workers() -> int:
    """Returns one more than the cores of this process, since workers wait for disks at times."""
    return min(len(os.sched_getaffinity(0)) + 1, WORKERS_MAX)


def workers_for(
    params: ChunkingParams, workers: int | None, files: int, size_bytes: int
) -> Workers:
    """Returns workers for this many files and bytes. ``workers`` is the number of processes; 0:
    only this one; None: by the cores."""
    is_small = files <= INLINE_FILES_MAX and size_bytes <= INLINE_SIZE_BYTES_MAX
    if is_small or workers == 0:
        return InlineWorkers(params)
    return WorkerPool(params, workers=None if workers is None else min(workers, WORKERS_MAX))


_NUMBER_BYTES = 4
_END_TIMEOUT_S = 10.0
_NICE = 5  # the parent has priority, since all workers wait for it


class WorkerProcess:
    """The parent's side of a worker process. ``start`` forks it."""

    def __init__(self, pid: int, sock: socket.socket, arena: SharedSlots) -> None:
        self.pid = pid
        self.socket = sock
        self.tasks = 0  # tasks without a reply
        self._arena = arena
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgpack_decoder(Reply)

    @classmethod
    def start(cls, arena: SharedSlots, params: ChunkingParams) -> WorkerProcess:
        """Forks a worker. SEQPACKET keeps messages apart and shows that the peer has ended."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError as error:
            ours.close()
            theirs.close()
            raise Unavailable(f"cannot start a worker process: {error.strerror}") from error
        if pid == 0:
            _be_worker(theirs, arena, params)
        theirs.close()
        return cls(pid, ours, arena)

    def send(self, slot: Slot, task: Task) -> None:
        """Sends the worker a task. Raises: Unavailable if it is dead."""
        slot.write_message(self._encoder.encode(task))
        try:
            self.socket.sendall(slot.number.to_bytes(_NUMBER_BYTES, "little"))
        except OSError as error:
            raise self._died() from error
        self.tasks += 1

    def receive(self) -> tuple[Slot, Reply]:
        """Waits for the reply to any task. Raises: Unavailable if the worker is dead."""
        try:
            message = self.socket.recv(_NUMBER_BYTES)
        except OSError as error:
            raise self._died() from error
        if not message:
            raise self._died()
        self.tasks -= 1
        slot = self._arena.slots[int.from_bytes(message, "little")]
        return slot, self._decoder.decode(slot.read_message())

    def end(self) -> None:
        """Kills the process, which holds nothing of value, and waits for its end."""
        self.socket.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            with closing(os.pidfd_open(self.pid)) as process:
                processes.send(process)
                processes.is_over(process, _END_TIMEOUT_S)  # a read from a dead disk may never end
            os.waitpid(self.pid, os.WNOHANG)

    def _died(self) -> Unavailable:
        return Unavailable(
            f"the worker process {self.pid} died while it read files (killed, or out of memory?): "
            "nothing was committed, push again"
        )


def _be_worker(sock: socket.socket, arena: SharedSlots, params: ChunkingParams) -> NoReturn:
    """Runs a worker until the parent closes the socket or ends."""
    status = 1
    try:
        os.nice(_NICE)
        gc.disable()  # the parent's objects must not be freed here: their descriptors are closed
        gc.freeze()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
        _close_inherited(sock.fileno())
        _serve(sock, arena, Worker(params))
        status = 0
    except BaseException:  # noqa: BLE001 - a fork must never return into its parent's frames
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _close_inherited(kept_fd: int) -> None:
    """Closes the parent's descriptors: locks, sockets, other workers' ends."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd != kept_fd:
            with contextlib.suppress(OSError):  # one belonged to the listing itself
                os.close(fd)


def _serve(sock: socket.socket, arena: SharedSlots, worker: Worker) -> None:
    encoder = msgspec.msgpack.Encoder()
    decoder = msgpack_decoder(Task)
    with contextlib.suppress(ConnectionError):  # the parent is gone
        while message := sock.recv(_NUMBER_BYTES):
            slot = arena.slots[int.from_bytes(message, "little")]
            task = decoder.decode(slot.read_message())
            slot.write_message(encoder.encode(worker.perform(slot, task)))
            sock.sendall(message)
