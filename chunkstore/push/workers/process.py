"""A worker in a process of its own, and the parent's side of it.

Messages are slot numbers; what they are about lies in the slots, so that no send ever waits for a
reader, and two processes that send to each other cannot block.
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
from typing import NoReturn

import msgspec

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.format.decoding import msgpack_decoder
from lodefs.chunkstore.push.workers.shared_slots import SharedSlots, Slot
from lodefs.chunkstore.push.workers.worker import Reply, Task, Worker

_NUMBER_BYTES = 4
_END_TIMEOUT_S = 10.0
_NICE = 5  # the parent decides for all of them, so it comes first


class WorkerProcess:
    """The parent's side of a worker process. ``start`` forks it."""

    def __init__(self, pid: int, sock: socket.socket, arena: SharedSlots) -> None:
        self.pid = pid
        self.socket = sock
        self.tasks = 0  # given and not answered
        self._arena = arena
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgpack_decoder(Reply)

    @classmethod
    def start(cls, arena: SharedSlots, params: ChunkingParams) -> WorkerProcess:
        """Forks a worker. SEQPACKET keeps messages apart, and shows the end of the peer."""
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
        """Gives the worker a task. Raises: Unavailable if it is dead."""
        slot.write_message(self._encoder.encode(task))
        try:
            self.socket.sendall(slot.number.to_bytes(_NUMBER_BYTES, "little"))
        except OSError as error:
            raise self._died() from error
        self.tasks += 1

    def receive(self) -> tuple[Slot, Reply]:
        """Waits for the reply to some task. Raises: Unavailable if the worker is dead."""
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
        """Kills the process, which holds nothing of worth, and waits for its end."""
        self.socket.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            process = os.pidfd_open(self.pid)
            try:
                signal.pidfd_send_signal(process, signal.SIGKILL)
                with selectors.DefaultSelector() as selector:
                    selector.register(process, selectors.EVENT_READ)
                    selector.select(_END_TIMEOUT_S)  # reading a dead disk may never end
            finally:
                os.close(process)
            os.waitpid(self.pid, os.WNOHANG)

    def _died(self) -> Unavailable:
        return Unavailable(
            f"the worker process {self.pid} died while it read files (killed, or out of memory?): "
            "nothing was committed, push again"
        )


def _be_worker(sock: socket.socket, arena: SharedSlots, params: ChunkingParams) -> NoReturn:
    """The whole life of a worker. It ends when the parent does: that closes the socket."""
    status = 1
    try:
        os.nice(_NICE)
        gc.disable()  # nor may the parent's objects be freed here: their descriptors are gone
        gc.freeze()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
        _close_inherited(sock.fileno())
        _serve(sock, arena, Worker(params))
        status = 0
    except BaseException:  # noqa: BLE001 - a fork must never return into its parent's frames
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _close_inherited(kept_fd: int) -> None:
    """Closes what belongs to the parent: locks, sockets, other workers' ends."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd != kept_fd:
            with contextlib.suppress(OSError):  # one was the listing's own
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
