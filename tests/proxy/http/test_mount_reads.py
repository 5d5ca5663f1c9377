"""Reads of mounts are answered without aiohttp once one like them was, and in the same words."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from lodefs.chunkstore.errors import Corrupt, Unavailable
from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.chunkstore.protocol.wire import ALL_PLACES, PLACE_HEADER, CacheExtent, Origin
from lodefs.proxy.http.admission import ClientLimits
from lodefs.proxy.http.server import EndpointServer
from lodefs.proxy.node import Located, SnapshotFile
from tests.support.proxy.fake_node import (
    Client,
    DictNode,
    GeneratedStream,
    Reply,
    RunningProxy,
    exchange,
    start_proxy,
)

BLOCK = 4096
BIG = os.urandom(32 * BLOCK)
FILES = {b"big.bin": BIG, b"bad.bin": BIG}


class PlacesNode(DictNode):
    """The cache has every other block, and the store sends the others."""

    def __init__(self) -> None:
        super().__init__(FILES, piece_size_bytes=BLOCK)
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.begun = 0
        self.failure: Exception | None = None

    async def locate(
        self, file: SnapshotFile, first: int, size_bytes: int
    ) -> GeneratedStream | Located:
        """See proxy.node.Files."""
        self.begun += 1
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        if first // BLOCK % 2:
            stream = await self.open(file, first, size_bytes)
            stream.origin = Origin.STORE
            return stream
        place = CacheExtent(7, b"", first, first, BLOCK, file.entry.size_bytes)
        return Located(place, Origin.PEERS)


NODE = PlacesNode()
TARGET = f"/nodes/demo@{NODE.commit}/{child_ino(ROOT_INO, b'big.bin')}/data"
PLACES = {PLACE_HEADER: ALL_PLACES}


@pytest.fixture
def node() -> PlacesNode:
    return PlacesNode()


@pytest.fixture
def proxy(node: PlacesNode) -> Iterator[RunningProxy]:
    with start_proxy(node) as running:
        yield running


def ordinary(proxy: RunningProxy) -> int:
    """The number of requests that aiohttp has seen, once it waits on all connections."""
    proxy.until(lambda: all(one.idle for one in proxy.server.connections))
    return proxy.call(lambda: sum(served.requests_count for served in endpoints(proxy)))


def endpoints(proxy: RunningProxy) -> list[EndpointServer]:
    return proxy.server._endpoints


def warmed(client: Client, **headers: str) -> Client:
    """Asks once, so that the next request is known."""
    client.get(TARGET, Range="bytes=0-9", **PLACES, **headers)
    return client


def plain(reply: Reply) -> tuple[int, list[tuple[str, str]], bytes]:
    """An answer without the time and the order of its headers."""
    headers = sorted(one for one in reply.headers if one[0] not in ("Date", "X-Request-Id"))
    return reply.status, headers, reply.body


@pytest.mark.parametrize(
    "asked",
    ["0-4095", "0-0", "4096-8191", "4096-20000", f"{len(BIG) - 10}-{len(BIG) + 10}", "8192-8292"],
)
def test_an_answer_equals_the_ordinary_one(
    proxy: RunningProxy, node: PlacesNode, asked: str
) -> None:
    """The answers of both paths have the same status, headers and bytes, and aiohttp sees no second
    request."""
    with (
        start_proxy(PlacesNode(), hot_path=False) as slow,
        warmed(proxy.client()) as short,
        warmed(slow.client()) as long,
    ):
        seen = ordinary(proxy)
        got = short.get(TARGET, Range=f"bytes={asked}", **PLACES)
        assert ordinary(proxy) == seen
        assert plain(got) == plain(long.get(TARGET, Range=f"bytes={asked}", **PLACES))
        assert got.header("Date")
        assert proxy.requests("data") == slow.requests("data") == 2


@pytest.mark.parametrize("failure", [Unavailable("gone"), Corrupt("wrong"), ValueError("a fault")])
def test_a_failure_has_the_ordinary_status(
    proxy: RunningProxy, node: PlacesNode, failure: Exception
) -> None:
    """Errors become the same statuses, and the connection goes on as it would."""
    slow_node = PlacesNode()
    with (
        start_proxy(slow_node, hot_path=False) as slow,
        warmed(proxy.client()) as short,
        warmed(slow.client()) as long,
    ):
        node.failure = slow_node.failure = failure
        seen = ordinary(proxy)
        got, expected = (one.get(TARGET, Range="bytes=0-9", **PLACES) for one in (short, long))
        assert ordinary(proxy) == seen
        assert got.status == expected.status >= 500
        assert [one for one, _ in sorted(got.headers)] == [
            one for one, _ in sorted(expected.headers)
        ]


@pytest.mark.parametrize(
    "headers", [{"If-Match": '"x"'}, {"X-Request-Id": "mine"}, {"Accept": "*/*"}]
)
def test_a_request_with_other_headers_goes_the_ordinary_way(
    proxy: RunningProxy, headers: dict[str, str]
) -> None:
    """aiohttp answers a request whose headers were not answered before."""
    with warmed(proxy.client()) as client:
        seen = ordinary(proxy)
        client.get(TARGET, Range="bytes=0-9", **PLACES, **headers)
        assert ordinary(proxy) == seen + 1


def test_a_client_on_tcp_goes_the_ordinary_way(proxy: RunningProxy) -> None:
    """Only clients on the Unix socket are answered without aiohttp, since they alone read the
    cache's files."""
    with warmed(warmed(proxy.client(tcp=True))):
        assert ordinary(proxy) == 2


def test_changed_rules_ask_for_a_new_check(proxy: RunningProxy) -> None:
    """After a change of tokens or access rules, the next request is checked in full."""
    with warmed(proxy.client()) as client:
        proxy.call(lambda: [served.endpoint.blocks.clear() for served in endpoints(proxy)])
        seen = [ordinary(proxy)]
        for _ in range(2):
            client.get(TARGET, Range="bytes=0-9", **PLACES)
            seen.append(ordinary(proxy))
        assert seen == [seen[0], seen[0] + 1, seen[0] + 1]


def test_requests_that_come_meanwhile_wait_for_their_turn(
    proxy: RunningProxy, node: PlacesNode
) -> None:
    """A client that does not wait for answers gets all of them, in order."""
    one = f"GET {TARGET} HTTP/1.1\r\nHost: x\r\n{PLACE_HEADER}: {ALL_PLACES}\r\n"
    wanted = [4096, 12288, 20480]
    asked = [f"{one}Range: bytes={first}-{first + 9}\r\n\r\n".encode() for first in wanted]
    last = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with proxy.connect() as sock:
        sock.sendall(asked[0])
        assert sock.recv(65536).endswith(BIG[4096:4106])
        proxy.call(node.may_answer.clear)
        sock.sendall(asked[0])
        proxy.until(lambda: node.begun == 2)
        sock.sendall(asked[1])
        sock.sendall(asked[2])
        proxy.call(node.may_answer.set)
        answers = exchange(sock, last)
    at = [answers.find(BIG[first : first + 10]) for first in wanted]
    assert at == sorted(at) and at[0] > 0
    assert answers.count(b"HTTP/1.1 206") == 3
    assert answers.count(b"HTTP/1.1 200") == 1
    assert proxy.call(lambda: proxy.server.metrics.total("streams")) == 0


def test_a_full_proxy_refuses_reads_of_mounts(node: PlacesNode) -> None:
    """While as many requests as may be are under way, one more is refused."""
    with (
        start_proxy(node, limits=ClientLimits(streams_max=1)) as proxy,
        warmed(proxy.client()) as busy,
        warmed(proxy.client()) as other,
    ):
        proxy.call(node.may_answer.clear)
        busy._http.request("GET", TARGET, headers={"Range": "bytes=0-9", **PLACES})
        proxy.until(lambda: node.begun == 3)
        assert other.get(TARGET, Range="bytes=0-9", **PLACES).status == 503
        proxy.call(node.may_answer.set)
        assert busy._http.getresponse().status == 200


def test_a_proxy_that_stops_answers_first(node: PlacesNode) -> None:
    """A read that is under way when the proxy stops gets its answer."""
    with start_proxy(node) as proxy:
        client = warmed(proxy.client())
        proxy.call(node.may_answer.clear)
        client._http.request("GET", TARGET, headers={"Range": "bytes=4096-4105", **PLACES})
        proxy.until(lambda: node.begun == 2)
        proxy.call(lambda: proxy.loop.call_later(0.05, node.may_answer.set))
    answer = client._http.getresponse()
    assert (answer.status, answer.read()) == (206, BIG[4096:4106])


def test_a_client_that_leaves_costs_nothing(proxy: RunningProxy, node: PlacesNode) -> None:
    """The read of a client that has gone ends, and nothing of it stays."""
    client = warmed(proxy.client())
    proxy.call(node.may_answer.clear)
    client._http.request("GET", TARGET, headers={"Range": "bytes=0-9", **PLACES})
    proxy.until(lambda: node.begun == 2)
    client._http.close()
    proxy.until(lambda: not proxy.server.connections)
    proxy.call(node.may_answer.set)
    proxy.until(lambda: proxy.server.metrics.total("streams") == 0)
