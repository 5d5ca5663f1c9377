"""A node's clients, in a process inside of its namespace.

``python -m loadtests.cluster.reader FILE``: FILE is the JSON of a Task. The process writes
``ready`` and waits for the file ``gate``; then each stream reads its jobs one after the other and
checks every answer by its BLAKE3. Meanwhile it writes lines with the numbers of bytes read and of
wrong ones so far; at the end it leaves a Seen in the file ``result``.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Protocol

import msgspec
from blake3 import blake3

from loadtests.cluster.figures import TOLD_MAX, Seen
from loadtests.cluster.heads import BadHttp, receive_head
from loadtests.cluster.plans import Job

PIECE_BYTES = 1 << 20
PROGRESS_S = 0.1
GATE_S = 0.005
RETRY_S = 0.05


class Task(msgspec.Struct, frozen=True):
    """What a reader is to do. ``address``: a path of a Unix socket, HOST:PORT, or a directory.
    ``targets``: by the names of files, what is asked for, or their paths in the directory."""

    address: str
    targets: dict[str, str]
    streams: list[list[Job]]
    gate: str
    result: str
    timeout_s: float = 120.0
    patience_s: float = 0.0
    pause_s: float = 0.0  # between two reads of a stream
    until: str = ""  # read over and over until this file is there


class ReadError(Exception):
    """A read returned no bytes, or too few."""


class Source(Protocol):
    """The source of a stream's reads."""

    def read(self, target: str, job: Job, take: Callable[[memoryview], object]) -> int:
        """Passes the bytes of a job to ``take``, in order. Returns their number. ReadError,
        OSError."""
        ...

    def close(self) -> None:
        """Closes it, or lets it begin again."""
        ...


class HttpSource:
    """One kept connection of a node's proxy, or of S3."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._sock: socket.socket | None = None
        self._buffer = memoryview(bytearray(PIECE_BYTES))

    def read(self, target: str, job: Job, take: Callable[[memoryview], object]) -> int:
        end_s = monotonic() + self._timeout_s
        sock = self._sock = self._sock or self._connect()
        sock.settimeout(self._timeout_s)
        wanted = f"Range: bytes={job.first}-{job.first + job.size_bytes - 1}\r\n"
        sock.sendall(
            f"GET {target} HTTP/1.1\r\nHost: {self._host}\r\n"
            f"{wanted if job.is_range else ''}\r\n".encode()
        )
        head = receive_head(sock)
        if head is None:
            raise ReadError("the connection was closed without an answer")
        if head.status != (206 if job.is_range else 200):
            self.close()
            raise ReadError(f"status {head.status}")
        return self._body(sock, int(head.headers["content-length"]), take, end_s)

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    @property
    def _host(self) -> str:
        return "node" if self._address.startswith("/") else self._address

    def _connect(self) -> socket.socket:
        if self._address.startswith("/"):
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(self._timeout_s)
            sock.connect(self._address)
            return sock
        host, _, port = self._address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=self._timeout_s)

    def _body(
        self, sock: socket.socket, length: int, take: Callable[[memoryview], object], end_s: float
    ) -> int:
        left = length
        while left:
            got = sock.recv_into(self._buffer[: min(left, PIECE_BYTES)])
            if not got:
                raise ReadError(f"the answer broke off, {left} bytes before its end")
            take(self._buffer[:got])
            left -= got
            if monotonic() > end_s:
                raise ReadError("it took too long")
        return length


class MountSource:
    """The files below a directory, as programs read them."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._buffer = memoryview(bytearray(PIECE_BYTES))

    def read(self, target: str, job: Job, take: Callable[[memoryview], object]) -> int:
        fd = os.open(os.path.join(self._directory, target), os.O_RDONLY)
        try:
            at, end = job.first, job.first + job.size_bytes
            while at < end or not job.is_range:
                size = min(PIECE_BYTES, end - at) if job.is_range else PIECE_BYTES
                got = os.preadv(fd, [self._buffer[:size]], at)
                if not got:
                    break
                take(self._buffer[:got])
                at += got
            return at - job.first
        finally:
            os.close(fd)

    def close(self) -> None:
        pass


class Reader:
    """All streams of a node, and what they saw."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._lock = threading.Lock()  # guards what follows
        self._seen = Seen()
        self._read_bytes = self._wrong_bytes = 0

    def run(self) -> Seen:
        """Reads everything, a thread for each stream."""
        threads = [threading.Thread(target=self._stream, args=(jobs,), daemon=True)
                   for jobs in self._task.streams]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(PROGRESS_S)
                self._tell()
        self._tell()
        return self._seen

    def _tell(self) -> None:
        print(self._read_bytes, self._wrong_bytes, flush=True)

    def _stream(self, jobs: list[Job]) -> None:
        source = open_source(self._task)
        mine = Seen()
        again = True
        while again:
            for job in jobs:
                self._read(source, job, mine)
                if self._task.until and os.path.exists(self._task.until):
                    break
                if self._task.pause_s:
                    threading.Event().wait(self._task.pause_s)
            again = bool(self._task.until) and not os.path.exists(self._task.until)
        source.close()
        with self._lock:
            self._seen.add(mine)

    def _read(self, source: Source, job: Job, seen: Seen) -> None:
        """One read, retried while there is patience; its time includes all retries."""
        start = monotonic()
        while True:
            digest = blake3()
            try:
                size = source.read(self._task.targets[job.name], job, digest.update)
                break
            except (OSError, ReadError, BadHttp) as error:
                source.close()
                if monotonic() - start >= self._task.patience_s:
                    seen.failed += 1
                    if len(seen.told) < TOLD_MAX:
                        seen.told.append(f"{job.name}: {type(error).__name__}: {error}")
                    return
                seen.retried += 1
                threading.Event().wait(RETRY_S)
        seen.latencies_s.append(monotonic() - start)
        seen.reads += 1
        seen.size_bytes += size
        is_right = size == job.size_bytes and digest.hexdigest() == job.digest
        wrong = 0 if is_right else max(size, 1)
        seen.wrong_bytes += wrong
        with self._lock:
            self._read_bytes += size
            self._wrong_bytes += wrong


def open_source(task: Task) -> Source:
    """The source that a task's address names."""
    if os.path.isdir(task.address):
        return MountSource(task.address)
    return HttpSource(task.address, task.timeout_s)


def main(file: str) -> None:
    """One task, from its gate to its result."""
    task = msgspec.json.decode(Path(file).read_bytes(), type=Task)
    reader = Reader(task)
    print("ready", flush=True)
    while not os.path.exists(task.gate):
        threading.Event().wait(GATE_S)
    start = monotonic()
    seen = reader.run()
    answer = {"start_s": start, "end_s": monotonic(), "seen": asdict(seen)}
    partial = Path(f"{task.result}.partial")
    partial.write_bytes(msgspec.json.encode(answer))
    partial.rename(task.result)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(sys.argv[1])
