"""Reads entries and bytes of one snapshot from the proxy, with retries until a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import Protocol, TypeVar
from urllib.parse import quote_from_bytes

import msgspec

from lodefs.chunkstore.errors import (
    Corrupt,
    DeadlineExceeded,
    InvalidInput,
    LodefsError,
    NotFound,
    Unavailable,
    UnknownFormat,
)
from lodefs.chunkstore.format.decoding import from_json, from_msgpack
from lodefs.chunkstore.protocol import wire
from lodefs.chunkstore.protocol.connection import Address, Connection, Response, header
from lodefs.chunkstore.protocol.trace_context import TraceContext
from lodefs.chunkstore.system.retry_policy import steady
from lodefs.chunkstore.types import Buffer

PAUSES = steady(0.01, 0.2)  # between attempts, until the deadline
UNMET_S_MAX = 5.0  # without a request that fails, an outage is over
SHARED_S = 0.25  # for another thread's answer; then a thread asks by itself

_STORE, _PEERS = wire.Origin.STORE.encode(), wire.Origin.PEERS.encode()
T = TypeVar("T")


class WaitTimes:
    """Seconds that one thread waited since ``clear``: for the proxy while it fetched from the store
    or from peers, for the proxy alone, and for the cache's disk."""

    __slots__ = ("disk_s", "peers_s", "proxy_s", "store_s")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Resets all, for a new request."""
        self.store_s = self.peers_s = self.proxy_s = self.disk_s = 0.0

    @property
    def is_any(self) -> bool:
        """Whether the thread has waited for anything."""
        return bool(self.proxy_s or self.store_s or self.disk_s or self.peers_s)

    def for_proxy(self, origin: bytes, elapsed_s: float) -> None:
        """Adds an answer of the proxy. ``origin`` is the value of ORIGIN_HEADER, or b""."""
        if origin == _STORE:
            self.store_s += elapsed_s
        elif origin == _PEERS:
            self.peers_s += elapsed_s
        else:
            self.proxy_s += elapsed_s

    def for_disk(self, elapsed_s: float) -> None:
        """Adds a read from the disk."""
        self.disk_s += elapsed_s


class Clock(Protocol):
    """Measures time and waits: the module ``time``, or a test's clock."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


class Outage:
    """Records since when the proxy cannot be reached. The clients of one process share it.

    Once the proxy has been gone for as long as a request may take, further requests try once and
    fail at once, so that a hundred waiting readers do not take a hundred times as long.
    """

    def __init__(self) -> None:
        self.since_s: float | None = None
        self._met_s = 0.0

    def began(self, now_s: float) -> float:
        """Returns since when the proxy is gone: ``now_s``, unless it was gone before. If no request
        has met that for UNMET_S_MAX, the proxy may have been back: then this outage is new."""
        if self.since_s is None or now_s - self._met_s > UNMET_S_MAX:
            self.since_s = now_s
        self._met_s = now_s
        return self.since_s


class AwaitedAnswer:
    """An answer that one thread has asked for, and others wait for. ``came`` is set when it has
    come, or failed. ``origin`` is the value of its ORIGIN_HEADER."""

    __slots__ = ("came", "origin")

    def __init__(self) -> None:
        self.came = Event()
        self.origin = b""


class Client:
    """Sends the requests of one thread. All methods raise errors.py's classes, and end by the
    deadline.

    ``timeout_s`` bounds each request with its retries; after ``begin``, all requests until the next
    ``begin``. ``before_blocking`` is called before anything that may take long, ``count`` with the
    bytes of files that came or whose extents were reported. ``waited`` has the wait times since
    ``begin``.
    """

    def __init__(
        self,
        address: Address,
        *,
        token: str | None = None,
        timeout_s: float,
        outage: Outage | None = None,
        before_blocking: Callable[[], None] = lambda: None,
        count: Callable[[bytes, int], None] = lambda _origin, _size_bytes: None,
        clock: Clock = time,
    ) -> None:
        self._connection = Connection(address, clock=clock.monotonic)
        self._timeout_s = timeout_s
        self._outage = outage or Outage()
        self._on_slow = before_blocking
        self._user: Callable[[], int] | None = None
        self._count = count
        self._clock = clock.monotonic
        self._sleep = clock.sleep
        self._deadline_s: float | None = None
        self._cancelled = False
        self.waited = WaitTimes()
        self.origin = b""  # of the last answer that came, or was waited for
        self._tail = b" HTTP/1.1\r\nHost: lodefs\r\n"
        if token is not None:
            self._tail += b"Authorization: Bearer %b\r\n" % token.encode("ascii")
        self._nodes = b""
        self._commit = b""

    def mounted(self, snapshot: wire.Snapshot) -> Client:
        """Returns this client, from now on for the entries of ``snapshot``."""
        self._nodes = f"GET {wire.NODES}{wire.target(snapshot.repo, snapshot.commit)}/".encode()
        self._commit = snapshot.commit.encode()
        return self

    def traced(self, trace: TraceContext | None) -> Client:
        """Returns this client, from now on for a trace; None changes nothing."""
        if trace is not None:
            self._tail += trace.lines
        return self

    def for_user(self, user: Callable[[], int]) -> Client:
        """Returns this client, which from now on says for which user it asks; the proxy believes
        root. 0: for no particular user."""
        self._user = user
        return self

    def begin(self, waited_s: float = 0.0) -> None:
        """Starts the time for the next requests together, now or ``waited_s`` ago."""
        self._deadline_s = self._clock() + self._timeout_s - waited_s
        self._cancelled = False
        self.waited.clear()

    def cancel(self) -> None:
        """Ends the current requests soon, since their caller has left. Any thread may call it."""
        self._cancelled = True
        self._connection.cancel()

    def wait_for(self, answer: AwaitedAnswer) -> None:
        """Waits for an answer that another thread has asked for, but not longer than SHARED_S."""
        start_s = self._clock()
        self._on_slow()
        answer.came.wait(SHARED_S)
        self.origin = answer.origin
        self.waited.for_proxy(answer.origin, self._clock() - start_s)

    def close(self) -> None:
        """Drops the connection."""
        self._connection.close()

    def scratch(self, size_bytes: int) -> memoryview:
        """Returns memory for bytes from elsewhere, valid until the next request, so that a thread
        needs no second buffer."""
        return self._connection.scratch(size_bytes)

    def cache_place(self) -> wire.CachePlace:
        """Returns where the node's cache lies. Raises: NotFound if the proxy does not say."""
        return self._get(b"GET %b" % wire.CACHE.encode(), wire.CachePlace)

    def report(self, used: wire.UsageReport) -> None:
        """Reports to the proxy what was read from its cache. After a lost answer the report is sent
        again, and may count twice."""
        body = msgspec.msgpack.encode(used)
        headers = b"Content-Type: %b\r\nContent-Length: %d\r\n" % (wire.MSGPACK.encode(), len(body))
        answer = self._ask(b"POST %b" % wire.CACHE_USED.encode(), headers, body=body)
        if answer.status != 204:
            raise _unexpected(answer)

    def snapshot(self, repo: str, rev: str) -> wire.Snapshot:
        """Returns the current commit of a branch, tag, commit or prefix. Raises: NotFound."""
        path = f"{wire.SNAPSHOTS}{wire.target(repo, rev)}"
        accept = b"Accept: %b\r\n" % wire.MSGPACK.encode()  # without it, this path answers JSON
        return _decode(self._ask(b"GET " + path.encode(), accept), wire.Snapshot)

    def node(self, ino: int) -> wire.Entry:
        """Returns the entry with an inode number. Raises: NotFound if the proxy does not know
        it."""
        return self._get(b"%b%d" % (self._nodes, ino), wire.Entry)

    def lookup(self, parent_ino: int, name: bytes) -> wire.Entry:
        """Returns the child of a directory. Raises: NotFound only if the directory certainly has no
        such child; NotADirectory.

        A proxy that no longer knows the snapshot answers 404, too, and the kernel would remember
        that forever. So the answer must name the commit, or the proxy must still know the
        directory.
        """
        quoted = quote_from_bytes(name, safe="").encode()
        request = b"%b%d/lookup?name=%b" % (self._nodes, parent_ino, quoted)
        answer = self._ask(request)
        if answer.status == 404:
            error = _failure(answer)
            if header(answer.head, _COMMIT_HEADER) != self._commit:
                try:
                    self.node(parent_ino)
                except NotFound as lost:
                    raise Unavailable("the proxy no longer knows the snapshot") from lost
            raise error
        return _decode(answer, wire.Entry)

    def children(self, ino: int, after: bytes, limit: int) -> wire.Page:
        """Returns at most ``limit`` children whose names sort after ``after``. Raises:
        NotADirectory."""
        quoted = quote_from_bytes(after, safe="").encode()
        request = b"%b%d/children?after=%b&limit=%d" % (self._nodes, ino, quoted, limit)
        return self._get(request, wire.Page)

    def read(self, ino: int, first: int, size_bytes: int) -> Buffer:
        """Returns bytes of a file, fewer only at its end; valid until the next request."""
        if size_bytes < 1:
            return b""
        request = b"%b%d/data" % (self._nodes, ino)
        last = first + size_bytes - 1
        answer = self._ask(request, b"Range: bytes=%d-%d\r\n" % (first, last), size_bytes)
        if answer.status == 206:
            body = self._checked(answer, first, size_bytes)
            origin = header(answer.head, _ORIGIN_HEADER)
            self._count(origin, len(body))
            return body
        if answer.status == 416:
            return b""
        raise _unexpected(answer)

    def file_range(self, repo: str, rev: str, path: bytes, first: int, size_bytes: int) -> Buffer:
        """Returns bytes of the file at a path, fewer only at its end; valid until the next
        request."""
        target = wire.file_path(wire.FILES, repo, rev, path).encode()
        wanted = b"Range: bytes=%d-%d\r\n" % (first, first + size_bytes - 1)
        answer = self._ask(b"GET %b" % target, wanted, size_bytes)
        if answer.status != 206:
            raise _unexpected(answer)
        return self._checked(answer, first, size_bytes)

    def tree(self, repo: str, rev: str, path: bytes) -> Buffer:
        """Returns the stored form of the directory at a path; valid until the next request."""
        target = wire.file_path(wire.TREES, repo, rev, path).encode()
        answer = self._ask(b"GET %b" % target)
        if answer.status != 200:
            raise _unexpected(answer)
        return answer.body

    def locate(self, ino: int, first: int, size_bytes: int) -> list[wire.CacheExtent] | Buffer:
        """Returns extents of the cache with the bytes of a file from ``first`` on, in order,
        perhaps fewer or more than asked for. If the proxy does not give extents, returns the bytes,
        as ``read`` does."""
        request = b"%b%d/data" % (self._nodes, ino)
        wanted = b"Range: bytes=%d-%d\r\n" % (first, first + size_bytes - 1)
        answer = self._ask(request, wanted + _PLACES_LINE, size_bytes)
        if answer.status == 206:
            body = self._checked(answer, first, size_bytes)
            self._count(header(answer.head, _ORIGIN_HEADER), len(body))
            return body
        if answer.status == 416:
            return b""
        places, at = _places(answer), first
        for place in places:
            if place.first != at or place.size_bytes < 1:
                raise Unavailable("the proxy answered with an extent of other bytes")
            at += place.size_bytes
        if not places:
            raise Unavailable("the proxy answered with no extents")
        self._count(header(answer.head, _ORIGIN_HEADER), min(size_bytes, at - first))
        return places

    def _checked(self, answer: Response, first: int, size_bytes: int) -> memoryview:
        """Returns the body if it is the range that was asked for, or its part up to the file's
        end."""
        unit, _, rest = header(answer.head, b"content-range").partition(b" ")
        span, _, whole = rest.partition(b"/")
        count = len(answer.body)
        if unit != b"bytes" or span != b"%d-%d" % (first, first + count - 1):
            raise Unavailable(f"the proxy answered with another range: {rest!r}")
        if count > size_bytes or (count < size_bytes and whole != b"%d" % (first + count)):
            raise Unavailable(f"the proxy answered with {count} bytes instead of {size_bytes}")
        return answer.body

    def _get(self, line: bytes, kind: type[T]) -> T:
        return _decode(self._ask(line), kind)

    def _ask(
        self, line: bytes, headers: bytes = b"", body_bytes: int = 0, *, body: bytes = b""
    ) -> Response:
        """Returns the answer to a request. It retries after lost connections and statuses that ask
        to try later. ``body_bytes`` is the expected size of the body."""
        if self._user is not None and (uid := self._user()):
            headers += b"%b: %d\r\n" % (_USER_HEADER, uid)
        request = b"%b%b%b\r\n%b" % (line, self._tail, headers, body)
        start_s = self._clock()
        origin = b""
        try:
            answer = self._repeated(request, start_s, body_bytes)
            self.origin = origin = header(answer.head, _ORIGIN_HEADER)
            return answer
        finally:
            self.waited.for_proxy(origin, self._clock() - start_s)

    def _repeated(self, request: bytes, start_s: float, body_bytes: int) -> Response:
        connection = self._connection
        deadline_s = self._deadline_s or start_s + self._timeout_s
        failed = 0
        while True:
            reused = connection.used
            try:
                if self._cancelled:
                    raise DeadlineExceeded("the request was cancelled")
                answer = connection.ask(request, deadline_s, self._on_slow, body_bytes)
                self._outage.since_s = None
                if answer.status not in (429, 502, 503):
                    return answer
                failure: LodefsError = _failure(answer)
                if isinstance(failure, Corrupt | UnknownFormat):  # and not a gateway's 502
                    return answer  # the proxy has read it twice already
                if isinstance(failure, Unavailable) and failure.lasting_s:
                    gone_s = self._clock() - failure.lasting_s  # as for a proxy that is gone
                    deadline_s = min(deadline_s, gone_s + self._timeout_s)
            except DeadlineExceeded:
                raise
            except Unavailable as error:
                failure = error
                if self._cancelled:
                    raise
                if reused:
                    continue  # the proxy closed an idle connection, or was restarted
                deadline_s = min(deadline_s, self._outage.began(self._clock()) + self._timeout_s)
            failed += 1
            pause_s = PAUSES.pause_s(failed)
            if self._cancelled or self._clock() + pause_s >= deadline_s:
                raise failure
            self._on_slow()
            self._sleep(pause_s)


_COMMIT_HEADER = wire.COMMIT_HEADER.lower().encode()
_USER_HEADER = wire.USER_HEADER.encode()
_PLACES_LINE = f"{wire.PLACE_HEADER}: {wire.ALL_PLACES}\r\n".encode()
_ORIGIN_HEADER = wire.ORIGIN_HEADER.lower().encode()


def _decode(answer: Response, kind: type[T]) -> T:
    if answer.status != 200:
        raise _unexpected(answer)
    try:
        return from_msgpack(answer.body, kind)
    except InvalidInput as error:
        raise Unavailable(f"the proxy's answer is not a {kind.__name__}: {error}") from error


def _places(answer: Response) -> list[wire.CacheExtent]:
    """Returns the extents in an answer. A proxy that does not know ALL_PLACES answers with one."""
    if header(answer.head, wire.PLACE_HEADER.lower().encode()):
        return _decode(answer, list[wire.CacheExtent])
    return [_decode(answer, wire.CacheExtent)]


def _unexpected(answer: Response) -> LodefsError:
    return (
        _failure(answer)
        if answer.status >= 400
        else Unavailable(f"the proxy answered with the unexpected status {answer.status}")
    )


def _failure(answer: Response) -> LodefsError:
    """Returns the error that an answer of 400 or more stands for."""
    try:
        return wire.error_of(from_json(answer.body, wire.Failure))
    except InvalidInput:
        if answer.status == 404:
            return NotFound("the proxy answered with status 404 and no reason")
        return Unavailable(f"the proxy answered with status {answer.status} and no reason")
