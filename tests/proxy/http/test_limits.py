"""What clients may take, and what happens to those that want more."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from lodefs.chunkstore.types import Buffer
from lodefs.proxy.http.admission import SPARES_MAX, ClientLimits
from lodefs.proxy.http.tokens import create_token
from lodefs.proxy.node import SnapshotFile
from tests.support.proxy.fake_node import DictNode, RunningProxy, exchange, start_proxy

BIG = bytes(range(256)) * 65536  # 16 MiB: more than sockets hold
FILES = {b"big": BIG, b"a": b"hello"}


class GatedNode(DictNode):
    """Reads wait until the gate is opened on the server's event loop."""

    def __init__(self) -> None:
        super().__init__(FILES)
        self.gate = asyncio.Event()

    async def read(
        self, file: SnapshotFile, first: int, size_bytes: int
    ) -> AsyncGenerator[Buffer, None]:
        await self.gate.wait()
        async for piece in super().read(file, first, size_bytes):
            yield piece


def sweep(proxy: RunningProxy, times: int) -> None:
    """So many seconds of the server's housekeeping, at once."""
    for _ in range(times):
        proxy.call(proxy.server.sweep)


def test_too_many_connections_are_told() -> None:
    """The client beyond the limit gets 503 while all others are busy; when one of them leaves there
    is room again."""
    node = GatedNode()
    with (
        start_proxy(node, limits=ClientLimits(connections_max=1)) as proxy,
        ThreadPoolExecutor(1) as pool,
    ):
        with proxy.client() as first:
            waiting = pool.submit(first.get, "/files/demo@main/a")
            proxy.until(lambda: proxy.server.metrics.total("streams") == 1)
            refused = exchange(
                proxy.connect(), b"GET /stat/demo@main/a HTTP/1.1\r\nHost: x\r\n\r\n"
            )
            assert refused.startswith(b"HTTP/1.1 503 ")
            head, _, body = refused.partition(b"\r\n\r\n")
            assert f"\r\nContent-Length: {len(body)}".encode() in head
            assert b"Retry-After: " in head
            proxy.call(node.gate.set)
            assert waiting.result(60).body == b"hello"
        proxy.until(lambda: not proxy.server.connections)
        with proxy.client() as second:
            assert second.get("/healthz").status == 200
        assert proxy.server.metrics.total("connections_refused") == 1


def test_a_scrape_of_a_full_proxy() -> None:
    """Who looks what is the matter is answered where all are busy, whoever else hangs about; but
    nobody gets data so, also not by the hot path."""
    node = GatedNode()
    with (
        start_proxy(node, limits=ClientLimits(connections_max=1)) as proxy,
        ThreadPoolExecutor(1) as pool,
        proxy.client() as first,
        ExitStack() as silent,
    ):
        target = f"/files/demo@{node.commit}/a"
        proxy.call(node.gate.set)
        assert first.get(target).body == b"hello"
        proxy.call(node.gate.clear)
        waiting = pool.submit(first.get, "/files/demo@main/a")
        proxy.until(lambda: proxy.server.metrics.total("streams") == 1)
        for _ in range(3 * SPARES_MAX):
            silent.enter_context(proxy.connect())
        with proxy.client() as looking:
            for path in ("/metrics", "/healthz", "/metrics"):
                assert looking.get(path).status == 200
            refused = looking.get(target)
        assert (refused.status, refused.header("Connection")) == (503, "close")
        assert refused.header("Retry-After")
        connections = proxy.call(lambda: proxy.server.metrics.total("connections"))
        assert connections <= 1 + SPARES_MAX
        proxy.call(node.gate.set)
        assert waiting.result(60).body == b"hello"


def test_a_full_door_lets_the_longest_idle_client_go(tmp_path: Path) -> None:
    """A client that comes when all is taken replaces the one that was idle for longest: one that
    showed no token, where there is one."""
    tokens_file = tmp_path / "tokens.json"
    token = {"Authorization": f"Bearer {create_token(tokens_file, 'one', ['*'], now_s=1)}"}
    with (
        start_proxy(
            DictNode(FILES), limits=ClientLimits(connections_max=3), tokens_file=tokens_file
        ) as proxy,
        proxy.client(tcp=True) as known,
        proxy.client(tcp=True) as older,
        proxy.client(tcp=True) as newer,
    ):
        assert known.get("/files/demo@main/a", **token).body == b"hello"
        for stranger in (older, newer, older):
            assert stranger.get("/healthz").status == 200
        with proxy.client(tcp=True) as another:
            assert another.get("/files/demo@main/a", **token).body == b"hello"
        for stays in (known, older):
            assert stays.get("/healthz").status == 200
        with pytest.raises(ConnectionError):
            newer.get("/healthz")
        assert proxy.server.metrics.endpoint("tcp").connections_refused == 0


def test_a_door_takes_no_room_from_another() -> None:
    """While TCP has all connections and requests that it may have, the Unix socket answers."""
    node = GatedNode()
    with (
        start_proxy(node, limits=ClientLimits(connections_max=2, streams_max=1)) as proxy,
        ThreadPoolExecutor(2) as pool,
        proxy.client(tcp=True) as first,
        proxy.client(tcp=True) as second,
        proxy.client() as local,
    ):
        waiting = pool.submit(first.get, "/files/demo@main/a")
        proxy.until(lambda: proxy.server.metrics.total("streams") == 1)
        assert second.get("/stat/demo@main/a").status == 503
        assert local.get("/stat/demo@main/a").status == 200
        found = local.get("/metrics").body.decode()
        proxy.call(node.gate.set)
        assert waiting.result(60).body == b"hello"
    assert 'lodefs_http_streams_refused_total{listener="tcp"} 1\n' in found
    assert 'lodefs_http_streams_refused_total{listener="unix"} 0\n' in found
    assert 'lodefs_http_connections{listener="tcp"} 2\n' in found
    assert 'lodefs_http_connections{listener="unix"} 1\n' in found


def test_too_many_requests_at_once_are_told() -> None:
    """Beyond the limit of streams the answer is 503, but the proxy still says that it lives."""
    node = GatedNode()
    with (
        start_proxy(node, limits=ClientLimits(streams_max=1)) as proxy,
        ThreadPoolExecutor(1) as pool,
        proxy.client() as slow,
        proxy.client() as other,
    ):
        waiting = pool.submit(slow.get, "/files/demo@main/a")
        proxy.until(lambda: proxy.server.metrics.total("streams") == 1)
        refused = other.get("/stat/demo@main/a")
        assert (refused.status, refused.json()["error"]) == (503, "Unavailable")
        assert refused.header("Retry-After")
        assert other.get("/healthz").status == 200
        proxy.call(node.gate.set)
        assert waiting.result(60).body == b"hello"
        assert other.get("/stat/demo@main/a").status == 200


def test_an_idle_client_is_cut() -> None:
    """A connection on which nothing is asked is ended, and so is one that sends half a request
    and then a byte now and then."""
    limits = ClientLimits(idle_timeout_s=100)
    with (
        start_proxy(DictNode(FILES), limits=limits) as proxy,
        proxy.connect() as silent,
        proxy.connect() as dripping,
        proxy.client() as alive,
    ):
        proxy.until(lambda: len(proxy.server.connections) == 3)
        sweep(proxy, 90)
        dripping.sendall(b"GET /healthz HTTP/1.1\r\nX-A: ")
        assert alive.get("/healthz").status == 200
        proxy.until(lambda: all(one.idle for one in proxy.server.connections))
        sweep(proxy, 20)
        proxy.until(lambda: len(proxy.server.connections) == 1)
        assert is_ended(silent)
        assert is_ended(dripping)
        assert alive.get("/healthz").status == 200


def test_a_client_without_a_token_is_cut_early(tmp_path: Path) -> None:
    """Over TCP, who asked for nothing that he may have is cut long before others; on the Unix
    socket everybody has the whole time."""
    tokens_file = tmp_path / "tokens.json"
    token = {"Authorization": f"Bearer {create_token(tokens_file, 'one', ['*'], now_s=1)}"}
    limits = ClientLimits(idle_timeout_s=100, first_timeout_s=10)
    with (
        start_proxy(DictNode(FILES), limits=limits, tokens_file=tokens_file) as proxy,
        proxy.connect(tcp=True) as silent,
        proxy.client(tcp=True) as unknown,
        proxy.client(tcp=True) as known,
        proxy.client() as local,
    ):
        assert unknown.get("/files/demo@main/a").status == 401
        assert known.get("/files/demo@main/a", **token).body == b"hello"
        assert local.get("/healthz").status == 200
        proxy.until(lambda: len(proxy.server.connections) == 4)
        proxy.until(lambda: all(one.idle for one in proxy.server.connections))
        sweep(proxy, 12)
        proxy.until(lambda: len(proxy.server.connections) == 2)
        assert is_ended(silent)
        assert known.get("/files/demo@main/a", **token).body == b"hello"
        assert local.get("/healthz").status == 200


def test_a_head_that_does_not_end_is_refused() -> None:
    """Headers that are each short enough, and together more than a client may have, end the
    connection before the last has come."""
    with start_proxy(DictNode(FILES)) as proxy:
        line = b"X: " + b"y" * 8000 + b"\r\n"
        answer = exchange(proxy.connect(), b"GET /healthz HTTP/1.1\r\n" + line * 20)
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_a_head_that_does_not_end_behind_a_request_ends_both() -> None:
    """While the answer to one request is made, the head of the next one has its bound too; nothing
    but that answer's bytes comes before the connection's end."""
    line = b"X: " + b"y" * 8000 + b"\r\n"
    with start_proxy(GatedNode()) as proxy:
        connected = proxy.connect()
        connected.sendall(b"GET /files/demo@main/a HTTP/1.1\r\nHost: x\r\n\r\n")
        proxy.until(lambda: proxy.server.metrics.total("streams") == 1)
        for part in (b"GET /healthz HTTP/1.1\r\n", *[line] * 20):
            try:
                connected.sendall(part)
            except ConnectionError:
                break
        assert drained(connected) == b""
        connected.close()
        proxy.until(lambda: not proxy.server.connections)


def test_a_request_being_answered_is_not_idle() -> None:
    """However long the store takes, its reader is not cut as idle."""
    node = GatedNode()
    with (
        start_proxy(node, limits=ClientLimits(idle_timeout_s=10)) as proxy,
        ThreadPoolExecutor(1) as pool,
        proxy.client() as client,
    ):
        waiting = pool.submit(client.get, "/files/demo@main/a")
        proxy.until(lambda: proxy.server.metrics.total("streams") == 1)
        sweep(proxy, 50)
        proxy.call(node.gate.set)
        assert waiting.result(60).body == b"hello"


@pytest.mark.parametrize("hot", [False, True])
def test_a_client_that_does_not_read_is_cut(hot: bool) -> None:
    """Bytes wait for a slow reader only so long; then its connection is broken, and it can tell
    that the body is not complete."""
    node = DictNode(FILES, extents=hot)
    try:
        with start_proxy(node, limits=ClientLimits(write_timeout_s=100)) as proxy:
            with proxy.connect() as connected:
                asked = b"GET /files/demo@%b/big HTTP/1.1\r\nHost: x\r\n" % node.commit.encode()
                if hot:
                    asked += b"Range: bytes=0-1048575\r\n"
                for _ in range(3):
                    connected.sendall(asked + b"\r\n")
                proxy.until(lambda: any(c.paused_tick >= 0 for c in proxy.server.connections))
                sweep(proxy, 90)
                assert len(proxy.server.connections) == 1
                sweep(proxy, 20)
                proxy.until(lambda: not proxy.server.connections)
                assert len(drained(connected)) < (3 << 20 if hot else len(BIG))
            assert proxy.server.metrics.total("connections_cut") == 1
            assert proxy.server.fast_path.unsent_connections == 0
    finally:
        node.close()


def test_memory_for_a_slow_reader_is_bounded() -> None:
    """Of a long answer only a little waits in the process while the client does not read."""
    with start_proxy(DictNode(FILES)) as proxy, proxy.connect() as connected:
        connected.sendall(b"GET /files/demo@main/big HTTP/1.1\r\nHost: x\r\n\r\n")
        proxy.until(lambda: any(c.paused_tick >= 0 for c in proxy.server.connections))
        waiting = proxy.call(
            lambda: [
                c.transport.get_write_buffer_size()
                for c in proxy.server.connections
                if c.transport is not None
            ]
        )
        assert max(waiting) <= 1 << 20


def test_a_listing_that_is_not_read_counts_as_a_stream() -> None:
    """Answers of one piece are bounded as streams are: while their clients do not read them, one
    more is refused, and when they have been read there is room again."""
    node = DictNode({b"%03d" % n + b"n" * 250: b"" for n in range(900)})
    target = "/list/demo@main?limit=4096"
    with start_proxy(node, limits=ClientLimits(streams_max=2)) as proxy:
        slow = [proxy.connect(), proxy.connect()]
        for connected in slow:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connected.sendall(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % target.encode())
        proxy.until(lambda: sum(c.paused_tick >= 0 for c in proxy.server.connections) == 2)
        with proxy.client() as client:
            assert client.get(target).status == 503
            for connected in slow:
                while not proxy.call(lambda: proxy.server.metrics.total("streams") < 2):
                    connected.recv(65536)
                connected.close()
            proxy.until(lambda: proxy.server.metrics.total("streams") == 0)
            assert client.get(target).status == 200


def drained(connected: socket.socket) -> bytes:
    """What can still be read."""
    received = bytearray()
    try:
        while piece := connected.recv(65536):
            received += piece
    except ConnectionError:
        pass
    return bytes(received)


def is_ended(connected: socket.socket) -> bool:
    """Whether the other side has ended the connection without a word."""
    return drained(connected) == b""


HOST = b"Host: x\r\n"
LAST = HOST + b"Connection: close\r\n"
SIZE = HOST + b"Content-Length: "
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "statuses"),
    [
        (b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", (400, 414, 431)),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 10_000 + b"\r\n\r\n", (400, 431)),
        (b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", (400, 431)),
        (b"GET /healthz HTTP/1.1\r\n" + b"a" * 10_000, (400, 431)),
        (b"nonsense\r\n\r\n", (400,)),
        (b"GET\r\n\r\n", (400,)),
        (b"BREW /pot HTTP/1.1\r\n" + HOST + b"\r\n", (400, 405)),
        (b"GET /healthz HTTP/9.9\r\n\r\n", (400, 505)),
        (b"GET /healthz HTTP/1.1\r\nno colon\r\n\r\n", (400,)),
        (b"GET /healthz HTTP/1.1\r\nA: b\x00c\r\n\r\n", (400,)),
        (b"GET /files/demo@main/a\x00b HTTP/1.1\r\n" + HOST + b"\r\n", (400,)),
        (b"GET /files/demo@main/../../etc/passwd HTTP/1.1\r\n" + LAST + b"\r\n", (400,)),
        (b"GET /files/demo@main/%2e%2e/x HTTP/1.1\r\n" + LAST + b"\r\n", (400,)),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", (400,)),
        (b"POST /files/demo@main/a HTTP/1.1\r\n" + SIZE + b"5\r\n\r\nhello", (400,)),
        (b"GET /healthz HTTP/1.1\r\n" + SIZE + b"99999999999\r\n\r\n", (400,)),
        (b"GET /healthz HTTP/1.1\r\n" + SIZE + b"-1\r\n\r\n", (400,)),
        (
            b"GET /healthz HTTP/1.1\r\n" + HOST + CHUNKED + b"5\r\nhello\r\n",
            (400,),
        ),
        (
            b"GET /healthz HTTP/1.1\r\n" + SIZE + b"5\r\n" + CHUNKED + b"0\r\n\r\n",
            (400,),
        ),
    ],
)  # fmt: skip
def test_malformed_requests_are_refused(data: bytes, statuses: tuple[int, ...]) -> None:
    """What is no good HTTP, or too long, or has a body, gets a 4xx and the connection ends; the
    server serves on."""
    with start_proxy(DictNode(FILES)) as proxy:
        answer = exchange(proxy.connect(), data)  # 10,000 bytes arrive there in one piece
        assert int(answer.split(b" ", 2)[1]) in statuses, answer[:300]
        assert b'"error":"InvalidInput"' in answer
        with proxy.client() as client:
            assert client.get("/files/demo@main/a").body == b"hello"


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_not_allowed(method: str) -> None:
    """Everything is read-only."""
    with start_proxy(DictNode(FILES)) as proxy, proxy.client() as client:
        reply = client.get("/files/demo@main/a", method=method)
        assert (reply.status, reply.header("Allow")) == (405, "GET, HEAD")


def test_http_1_0_is_answered(tmp_path: Path) -> None:
    """An old client gets its file, and the connection ends."""
    with start_proxy(DictNode(FILES)) as proxy:
        answer = exchange(proxy.connect(), b"GET /files/demo@main/a HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nhello")
