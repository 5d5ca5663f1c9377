"""The fast path: plain range reads of cached bytes, answered with as little Python as possible.

The bytes at a commit never change, so two requests that differ only in their range differ only in
the range of their answers. The ordinary path (server.py) answers the first one of a kind with all
checks, and enters it into this table. The next ones are looked up by the raw bytes of their request
line and headers, read with one preadv, and written with one write to the socket; most of a long
answer uses sendfile. Requests that are not plain, not known, not cached or not writable at once are
left to the ordinary path. Both give equal answers; tests/proxy/api/test_fast_path.py compares them.
"""

from __future__ import annotations

import asyncio
import errno
import os
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

from lodefs.proxy.api.response_slots import ResponseSlots
from lodefs.proxy.metrics.histogram import LATENCY_BOUNDS_S
from lodefs.proxy.metrics.server_metrics import Metrics, RequestCounter
from lodefs.proxy.node import Extent, Files
from lodefs.proxy.runtime.thread_pools import REMOTE

ANSWER_SIZE_BYTES_MAX = 1 << 20  # longer answers are streamed by the ordinary path
BUFFERED_SIZE_BYTES_MAX = 128 << 10  # longer answers are a first piece and a sendfile
FIRST_PIECE_SIZE_BYTES = 32 << 10
SAMPLE_STEP_BYTES = 256 << 10
HEAD_SIZE_BYTES_MAX = 2048  # limit for a request's head, and the room for an answer's
TARGETS_MAX = 8192
HEADER_BLOCKS_MAX = 256
UNSENT_CONNECTIONS_MAX = 64  # each may have up to ANSWER_SIZE_BYTES_MAX to write

NO_EXTENT = Extent(-1, 0, 0)
_RANGE = b"\r\nRange: bytes="
_RANGE_LOWER = b"\r\nrange: bytes="
_NUMBER_CHARS_MAX = 16


class PlainGet(NamedTuple):
    """A plain GET as bytes: the target, all headers but Range, and the two numbers of the range.

    ``first`` is -1 without a Range header: then the whole file is wanted.
    """

    target: bytes
    headers: bytes
    first: int
    last: int


class Target(NamedTuple):
    """The meaning of a request target, and the heads of its answers without Date and length."""

    repo: str
    content_id: bytes
    size_bytes: int
    whole_head: bytes
    part_head: bytes
    counter: RequestCounter


def parse_plain_get(data: bytes) -> PlainGet | None:
    """Parses ``data`` as one complete plain GET of HTTP/1.1. Returns None for anything else.

    It unescapes and checks nothing: what the ordinary path refuses is never entered.
    """
    size = len(data)
    if size > HEAD_SIZE_BYTES_MAX or data[:5] != b"GET /" or data.find(b"\r\n\r\n") != size - 4:
        return None
    line_end = data.find(b"\r\n")
    if data[line_end - 9 : line_end] != b" HTTP/1.1":
        return None
    target = data[4 : line_end - 9]
    start = data.find(_RANGE, line_end)
    if start < 0:
        start = data.find(_RANGE_LOWER, line_end)
        if start < 0:
            return PlainGet(target, data[line_end:], -1, -1)
    value_end = data.find(b"\r\n", start + len(_RANGE))
    first, _, last = data[start + len(_RANGE) : value_end].partition(b"-")
    if not (first.isdigit() and last.isdigit() and len(first) + len(last) <= 2 * _NUMBER_CHARS_MAX):
        return None
    return PlainGet(target, data[line_end:start] + data[value_end:], int(first), int(last))


class KnownHeaders:
    """For one endpoint: the repositories for which a block of request headers was accepted.

    ``generation`` counts how often all entries were dropped; earlier results no longer count.
    """

    def __init__(self) -> None:
        self._repos: OrderedDict[bytes, set[str]] = OrderedDict()
        self._owners: dict[bytes, str] = {}
        self.generation = 0

    def add(self, headers: bytes, repo: str, generation: int, *, owner: str = "") -> None:
        """Adds that requests with these headers may read ``repo`` and are plain, as was found in a
        generation, and for which owner, if a token says so."""
        if generation != self.generation:
            return
        self._repos.setdefault(headers, set()).add(repo)
        self._owners[headers] = owner
        if len(self._repos) > HEADER_BLOCKS_MAX:
            oldest, _ = self._repos.popitem(last=False)
            del self._owners[oldest]

    def owner_of(self, headers: bytes, otherwise: str) -> str:
        """Returns the owner for whom requests with these headers are made."""
        return self._owners.get(headers) or otherwise

    def allow(self, headers: bytes, repo: str) -> bool:
        """Whether ``add`` was called with both."""
        return repo in self._repos.get(headers, ())

    def clear(self) -> None:
        self._repos.clear()
        self._owners.clear()
        self.generation += 1


class FastPath:
    """The table of known targets, which answers requests. One for each server."""

    def __init__(
        self,
        files: Files,
        metrics: Metrics,
        *,
        closing: Callable[[], bytes],
        places: ResponseSlots | None = None,
        enabled: bool = True,
    ) -> None:
        """``closing`` returns the last lines of the head of an answer that is sent now (Server,
        Date). ``places`` are the slots of the answers of the ordinary path."""
        self._files = files
        self._metrics = metrics
        self._closing = closing
        self.places = places or ResponseSlots()
        self.enabled = enabled
        self._targets: OrderedDict[bytes, Target] = OrderedDict()
        self._buffer = memoryview(bytearray(HEAD_SIZE_BYTES_MAX + BUFFERED_SIZE_BYTES_MAX))
        self._sample = memoryview(bytearray(1))
        self._nowait = os.RWF_NOWAIT
        self.unsent_connections = 0  # connections with unsent bytes

    def writing_paused(self) -> None:
        """A connection has more to send than its client has read."""
        self.unsent_connections += 1

    def writing_resumed(self) -> None:
        """The client has read it, or the connection has ended."""
        self.unsent_connections -= 1

    def learn(self, plain_get: PlainGet, target: Target) -> None:
        """Adds a target that the ordinary path answered; drops the least recently used one."""
        if not self.enabled or len(target.part_head) > HEAD_SIZE_BYTES_MAX - 256:
            return
        self._targets[plain_get.target] = target
        if len(self._targets) > TARGETS_MAX:
            self._targets.popitem(last=False)

    def answer(
        self,
        plain_get: PlainGet,
        blocks: KnownHeaders,
        transport: asyncio.Transport,
        fd: int,
        *,
        owner: str = REMOTE,
    ) -> bool:
        """Answers an owner on the socket ``fd`` of ``transport``. Returns False, with nothing sent,
        if it cannot, or if others read and this is one of several large answers for its owner.

        The transport must have nothing to write. Bytes that the socket does not take at once are
        copied and left to the transport.
        """
        started = perf_counter()
        target = self._targets.get(plain_get.target)
        if target is None or not blocks.allow(plain_get.headers, target.repo):
            return False
        self._targets.move_to_end(plain_get.target)
        first, size = _range_of(plain_get, target.size_bytes)
        wanted = (first, size, plain_get.first >= 0)
        return self.send(target, wanted, transport, fd, owner=owner, started=started)

    def send(
        self,
        target: Target,
        wanted: tuple[int, int, bool],
        transport: asyncio.Transport,
        fd: int,
        *,
        started: float,
        owner: str = REMOTE,
        with_body: bool = True,
    ) -> bool:
        """Sends ``wanted`` of a target: its first byte and size, and whether it is a range. Returns
        what ``answer`` returns. ``with_body`` False sends only the head. ``fd`` -1 means that only
        the transport may write (TLS).
        """
        first, size, _ = wanted
        if with_body:
            if not 0 < size <= ANSWER_SIZE_BYTES_MAX or (
                size > BUFFERED_SIZE_BYTES_MAX and self.unsent_connections >= UNSENT_CONNECTIONS_MAX
            ):
                return False
            extent = self._files.hit(target.content_id, first, size)
            if extent is None or not self.places.passes(owner, size):
                return False
            buffered = size if size <= BUFFERED_SIZE_BYTES_MAX else FIRST_PIECE_SIZE_BYTES
            head_size = self._put_head(target, wanted)
            end = head_size + buffered
            if not self._read(extent.fd, extent.offset, self._buffer[head_size:end]) or (
                buffered < size and not self._is_in_memory(extent, buffered, size)
            ):
                return False
        else:
            end, extent, buffered, size = self._put_head(target, wanted), NO_EXTENT, 0, 0
        if not self._send(transport, fd, self._buffer[:end], extent, buffered, size):
            transport.abort()
        self._count(target.counter, size, perf_counter() - started)
        return True

    def _count(self, counter: RequestCounter, size: int, elapsed_s: float) -> None:
        counter.sent_bytes += size
        counter.total += elapsed_s
        counter.buckets[bisect_left(LATENCY_BOUNDS_S, elapsed_s)] += 1

    def _put_head(self, target: Target, wanted: tuple[int, int, bool]) -> int:
        """Puts the head of an answer into the buffer. Returns its size."""
        first, size, is_range = wanted
        if not is_range:
            head = target.whole_head + self._closing()
        else:
            head = b"%bContent-Length: %d\r\nContent-Range: bytes %d-%d/%d\r\n%b" % (
                target.part_head,
                size,
                first,
                first + size - 1,
                target.size_bytes,
                self._closing(),
            )
        self._buffer[: len(head)] = head
        return len(head)

    def _read(self, fd: int, offset: int, view: memoryview) -> bool:
        """Fills ``view`` without waiting for a disk. Returns False if that is impossible."""
        try:
            return os.preadv(fd, (view,), offset, self._nowait) == len(view)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP and self._nowait:
                self._nowait = 0  # the file system does not support it; read without it
                return self._read(fd, offset, view)
            return False  # not in the page cache (EAGAIN), or an error for the ordinary path

    def _is_in_memory(self, extent: Extent, start: int, size: int) -> bool:
        """Whether samples of the rest of an extent can be read without waiting for a disk."""
        places = (*range(start, size - 1, SAMPLE_STEP_BYTES), size - 1)
        return all(self._read(extent.fd, extent.offset + at, self._sample) for at in places)

    def _send(
        self,
        transport: asyncio.Transport,
        fd: int,
        data: memoryview,
        extent: Extent,
        buffered: int,
        size: int,
    ) -> bool:
        """Sends ``data``, then the extent's bytes from ``buffered`` to ``size``. Returns False if
        the connection is broken or the file has become shorter."""
        try:
            sent = _write_some(fd, data) if fd >= 0 else 0
            if sent < len(data):
                transport.write(bytes(data[sent:]))
            elif buffered < size:
                buffered += _send_some(fd, extent.fd, extent.offset + buffered, size - buffered)
            if buffered < size:
                rest = os.pread(extent.fd, size - buffered, extent.offset + buffered)
                transport.write(rest)
                return len(rest) == size - buffered
        except OSError:
            return False
        return True


def _range_of(plain_get: PlainGet, total: int) -> tuple[int, int]:
    """Returns the first byte and the size to send; the size is not positive if there is none."""
    _, _, first, last = plain_get
    return (0, total) if first < 0 else (first, min(last + 1, total) - first)


def _write_some(fd: int, data: memoryview) -> int:
    """Returns how many bytes the socket took."""
    try:
        return os.write(fd, data)
    except BlockingIOError:
        return 0


def _send_some(fd: int, file_fd: int, offset: int, size: int) -> int:
    """Returns how many bytes of the file the socket took, without a copy in this process."""
    try:
        return os.sendfile(fd, file_fd, offset, size)
    except BlockingIOError:
        return 0
