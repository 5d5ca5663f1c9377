"""A data process: it carries out orders, one at a time in each of its threads.

``main`` serves the sockets whose numbers are its arguments CONTROL SLOT .... The process knows no
store, cache or credentials except what an order says. It ends when the proxy has closed its end of
the control socket.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial

from lodefs.chunkstore.errors import Changed, LodefsError
from lodefs.chunkstore.format.pack import PackIndex, WrongChunk, unpack_chunks
from lodefs.chunkstore.objects.ranges.stream import Body, FileBody, RangeStreams
from lodefs.chunkstore.protocol import rpc
from lodefs.chunkstore.system import libc
from lodefs.chunkstore.system.batched_writes import damage, write_at
from lodefs.chunkstore.system.processes import die_with_parent
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.data import order as orders
from lodefs.proxy.data.order import FetchReport, FetchTask
from lodefs.proxy.runtime.processor_wait import ProcessorWait, TimedWrite

# Stored bytes, received, verified and written together: receiving costs more in smaller pieces
BATCH_SIZE_BYTES = 2 * 1024 * 1024
RAW_SIZE_BYTES_MAX = BATCH_SIZE_BYTES  # limit for a decompressed batch
SLOW_S = 1.0  # of the disk for an order; then the proxy's own process does the rest
STUCK_S = 2.5  # of the disk for one write
OOM_SCORE = b"500"  # the kernel kills this process before the proxy, and the unit continues
_PR_SET_NAME = 15  # linux/prctl.h
_NAME = b"lodefs-data\0"


class _Slow(Exception):
    """The disk to write to does not keep up."""


class WriteLock:
    """Allows one write at a time. The kernel lets one thread write to a file, and threads that wait
    for that in the kernel would keep their processors busy. For any thread."""

    def __init__(
        self,
        clock_s: Callable[[], float] = time.monotonic,
        begin_wait: Callable[[], ProcessorWait] = ProcessorWait.begin,
    ) -> None:
        self._clock_s = clock_s
        self._begin_wait = begin_wait
        self._lock = threading.Lock()
        self._write: TimedWrite | None = None  # the one under way
        self._disk_s = 0.0  # of all earlier ones

    def run(self, write: Callable[[], None]) -> float:
        """Writes when it is its turn. Returns how many seconds the disk took for that, and for the
        writes before it that this one waited for. Raises what ``write`` raises."""
        before_s = self._disk_s
        with self._lock:
            self._write = begun = TimedWrite(self._clock_s(), self._begin_wait())
            try:
                write()
            finally:
                self._disk_s += begun.disk_s(self._clock_s())
                self._write = None
            return self._disk_s - before_s

    def is_stuck(self) -> bool:
        """Whether a write to the disk is stuck."""
        write = self._write
        return write is not None and write.disk_s(self._clock_s()) > STUCK_S


class _FileTruncated(Exception):
    """A file to write to was truncated or removed."""

    def __init__(self, file: int, why: str) -> None:
        super().__init__(why)
        self.file = file


class Worker:
    """One thread: its socket, and its memory for bodies."""

    def __init__(self, slot: socket.socket, streams: RangeStreams, writing: WriteLock) -> None:
        self._slot = slot
        self._streams = streams
        self._writing = writing
        self._buffer = memoryview(bytearray(BATCH_SIZE_BYTES))

    def run(self) -> None:
        """Serves orders until the socket is closed."""
        with suppress(ConnectionError):
            while True:
                rpc.send(self._slot, self._report())

    def _report(self) -> FetchReport:
        """Carries out the next order. Raises: ConnectionError if there are no more."""
        try:
            order, fds = orders.receive(self._slot)
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - a thread that ended would be waited for
            return FetchReport(orders.FAILED, why=_text(error))
        try:
            return self._carried_out(order, fds)
        except Exception as error:  # noqa: BLE001 - as above
            return FetchReport(orders.FAILED, why=_text(error))
        finally:
            rpc.close_all(fds)

    def _carried_out(self, order: FetchTask, fds: Sequence[int]) -> FetchReport:
        begin_s = time.monotonic()
        index = order.index()
        size_bytes = index.offsets[-1]
        source: AbstractContextManager[Body]
        if order.http is None:
            source, files = nullcontext(FileBody(fds[0], order.offset)), fds[1:]
        else:
            source, files = self._streams.get(order.http, size_bytes), fds
        try:
            with source as body:
                wrong = self._fetch(order, index, body, files)
        except Changed:
            return FetchReport(orders.CHANGED)
        except _Slow:
            return FetchReport(orders.SLOW, why="the cache's disk is slow")
        except _FileTruncated as error:
            return FetchReport(orders.DAMAGED, error.file, str(error))
        except (LodefsError, OSError, MemoryError, IndexError) as error:
            return FetchReport(orders.FAILED, why=_text(error))
        seconds = time.monotonic() - begin_s
        if wrong is not None:
            why = str(wrong.__cause__)
            return FetchReport(orders.WRONG, wrong.number or 0, why, size_bytes, seconds)
        return FetchReport(orders.DONE, 0, "", size_bytes, seconds)

    def _fetch(
        self, order: FetchTask, index: PackIndex, body: Body, files: Sequence[int]
    ) -> WrongChunk | None:
        """Receives, verifies and writes everything. Returns the error of the first wrong chunk.
        Raises: _Slow if the disk was too slow."""
        wrong: WrongChunk | None = None
        write_s = 0.0
        for first, end in _batches(index):
            size_bytes = index.stored_size(first, end)
            if size_bytes > len(self._buffer):  # one large chunk
                self._buffer = memoryview(bytearray(size_bytes))
            body.read_into(self._buffer[:size_bytes])
            if wrong is not None:
                continue  # read the rest, so that the connection can be used again
            try:
                raws = unpack_chunks(index, first, end - first, self._buffer)
            except WrongChunk as error:
                wrong = error
                continue
            write_s += self._writing.run(partial(_write, order, index, first, raws, files))
            if write_s > SLOW_S and end < len(index):
                raise _Slow
        return wrong


def _write(
    order: FetchTask,
    index: PackIndex,
    first: int,
    raws: Sequence[Buffer],
    files: Sequence[int],
) -> None:
    """Writes the chunks from ``first`` on that have a target. Raises: OSError, _FileTruncated."""
    for target in order.targets:
        low, high = max(target.first, first), min(target.end, first + len(raws))
        if low < high:
            if why := damage(files[target.file], order.lengths_bytes[target.file]):
                raise _FileTruncated(target.file, why)
            offset = target.offset + index.raw_size(target.first, low)
            write_at(files[target.file], offset, raws[low - first : high - first])


def _batches(index: PackIndex) -> Iterator[tuple[int, int]]:
    """Yields chunks [first, end) of at most BATCH_SIZE_BYTES stored and RAW_SIZE_BYTES_MAX raw, or
    one that is larger."""
    first = 0
    while first < len(index):
        stored = bisect_right(index.offsets, index.offsets[first] + BATCH_SIZE_BYTES)
        raw = bisect_right(index.raw_offsets, index.raw_offsets[first] + RAW_SIZE_BYTES_MAX)
        end = max(min(stored, raw) - 1, first + 1)
        yield first, end
        first = end


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _settle() -> None:
    """Makes the process end with the proxy, ignore the signals that stop the proxy, and show its
    name in ``ps``."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(os.getppid())
    libc.call("prctl", _PR_SET_NAME, _NAME, 0, 0, 0)
    with suppress(OSError):
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        try:
            os.write(fd, OOM_SCORE)
        finally:
            os.close(fd)


def main() -> None:
    """Runs the process as a program."""
    control, *slots = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    _settle()
    streams, writing = RangeStreams(), WriteLock()
    for slot in slots:
        threading.Thread(target=Worker(slot, streams, writing).run, daemon=True).start()
    with suppress(OSError):
        control.sendall(orders.READY)
        while control.recv(1):
            control.sendall(orders.STUCK if writing.is_stuck() else orders.PONG)
    os._exit(0)
