"""The hot path gives the same answers as the ordinary one, and leaves alone what is not plain."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.proxy.api.fast_path import (
    ANSWER_SIZE_BYTES_MAX,
    HEADER_BLOCKS_MAX,
    KnownHeaders,
    PlainGet,
    parse_plain_get,
)
from lodefs.proxy.node import Extent
from tests.support.proxy.fake_node import Client, DictNode, RunningProxy, start_proxy

BIG = os.urandom(3 * ANSWER_SIZE_BYTES_MAX + 12345)
FILES = {b"big.bin": BIG, b"a.txt": b"hello world", b"empty": b""}
NODE = DictNode(FILES)
BIG_FILE = f"/files/demo@{NODE.commit}/big.bin"
SMALL_FILE = f"/files/demo@{NODE.commit}/a.txt"
BIG_NODE = f"/nodes/demo@{NODE.commit}/{child_ino(ROOT_INO, b'big.bin')}/data"


@pytest.fixture
def node() -> Iterator[DictNode]:
    made = DictNode(FILES, extents=True)
    yield made
    made.close()


@pytest.fixture
def proxy(node: DictNode) -> Iterator[RunningProxy]:
    with start_proxy(node) as running:
        yield running


@pytest.fixture(scope="module")
def ordinary() -> Iterator[RunningProxy]:
    """A proxy without a hot path."""
    with start_proxy(DictNode(FILES), hot_path=False) as running:
        yield running


def answered(proxy: RunningProxy) -> int:
    """Hot answers so far, once the server waits for requests on all connections."""
    proxy.until(lambda: all(one.idle for one in proxy.server.connections))
    return proxy.call(lambda: proxy.server.metrics.fast_answers)


def warm(client: Client, target: str, **headers: str) -> None:
    """Ask often enough for the hot path to know the target and these headers."""
    for _ in range(2):
        client.get(target, Range="bytes=0-0", **headers)


RANGES = [
    "bytes=0-0",
    "bytes=0-4095",
    "bytes=4096-8191",
    "bytes=0-131071",
    "bytes=0-131072",
    "bytes=0-1048575",
    "bytes=1-1048576",
    "bytes=100000-1148575",
    f"bytes={len(BIG) - 1}-{len(BIG) - 1}",
    f"bytes={len(BIG) - 10}-99999999999",
]


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
@pytest.mark.parametrize("target", [BIG_FILE, BIG_NODE], ids=["files", "nodes"])
@pytest.mark.parametrize("asked", RANGES)
def test_hot_ranges_equal_ordinary_ones(
    proxy: RunningProxy, ordinary: RunningProxy, target: str, asked: str, tcp: bool
) -> None:
    """Status, headers in their order, and every byte are the same."""
    with proxy.client(tcp=tcp) as hot, ordinary.client(tcp=tcp) as plain:
        warm(hot, target)
        before = answered(proxy)
        got, expected = hot.get(target, Range=asked), plain.get(target, Range=asked)
        assert answered(proxy) == before + 1
    assert got.status == expected.status == 206
    assert [one for one in got.headers if one[0] != "Date"] == [
        one for one in expected.headers if one[0] != "Date"
    ]
    assert got.header("Date")
    assert got.body == expected.body


def test_a_hot_whole_file_equals_the_ordinary_one(
    proxy: RunningProxy, ordinary: RunningProxy
) -> None:
    """A small file without a Range is hot too."""
    with proxy.client() as hot, ordinary.client() as plain:
        for _ in range(2):
            hot.get(SMALL_FILE)
        before = answered(proxy)
        got, expected = hot.get(SMALL_FILE), plain.get(SMALL_FILE)
        assert answered(proxy) == before + 1
    assert got.status == expected.status == 200
    assert [name for name, _ in got.headers] == [name for name, _ in expected.headers]
    assert got.body == expected.body == b"hello world"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"RANGE: bytes=0-3", b"206"),
        (b"Range:bytes=0-3", b"206"),
        (b"Range:  bytes=0-3", b"206"),
        (b"Range: Bytes=0-3", b"206"),
        (b"range: items=0-1\r\nRange: bytes=0-3", b"200"),
    ],
)
def test_uncommon_spellings_of_a_range_mean_the_same_each_time(
    proxy: RunningProxy, lines: bytes, status: bytes
) -> None:
    """How a client writes Range does not change what it gets when it asks again."""
    head = b"GET %b HTTP/1.1\r\nHost: h\r\n%b\r\n\r\n" % (SMALL_FILE.encode(), lines)
    with proxy.client() as client:
        warm(client, SMALL_FILE)
    with proxy.connect() as connected, connected.makefile("rb") as received:
        for _ in range(3):
            connected.sendall(head)
            assert received.readline().split()[1] == status
            sizes = [line for line in iter(received.readline, b"\r\n") if b"-Length:" in line]
            received.read(int(sizes[0].partition(b":")[2]))
            answered(proxy)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Range": "bytes=-5"}, 206),
        ({"Range": "bytes=5-"}, 206),
        ({"Range": "bytes=0-1,4-5"}, 206),
        ({"Range": "bytes=99-100"}, 416),
        ({"Range": "bytes=5-4"}, 416),
        ({"Range": "bytes=0-" + "9" * 100}, 206),
        ({"Range": "bytes=0-1", "If-Range": '"other"'}, 200),
        ({"Range": "bytes=0-1", "If-None-Match": "*"}, 304),
        ({"Range": "bytes=0-1", "If-Match": '"other"'}, 412),
        ({"X-Orange": "bytes=0-1"}, 200),
        ({"X-Range": "bytes=0-1"}, 200),
    ],
)
def test_what_is_not_plain_is_answered_as_ever(
    proxy: RunningProxy, headers: dict[str, str], status: int
) -> None:
    """Other ranges, conditions and look-alikes of Range get their own answers, however warm the
    target is, and however often they are asked."""
    with proxy.client() as client:
        warm(client, SMALL_FILE)
        client.get(SMALL_FILE)
        for _ in range(3):
            assert client.get(SMALL_FILE, **headers).status == status


def test_branches_are_never_hot(proxy: RunningProxy) -> None:
    """What a branch is can change, so it is looked up each time."""
    with proxy.client() as client:
        for _ in range(4):
            assert client.get("/files/demo@main/a.txt", Range="bytes=0-3").body == b"hell"
    assert answered(proxy) == 0


def test_head_is_never_hot(proxy: RunningProxy) -> None:
    """HEAD of a warm target has no body."""
    with proxy.client() as client:
        warm(client, SMALL_FILE)
        before = answered(proxy)
        assert client.get(SMALL_FILE, method="HEAD").body == b""
        assert answered(proxy) == before


def test_too_long_ranges_are_streamed(proxy: RunningProxy) -> None:
    """More than the buffer holds is left to the ordinary path."""
    with proxy.client() as client:
        warm(client, BIG_FILE)
        before = answered(proxy)
        assert (
            client.get(BIG_FILE, Range=f"bytes=0-{ANSWER_SIZE_BYTES_MAX}").body
            == (BIG[: ANSWER_SIZE_BYTES_MAX + 1])
        )
        assert answered(proxy) == before


class LyingNode(DictNode):
    """A node whose hits cannot be read: the file is closed or too short."""

    extent = Extent(-1, 0, 0)

    def hit(self, content: bytes, first: int, size_bytes: int) -> Extent | None:
        return self.extent


@pytest.mark.parametrize("short", [False, True])
def test_a_hit_that_cannot_be_read_goes_the_ordinary_way(short: bool) -> None:
    """A closed or too short cache file costs time and not the answer."""
    node = LyingNode(FILES)
    fd = os.memfd_create("short")
    try:
        os.write(fd, b"x")
        node.extent = Extent(fd if short else -1, 0, 11)
        with start_proxy(node) as proxy, proxy.client() as client:
            for _ in range(4):
                assert client.get(SMALL_FILE, Range="bytes=0-10").body == b"hello world"
            assert answered(proxy) == 0
    finally:
        os.close(fd)


def test_a_reader_that_waits_gets_every_byte(proxy: RunningProxy) -> None:
    """Answers that the socket does not take at once are kept, and pipelined ones keep order."""
    size = ANSWER_SIZE_BYTES_MAX
    with proxy.connect() as connected:

        def ask(first: int) -> bytes:
            last = first + size - 1
            head = f"GET {BIG_FILE} HTTP/1.1\r\nHost: x\r\nRange: bytes={first}-{last}"
            return f"{head}\r\n\r\n".encode()

        with Client(connected) as client:
            warm(client, BIG_FILE)
            for first in (0, size, 7):
                connected.sendall(ask(first))
            proxy.until(lambda: proxy.server.fast_path.unsent_connections == 1)
            received = connected.makefile("rb")
            for first in (0, size, 7):
                assert received.readline() == b"HTTP/1.1 206 Partial Content\r\n"
                while received.readline() != b"\r\n":
                    pass
                assert received.read(size) == BIG[first : first + size]
            received.close()
    proxy.until(lambda: proxy.server.fast_path.unsent_connections == 0)


def test_a_request_in_pieces_is_put_together(proxy: RunningProxy) -> None:
    """A request that arrives in two parts, the second of which looks like a whole one, is one."""
    with proxy.connect() as connected, Client(connected) as client:
        warm(client, SMALL_FILE)
        head = f"GET {SMALL_FILE} HTTP/1.1\r\nHost: x\r\nX-Part: ".encode()
        connected.sendall(head)
        proxy.until(lambda: any(one._half_read for one in proxy.server.connections))
        connected.sendall(f"GET {SMALL_FILE} HTTP/1.1\r\nRange: bytes=0-0\r\n\r\n".encode())
        received = connected.makefile("rb")
        assert received.readline() == b"HTTP/1.1 206 Partial Content\r\n"
        received.close()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            b"GET /x HTTP/1.1\r\nHost: h\r\nRange: bytes=1-2\r\nA: b\r\n\r\n",
            PlainGet(b"/x", b"\r\nHost: h\r\nA: b\r\n\r\n", 1, 2),
        ),
        (
            b"GET /x HTTP/1.1\r\nrange: bytes=10-20\r\n\r\n",
            PlainGet(b"/x", b"\r\n\r\n", 10, 20),
        ),
        (b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n", PlainGet(b"/x", b"\r\nHost: h\r\n\r\n", -1, -1)),
        (b"GET /x HTTP/1.1\r\nRange: bytes=1-\r\n\r\n", None),
        (b"GET /x HTTP/1.1\r\nRange: bytes=-1\r\n\r\n", None),
        (b"GET /x HTTP/1.1\r\nRange: bytes=1-2,3-4\r\n\r\n", None),
        (b"GET /x HTTP/1.1\r\nRange: bytes= 1-2\r\n\r\n", None),
        (b"GET /x HTTP/1.1\r\nRange: bytes=1-" + b"9" * 40 + b"\r\n\r\n", None),
        (b"GET /x HTTP/1.0\r\n\r\n", None),
        (b"HEAD /x HTTP/1.1\r\n\r\n", None),
        (b"POST /x HTTP/1.1\r\n\r\n", None),
        (b"GET /x HTTP/1.1\r\n\r\nGET /x HTTP/1.1\r\n\r\n", None),
        (b"GET /x HTTP/1.1\r\nHost: h\r\n", None),
        (b"GET /x HTTP/1.1\r\nA: " + b"b" * 3000 + b"\r\n\r\n", None),
        (b"\r\n\r\n", None),
        (b"", None),
    ],
)
def test_parse_question(data: bytes, expected: PlainGet | None) -> None:
    """Only one complete plain GET in the common form is a question."""
    assert parse_plain_get(data) == expected


def test_header_blocks_are_bounded_and_can_be_forgotten() -> None:
    """Clients with ever new headers do not fill the memory, and changed tokens count at once."""
    blocks = KnownHeaders()
    for number in range(HEADER_BLOCKS_MAX + 1):
        blocks.add(b"%d" % number, "demo", 0)
    assert not blocks.allow(b"0", "demo")
    assert blocks.allow(b"1", "demo")
    assert not blocks.allow(b"1", "other")
    blocks.clear()
    assert not blocks.allow(b"1", "demo")


def test_a_long_hit_in_a_file_that_is_too_short_goes_the_ordinary_way() -> None:
    """Where the beginning of a long hit can be read and its end cannot, nothing of it is sent."""
    node = LyingNode(FILES)
    fd = os.memfd_create("short")
    try:
        os.write(fd, bytes(ANSWER_SIZE_BYTES_MAX - 1))
        node.extent = Extent(fd, 0, ANSWER_SIZE_BYTES_MAX)
        with start_proxy(node) as proxy, proxy.client() as client:
            for _ in range(4):
                asked = f"bytes=0-{ANSWER_SIZE_BYTES_MAX - 1}"
                assert client.get(BIG_FILE, Range=asked).body == BIG[:ANSWER_SIZE_BYTES_MAX]
            assert answered(proxy) == 0
    finally:
        os.close(fd)
