"""Clients that mean harm: many that only connect, and many that ask at once and do not stay."""

from __future__ import annotations

import re
import resource
import selectors
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

FILES_SPARE = 200  # descriptors of the test itself


@contextmanager
def files_allowed(count: int) -> Iterator[None]:
    """This process may have so many more files open inside the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + FILES_SPARE), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def silent_clients(address: tuple[str, int] | Path, count: int) -> Iterator[list[socket.socket]]:
    """So many connections on which nothing is ever said. Some may have been ended by the other
    side."""
    with files_allowed(count), ExitStack() as all_of_them:
        clients = []
        for _ in range(count):
            client = socket.socket(
                socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET, socket.SOCK_STREAM
            )
            all_of_them.enter_context(client)
            client.settimeout(60)
            client.connect(str(address) if isinstance(address, Path) else address)
            clients.append(client)
        yield clients


@contextmanager
def clients_that_do_not_read(path: Path, request: bytes, count: int) -> Iterator[None]:
    """So many clients of a Unix socket that ask, and leave the answer where it is."""
    with silent_clients(path, count) as clients:
        for client in clients:
            client.sendall(request)
        yield


@dataclass
class Call:
    """One request on a connection of its own, and what came of it: ``answer`` as it came, or
    ``error``; ``elapsed_s`` from connecting to the end of the answer."""

    request: bytes
    answer: bytes = b""
    error: OSError | None = None
    elapsed_s: float = 0.0

    @property
    def is_answered(self) -> bool:
        """Whether head and body came as they were announced."""
        head, end, body = self.answer.partition(b"\r\n\r\n")
        size = re.search(rb"\r\ncontent-length: ([0-9]+)", head.lower())
        return bool(end) and size is not None and len(body) == int(size[1])


def all_at_once(path: Path, requests: Sequence[bytes], timeout_s: float = 60.0) -> list[Call]:
    """Each request on a connection of its own to a Unix socket: all connect, then all ask, then
    answers are read as they come."""
    calls = [Call(request) for request in requests]
    ends_s = monotonic() + timeout_s
    with (
        files_allowed(len(calls)),
        ExitStack() as all_of_them,
        selectors.DefaultSelector() as waiting,
    ):
        begun_s = monotonic()
        for call in calls:
            client = all_of_them.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            client.settimeout(timeout_s)
            try:
                client.connect(str(path))
                client.setblocking(False)
                waiting.register(client, selectors.EVENT_READ, call)
            except OSError as error:
                call.error = error
        for key in list(waiting.get_map().values()):
            try:
                key.fileobj.sendall(key.data.request)  # type: ignore[union-attr]
            except OSError as error:
                key.data.error = error
                waiting.unregister(key.fileobj)
        while waiting.get_map() and monotonic() < ends_s:
            for key, _ in waiting.select(ends_s - monotonic()):
                call = key.data
                try:
                    piece = key.fileobj.recv(65536)  # type: ignore[union-attr]
                except OSError as error:
                    call.error, piece = error, b""
                call.answer += piece
                call.elapsed_s = monotonic() - begun_s
                if not piece or call.is_answered:
                    waiting.unregister(key.fileobj)
    return calls
