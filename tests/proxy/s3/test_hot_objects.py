"""Which requests the fast path of S3 takes for plain ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock
from uuid import uuid4

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from lodefs.chunkstore.format.names import Spec
from lodefs.proxy.http.tokens import create_s3_token, delete_token
from lodefs.proxy.s3.buckets import S3Settings
from lodefs.proxy.s3.hot_objects import parse_plain
from tests.support.proxy.fake_node import Client, DictNode, RunningProxy, exchange, start_proxy

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


def signed(url: str, secret: str, wanted: str, method: str, late_s: int) -> dict[str, str]:
    """The headers of a request as botocore signed it, some seconds ago."""
    headers = {"Range": wanted, "amz-sdk-invocation-id": str(uuid4())}
    request = AWSRequest(method=method, url=url, headers=headers)
    then = (datetime.now(UTC) - timedelta(seconds=late_s)).replace(tzinfo=None)
    with mock.patch("botocore.auth.get_current_datetime", return_value=then):
        S3SigV4Auth(Credentials("team", secret), "s3", "us-east-1").add_auth(request)
    return {name: str(value) for name, value in request.headers.items()}


class Signing:
    """A client with one connection, whose requests the proxy comes to know."""

    def __init__(self, proxy: RunningProxy, client: Client, secret: str) -> None:
        self.proxy = proxy
        self.secret = secret
        self._client = client
        self._host = f"127.0.0.1:{proxy.s3_port}"

    def get(
        self,
        target: str,
        wanted: str = "bytes=0-9",
        *,
        method: str = "GET",
        late_s: int = 0,
        sent: str = "",
        **other: str,
    ) -> tuple[int, bytes, bool]:
        """Status and body of an answer, and whether it took the fast path. ``sent``: the range
        that is sent in place of the signed one."""
        url = f"http://{self._host}{target}"
        given = {**signed(url, self.secret, wanted, method, late_s), "Host": self._host, **other}
        given["Range"] = sent or wanted
        metrics = self.proxy.server.metrics
        self.proxy.until(lambda: all(one.idle for one in self.proxy.server.connections))
        before = self.proxy.call(lambda: metrics.fast_answers)
        got = self._client.get(target, method=method, **given)
        return got.status, got.body, self.proxy.call(lambda: metrics.fast_answers) > before


def test_signed_requests(tmp_path: Path) -> None:
    """A connection's requests are answered at once when one of them was, and each is still checked:
    its range, signature and time, and what its key may read now."""
    path, content = tmp_path / "tokens", bytes(range(256)) * 64
    secret = create_s3_token(path, "team", ["demo"], now_s=1).s3_secret
    node = DictNode({b"x": content}, extents=True)
    settings = S3Settings(aliases={"foreign": Spec("secret", node.commit, b"")})
    with (
        start_proxy(node, tokens_file=path, s3=settings) as proxy,
        Client(proxy.connect(tcp=True, s3=True)) as connection,
    ):
        client = Signing(proxy, connection, secret)
        target = f"/lodefs/demo%40{node.commit}/x"
        assert client.get(target) == (206, content[:10], False)
        assert client.get(target) == (206, content[:10], True)
        assert client.get(target, "bytes=7-4000", late_s=60) == (206, content[7:4001], True)
        assert client.get(target, "bytes=16000-") == (206, content[16000:], True)
        assert client.get(target, "bytes=-20") == (206, content[-20:], True)
        assert client.get(target, method="HEAD") == (206, b"", True)
        assert client.get(target, "bytes=99999-")[::2] == (416, False)
        assert client.get(target, "bytes=-0")[::2] == (416, False)
        for status, _, fast in (
            client.get(target, sent="bytes=0-8"),
            client.get(target, late_s=3600),
            client.get(target, X_Amz_Content_SHA256="0" * 64),
            client.get(target, X_Amz_Security_Token="x"),
            client.get("/foreign/x"),
        ):
            assert (status >= 400, fast) == (True, False)
        assert client.get(target)[2]
        delete_token(path, "team")
        books = list(proxy.server.tokens._endpoints)
        proxy.until(lambda: all(one.access_key("team") is None for one in books))
        assert client.get(target)[::2] == (403, False)
    node.close()


def test_conditions_of_one_connection() -> None:
    """A tag that holds is answered at once, another one is not, also where nobody signs."""
    node = DictNode({b"x": b"content", b"y": b"other"}, extents=True)
    with (
        start_proxy(node, s3=S3Settings()) as proxy,
        Client(proxy.connect(tcp=True, s3=True)) as client,
    ):
        x, y = (f"/lodefs/demo@{node.commit}/{name}" for name in "xy")
        tags = [str(client.get(target).header("ETag")) for target in (x, y)]
        proxy.until(lambda: all(one.idle for one in proxy.server.connections))
        for _ in range(2):
            assert client.get(x, If_Match=tags[0]).body == b"content"
            assert client.get(y, If_Match=tags[1]).body == b"other"
        assert proxy.call(lambda: proxy.server.metrics.fast_answers) == 4
        assert client.get(y, If_Match=tags[0]).status == 412
        assert client.get(y, If_Match='"' + "x" * 64 + '"').status == 412
    node.close()
