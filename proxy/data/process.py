"""A data process: it carries out orders, one at a time in each of its threads.

``main`` serves the sockets whose numbers are its arguments CONTROL SLOT .... The process knows no
store, cache or credentials except what an order says. It ends when the proxy has closed its end of
the control socket.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import accumulate

from lodefs.chunkstore.errors import Changed, Corrupt, LodefsError
from lodefs.chunkstore.format.names import ID_BYTES, ChunkId
from lodefs.chunkstore.format.pack import ChunkPlace, unpack
from lodefs.chunkstore.objects.ranges.stream import Body, FileBody, RangeStreams
from lodefs.chunkstore.protocol import rpc
from lodefs.chunkstore.system import libc
from lodefs.chunkstore.system.batched_writes import write_at
from lodefs.chunkstore.system.processes import die_with_parent
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.data import order as orders
from lodefs.proxy.data.order import FetchReport, FetchTask

# Stored bytes, received, verified and written together: receiving costs more in smaller pieces
BATCH_SIZE_BYTES = 2 * 1024 * 1024
RAW_SIZE_BYTES_MAX = BATCH_SIZE_BYTES  # limit for a decompressed batch
SLOW_S = 1.0  # limit for writing an order; then the proxy's own process does the rest
STUCK_S = 2.5  # limit for one write
OOM_SCORE = b"500"  # the kernel kills this process before the proxy, and the unit continues
_PR_SET_NAME = 15  # linux/prctl.h
_NAME = b"lodefs-data\0"


class _Slow(Exception):
    """The disk to write to does not keep up."""


class WriteLock:
    """Allows one write at a time. The kernel lets one thread write to a file, and threads that wait
    for that in the kernel would keep their processors busy. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since_s = math.inf

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Holds the lock for one write."""
        with self._lock:
            self._since_s = time.monotonic()
            try:
                yield
            finally:
                self._since_s = math.inf

    def is_stuck(self) -> bool:
        """Whether a write to the disk is stuck."""
        return time.monotonic() - self._since_s > STUCK_S


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
        size_bytes = sum(_u32s(order.stored_sizes))
        source: AbstractContextManager[Body]
        if order.http is None:
            source, files = nullcontext(FileBody(fds[0], order.offset)), fds[1:]
        else:
            source, files = self._streams.get(order.http, size_bytes), fds
        try:
            with source as body:
                wrong = self._fetch(order, body, files)
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
            return FetchReport(orders.WRONG, *wrong, size_bytes, seconds)
        return FetchReport(orders.DONE, 0, "", size_bytes, seconds)

    def _fetch(self, order: FetchTask, body: Body, files: Sequence[int]) -> tuple[int, str] | None:
        """Receives, verifies and writes everything. Returns the first wrong chunk, and why. Raises:
        _Slow if the disk was too slow."""
        wrong: tuple[int, str] | None = None
        write_s = 0.0
        stored_sizes, raw_sizes = _u32s(order.stored_sizes), _u32s(order.raw_sizes)
        raw_starts = list(accumulate(raw_sizes, initial=0))
        for first, end, size_bytes in _batches(stored_sizes, raw_sizes):
            if size_bytes > len(self._buffer):  # one large chunk
                self._buffer = memoryview(bytearray(size_bytes))
            body.read_into(self._buffer[:size_bytes])
            if wrong is not None:
                continue  # read the rest, so that the connection can be used again
            raws: list[Buffer] = []
            at = 0
            for n in range(first, end):
                try:
                    place = ChunkPlace(
                        ChunkId(order.ids[n * ID_BYTES : (n + 1) * ID_BYTES]),
                        at,
                        stored_sizes[n],
                        raw_sizes[n],
                        order.codecs[n],
                    )
                    raws.append(unpack(place, self._buffer[at : at + stored_sizes[n]]))
                except Corrupt as error:
                    wrong = (n, str(error))
                    break
                at += stored_sizes[n]
            else:
                begin_s = time.monotonic()
                with self._writing.turn():
                    _write(order, raw_starts, first, raws, files)
                write_s += time.monotonic() - begin_s
                if write_s > SLOW_S and end < len(raw_sizes):
                    raise _Slow
        return wrong


def _write(
    order: FetchTask,
    raw_starts: Sequence[int],
    first: int,
    raws: Sequence[Buffer],
    files: Sequence[int],
) -> None:
    """Writes the chunks from ``first`` on that have a target. Raises: OSError; _FileTruncated,
    since a write after the end of a truncated file would leave zeros before it."""
    for target in order.targets:
        low, high = max(target.first, first), min(target.end, first + len(raws))
        if low < high:
            status = os.fstat(files[target.file])
            if not status.st_nlink:
                raise _FileTruncated(target.file, "it was removed")
            if status.st_size < order.lengths_bytes[target.file]:
                raise _FileTruncated(target.file, f"it was truncated to {status.st_size} bytes")
            offset = target.offset + raw_starts[low] - raw_starts[target.first]
            write_at(files[target.file], offset, raws[low - first : high - first])


def _batches(
    stored_sizes: Sequence[int], raw_sizes: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    """Yields chunks [first, end) of about BATCH_SIZE_BYTES stored, or RAW_SIZE_BYTES_MAX raw, and
    the number of stored bytes."""
    first = size_bytes = raw_bytes = 0
    for n, (one, raw) in enumerate(zip(stored_sizes, raw_sizes, strict=True)):
        is_full = size_bytes + one > BATCH_SIZE_BYTES or raw_bytes + raw > RAW_SIZE_BYTES_MAX
        if n > first and is_full:
            yield first, n, size_bytes
            first, size_bytes, raw_bytes = n, 0, 0
        size_bytes += one
        raw_bytes += raw
    if stored_sizes:
        yield first, len(stored_sizes), size_bytes


def _u32s(data: bytes) -> array[int]:
    numbers = array("I")
    numbers.frombytes(data)
    return numbers


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
