"""Which requests the fast path of S3 takes for plain ones."""

from __future__ import annotations

import pytest

from lodefs.proxy.s3.buckets import S3Settings
from lodefs.proxy.s3.hot_objects import parse_plain
from tests.support.proxy.fake_node import Client, DictNode, exchange, start_proxy

PLAIN = b"GET /data/x HTTP/1.1\r\nHost: h:7480\r\nRange: bytes=0-1\r\n%b\r\n"


def test_a_plain_request() -> None:
    """Its headers are found, whatever their case; an empty body may be announced."""
    found = parse_plain(PLAIN % b"Content-Length: 0\r\nX-Tab: a\tb\r\n")
    assert found is not None
    assert found.method == "GET"
    assert found.headers == {
        "host": "h:7480", "range": "bytes=0-1", "content-length": "0", "x-tab": "a\tb",
    }  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        b"Content-Length : 107",
        b" Content-Length: 9",
        b"\tfolded: x",
        b"Transfer-Encoding : chunked",
        b"Transfer-Encoding: chunked",
        b"X: a\nTransfer-Encoding: chunked",
        b"X: a\rTransfer-Encoding: chunked",
        b"X: a\0b",
        b"X: a\x7f",
        b"X: \xe9",
        b"X\x0b: a",
        b": a",
        b"X:a",
        b"X",
        b"Content-Length: +0",
        b"Content-Length: 0\r\nContent-Length: 0",
    ],
)
def test_heads_that_are_not_plain(line: bytes) -> None:
    """Whatever aiohttp might refuse, or read in another way, is left to it."""
    assert parse_plain(PLAIN % (line + b"\r\n")) is None


@pytest.mark.parametrize(
    "line", [b"GET /a b HTTP/1.1", b"GET /a HTTP/1.0", b"get /a HTTP/1.1", b"GET /a\tHTTP/1.1"]
)
def test_request_lines_that_are_not_plain(line: bytes) -> None:
    """Other methods and versions are left to aiohttp, and a target with a space."""
    assert parse_plain(line + b"\r\nHost: h\r\n\r\n") is None


def test_no_request_is_smuggled() -> None:
    """A body that a malformed head hides is not answered as the next request."""
    node = DictNode({b"x": b"content"}, extents=True)
    with start_proxy(node, s3=S3Settings()) as proxy:
        target = f"/lodefs/demo@{node.commit}/x"
        with Client(proxy.connect(tcp=True, s3=True)) as client:
            for _ in range(2):
                assert client.get(target).body == b"content"
                proxy.until(lambda: all(one.idle for one in proxy.server.connections))
        assert proxy.call(lambda: proxy.server.metrics.fast_answers) == 1
        head = f"GET {target} HTTP/1.1\r\nHost: h\r\nContent-Length : 99\r\n\r\n"
        answer = exchange(proxy.connect(tcp=True, s3=True), head.encode())
        assert answer.partition(b"\r\n")[0].endswith(b" 400 Bad Request")
    node.close()
