"""Errors, broken bodies and the end of a server."""

from __future__ import annotations

import asyncio
import gc
import http.client
import weakref
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from lodefs.chunkstore import errors
from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.protocol import wire
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.api.request import Request
from lodefs.proxy.api.response_slots import ResponseSlots
from lodefs.proxy.api.responses import (
    IMMUTABLE,
    OCTETS,
    STATUS_OF,
    file_answer,
    file_headers,
    status_of,
)
from lodefs.proxy.node import SnapshotFile
from lodefs.proxy.runtime.thread_pools import remote_owner
from lodefs.proxy.s3.buckets import S3Settings
from tests.support.proxy.fake_node import DictNode, exchange, start_proxy
from tests.support.proxy.rig import file_of

BIG = bytes(range(256)) * 8192  # 2 MiB
PIECE_SIZE_BYTES = len(BIG) // 2
FILES = {b"big": BIG, b"a": b"hello"}

ALL_ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, LodefsError)
    if kind not in (LodefsError, errors.Renamed)  # what has another name now is read there
]


@pytest.mark.parametrize("kind", ALL_ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_status_and_comes_back_as_itself(kind: type[LodefsError]) -> None:
    """A client gets the class of the error and its words."""
    node = DictNode(FILES)
    node.failures[b"a"] = (0, kind("what happened"))
    with start_proxy(node) as proxy, proxy.client() as client:
        reply = client.get("/files/demo@main/a")
    assert reply.status == status_of(kind("x")) >= 400
    failure = wire.Failure(**reply.json())
    found = wire.error_of(failure)
    assert type(found) is kind
    assert str(found) == "what happened"


def test_the_table_of_statuses() -> None:
    """The statuses that clients rely on."""
    expected = {"NotFound": 404, "NotADirectory": 404, "InvalidInput": 400, "Denied": 403,
                "Unavailable": 503, "DeadlineExceeded": 504, "Corrupt": 502}  # fmt: skip
    assert {kind.__name__: status for kind, status in STATUS_OF.items()}.items() >= expected.items()
    assert status_of(errors.SourceChanged("x")) == 500


@pytest.mark.parametrize("failure", [TimeoutError("internal words"), ZeroDivisionError("secret")])
def test_foreign_errors_say_nothing_of_the_inside(failure: Exception) -> None:
    """A mistake in the proxy is 500, a time limit 504, and the words stay in the log."""
    node = DictNode(FILES)
    node.failures[b"a"] = (0, failure)
    with start_proxy(node) as proxy, proxy.client() as client:
        reply = client.get("/files/demo@main/a")
    assert reply.status == (504 if isinstance(failure, TimeoutError) else 500)
    assert str(failure) not in reply.body.decode()


@pytest.mark.parametrize("failure", [errors.Corrupt("bad chunk"), RuntimeError("oops")])
@pytest.mark.parametrize("asked", [None, "bytes=0-1999999", "bytes=0-9,100-1999999"])
def test_an_error_in_the_middle_breaks_the_connection(
    failure: Exception, asked: str | None
) -> None:
    """A body that cannot be completed never looks complete."""
    node = DictNode(FILES)
    node.failures[b"big"] = (1_000_000, failure)
    with start_proxy(node) as proxy:
        with (
            proxy.client() as client,
            pytest.raises((http.client.IncompleteRead, ConnectionError)),
        ):
            client.get("/files/demo@main/big", **({"Range": asked} if asked else {}))
        assert proxy.server.metrics.broken_bodies == 1
        with proxy.client() as client:
            assert client.get("/files/demo@main/a").body == b"hello"


class ShortNode(DictNode):
    """A node that gives fewer bytes than it was asked for."""

    async def read(
        self, file: SnapshotFile, first: int, size_bytes: int
    ) -> AsyncGenerator[Buffer, None]:
        yield b"x" * (size_bytes // 2)


def test_too_few_bytes_break_the_connection() -> None:
    """Even a node that ends early without an error makes no answer that looks complete."""
    with start_proxy(ShortNode(FILES)) as proxy, proxy.client() as client:
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            client.get("/files/demo@main/big")
        assert proxy.server.metrics.broken_bodies == 1


class ClosingNode(DictNode):
    """A node that counts how many of its reads were ended."""

    ended = 0

    async def read(
        self, file: SnapshotFile, first: int, size_bytes: int
    ) -> AsyncGenerator[Buffer, None]:
        try:
            while True:
                yield BIG
        finally:
            self.ended += 1


def test_a_client_that_goes_ends_its_read() -> None:
    """A read for a client that has gone is ended, and nothing is logged as an error."""
    node = ClosingNode(FILES)
    with start_proxy(node) as proxy:
        with proxy.connect() as connected:
            connected.sendall(b"GET /files/demo@main/big HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connected.recv(1)
        proxy.until(lambda: node.ended == 1)
        proxy.until(lambda: not proxy.server.connections)
        assert proxy.server.metrics.broken_bodies == 0


def test_a_client_that_goes_ends_its_read_of_several_ranges() -> None:
    """When an answer with several ranges is given up, the read that it is at has ended by then, and
    is not left to the collector."""

    async def run() -> None:
        node = ClosingNode(FILES)
        file = await file_of(node, b"big", repo="demo")
        headers = file_headers(file, OCTETS, IMMUTABLE)
        asked = Request("GET", {"Range": "bytes=0-9,20-29"})
        answer = await file_answer(node, file, headers, asked)
        pieces = answer.pieces
        assert pieces is not None
        assert [bytes(answer.first)[:2], await anext(pieces)] == [b"--", BIG]
        await pieces.aclose()
        assert node.ended == 1

    asyncio.run(run())


class WatchedNode(DictNode):
    """A node that can tell whether its pieces are still held by somebody."""

    def __init__(self) -> None:
        super().__init__(FILES)
        self.pieces: list[weakref.ref[memoryview]] = []

    async def read(
        self, file: SnapshotFile, first: int, size_bytes: int
    ) -> AsyncGenerator[Buffer, None]:
        for at in range(first, first + size_bytes, PIECE_SIZE_BYTES):
            piece = memoryview(BIG)[at : at + PIECE_SIZE_BYTES]
            self.pieces.append(weakref.ref(piece))
            yield piece


@pytest.mark.parametrize("last", [len(BIG) - 1, PIECE_SIZE_BYTES - 1], ids=["streamed", "whole"])
def test_a_client_that_goes_leaves_no_bytes_behind(last: int) -> None:
    """What was to be sent to a client that has gone is given up at once, and does not wait for
    the collector of cycles, which comes seldom."""
    node = WatchedNode()
    ask = b"GET /files/demo@main/big HTTP/1.1\r\nHost: x\r\nRange: bytes=0-%d\r\n\r\n" % last
    gc.disable()
    try:
        with start_proxy(node) as proxy:
            with proxy.connect() as connected:
                connected.sendall(ask)
                proxy.until(lambda: any(one.paused_tick >= 0 for one in proxy.server.connections))
            proxy.until(lambda: not proxy.server.connections)
            proxy.until(lambda: not any(piece() for piece in node.pieces))
    finally:
        gc.enable()


def test_pipelined_requests_are_answered_in_order() -> None:
    """Requests that come in one packet get their answers one after the other."""
    ask = b"GET /files/demo@main/%b HTTP/1.1\r\nHost: x\r\nConnection: %b\r\n\r\n"
    data = ask % (b"a", b"keep-alive") + ask % (b"none", b"keep-alive") + ask % (b"a", b"close")
    with start_proxy(DictNode(FILES)) as proxy:
        answer = exchange(proxy.connect(), data)
    statuses = [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 404, 200]


class GatedNode(DictNode):
    """Reads wait in the middle until the gate is opened."""

    def __init__(self) -> None:
        super().__init__(FILES)
        self.gate = asyncio.Event()
        self.begun = 0

    async def read(
        self, file: SnapshotFile, first: int, size_bytes: int
    ) -> AsyncGenerator[Buffer, None]:
        self.begun += 1
        yield BIG[first : first + 1000]
        await self.gate.wait()
        yield BIG[first + 1000 : first + size_bytes]


class NobodyForgotten(ResponseSlots):
    """Who has read once counts as a reader for ever, and an answer keeps its place till its end."""

    def __init__(self) -> None:
        super().__init__(1, held_s_max=3600.0)

    def look(self) -> None:
        """Nobody is forgotten."""


def test_while_two_owners_read_each_has_one_answer_at_a_time() -> None:
    """Of three large answers to two owners one of each is written, but every read begins at once;
    HEAD, and a question that reads no file, wait for nobody; at last all have their bytes."""
    node = GatedNode()
    target = "/files/demo@main/big"
    with (
        start_proxy(node) as proxy,
        ThreadPoolExecutor(3) as pool,
        proxy.client() as first,
        proxy.client() as second,
        proxy.client(tcp=True) as other,
        proxy.client() as asking,
    ):
        places = proxy.server.places = proxy.server.fast_path.places = NobodyForgotten()
        proxy.call(lambda: places.see("5002"))
        answers = [pool.submit(one.get, target, X_Lodefs_User="5001") for one in (first, second)]
        answers.append(pool.submit(other.get, target))
        proxy.until(lambda: node.begun == 3)
        proxy.until(
            lambda: (
                places.owners.is_busy("5001") and places.owners.is_busy(remote_owner("127.0.0.1"))
            )
        )
        assert not proxy.call(lambda: places.owners.enter("5001"))
        assert asking.get("/list/demo@main").status == 200
        assert asking.get(target, method="HEAD").status == 200
        proxy.call(node.gate.set)
        assert [answer.result(60).body for answer in answers] == [BIG] * 3
        proxy.until(lambda: proxy.server.metrics.total("streams") == 0)
        assert not places.owners.is_busy("5001")


def test_who_reads_no_file_makes_nobody_wait() -> None:
    """Health checks, metrics, questions of mounts and requests that are refused, by whomever, leave
    one reading user alone; a second one who reads does not, on the fast path or off it."""
    node = DictNode(FILES, extents=True)
    target = f"/files/demo@{node.commit}/a"
    with start_proxy(node, s3=S3Settings()) as proxy:
        places = proxy.server.places = proxy.server.fast_path.places = NobodyForgotten()
        with proxy.client() as user, proxy.client() as root, proxy.client(tcp=True) as other:
            for _ in range(3):
                assert user.get(target, X_Lodefs_User="5001").status == 200
                for path in ("/healthz", "/metrics", "/cache", "/stat/demo@main", "/files/demo@x/"):
                    root.get(path)
                    other.get(path)
                assert other.get(target, method="HEAD").status == 200
                assert root.get(target).status == 200  # for the node itself
            s3_head = b"HEAD /lodefs/demo@main/a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
            assert b" 200 " in exchange(proxy.connect(tcp=True, s3=True), s3_head)
            assert proxy.server.metrics.fast_answers > 0
            assert not proxy.call(lambda: places.is_shared)
            assert user.get(target, x_lodefs_user="5002").status == 200
            assert user.get(target, x_lodefs_user="5002").status == 200
            assert proxy.call(lambda: places.is_shared)


def test_stopping_lets_running_answers_end() -> None:
    """A stopping server takes no new clients, ends idle ones, and completes what it began."""
    node = GatedNode()
    with (
        start_proxy(node) as proxy,
        ThreadPoolExecutor(1) as pool,
        proxy.client() as client,
        proxy.connect() as idle,
    ):
        waiting = pool.submit(client.get, "/files/demo@main/big")
        proxy.until(lambda: proxy.server.metrics.total("streams") == 1)
        stopped = asyncio.run_coroutine_threadsafe(proxy.server.stop(60), proxy.loop)
        assert idle.recv(1) == b""
        with pytest.raises(ConnectionError):
            proxy.connect(tcp=True)
        proxy.call(node.gate.set)
        assert waiting.result(60).body == BIG
        stopped.result(60)
        assert not proxy.server.connections


def test_stopping_does_not_wait_forever() -> None:
    """An answer that does not end within the time is broken off."""
    node = GatedNode()
    with (
        start_proxy(node) as proxy,
        ThreadPoolExecutor(1) as pool,
        proxy.client() as client,
    ):
        waiting = pool.submit(client.get, "/files/demo@main/big")
        proxy.until(lambda: proxy.server.metrics.total("streams") == 1)
        asyncio.run_coroutine_threadsafe(proxy.server.stop(0.05), proxy.loop).result(60)
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            waiting.result(60)


def report(body: bytes, *, size: int | None = None, method: bytes = b"POST") -> bytes:
    """A request that tells what was used."""
    length = b"Content-Length: %d\r\n" % (len(body) if size is None else size)
    head = b"%b /cache/used HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%b\r\n" % (method, length)
    return head + body


GOOD_REPORT = msgspec.msgpack.encode(wire.UsageReport([7, 9], 3, 4096))


def test_reports_of_use_reach_the_node() -> None:
    """What a program of this machine read from the cache comes in on the Unix socket."""
    node = DictNode({b"a": b"hello"})
    with start_proxy(node) as proxy:
        assert exchange(proxy.connect(), report(GOOD_REPORT)).startswith(b"HTTP/1.1 204 ")
    assert node.reports == [wire.UsageReport([7, 9], 3, 4096)]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (report(b"nonsense"), 400),
        (report(b""), 400),
        (report(msgspec.msgpack.encode([[1], -1, 0])), 400),
        (report(msgspec.msgpack.encode([[-1], 1, 0])), 400),
        (report(msgspec.msgpack.encode([[0] * (wire.USED_NUMBERS_MAX + 1), 1, 0])), 400),
        (report(b"x" * 100, size=wire.USED_BYTES_MAX + 1), 400),
        (report(b"", method=b"GET"), 405),
        (report(GOOD_REPORT, method=b"PUT"), 405),
        (b"POST /cache HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405),
    ],
)
def test_bad_reports_are_refused(request_bytes: bytes, status: int) -> None:
    """What is no report, too long, or not posted, changes nothing."""
    node = DictNode({b"a": b"hello"})
    with start_proxy(node) as proxy:
        answer = exchange(proxy.connect(), request_bytes)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert node.reports == []


def test_the_cache_is_named_on_the_unix_socket_alone() -> None:
    """Other machines hear nothing of it, and cannot report; nor is there one without a cache."""
    node = DictNode({b"a": b"hello"})
    node.place = wire.CachePlace(b"/cache/\xff", 1)
    with start_proxy(node) as proxy:
        with proxy.client() as client:
            found = client.get("/cache")
            assert found.status == 200
            assert msgspec.msgpack.decode(found.body, type=wire.CachePlace) == node.place
        with proxy.client(tcp=True) as client:
            assert client.get("/cache").status == 404
        assert exchange(proxy.connect(tcp=True), report(GOOD_REPORT)).startswith(b"HTTP/1.1 404 ")
        node.place = None
        with proxy.client() as client:
            assert client.get("/cache").status == 404
    assert node.reports == []
