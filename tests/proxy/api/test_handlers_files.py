"""Files over HTTP: bytes, ranges, conditions and headers, with real clients."""

from __future__ import annotations

import asyncio
import email
import email.policy
import re
from collections.abc import Iterator
from urllib.parse import quote_from_bytes

import aiohttp
import pytest
from blake3 import blake3

from lodefs.chunkstore.protocol import wire
from tests.support.proxy.fake_node import (
    Client,
    DictNode,
    Executable,
    RunningProxy,
    Symlink,
    start_proxy,
)

TEXT = b"The quick brown fox jumps over the lazy dog.\n"
BIG = bytes(range(256)) * 4096  # 1 MiB
ODD = b"caf\xe9\nnew line %41?#&"
FILES: dict[bytes, bytes | Executable | Symlink] = {
    b"a.txt": TEXT,
    b"big.bin": BIG,
    b"empty": b"",
    b"d/x.tar.gz": b"zzz",
    b"d/run.sh": Executable(b"#!/bin/sh\n"),
    b"d/link": Symlink(b"../a.txt"),
    ODD: b"odd",
    b"n" * 255: b"long",
}


@pytest.fixture(scope="module")
def proxy() -> Iterator[RunningProxy]:
    with start_proxy(DictNode(FILES, repo="team/demo")) as running:
        yield running


@pytest.fixture(scope="module")
def commit() -> str:
    return DictNode(FILES, repo="team/demo").commit


@pytest.fixture(params=["unix", "tcp"])
def client(proxy: RunningProxy, request: pytest.FixtureRequest) -> Iterator[Client]:
    with proxy.client(tcp=request.param == "tcp") as made:
        yield made


def files(path: str, rev: str = "main") -> str:
    return f"/files/team/demo@{rev}/{path}"


def test_whole_file(client: Client, commit: str) -> None:
    """A GET fetches the bytes, a strong tag, the digest that the commit tells, and the commit."""
    reply = client.get(files("a.txt"))
    digest = blake3(TEXT).hexdigest()
    assert (reply.status, reply.body) == (200, TEXT)
    tag = reply.header("ETag") or ""
    assert re.fullmatch('"[0-9a-f]{64}"', tag)
    assert digest not in tag
    assert reply.header(wire.DIGEST_HEADER) == digest
    assert reply.header(wire.COMMIT_HEADER) == commit
    assert reply.header("Content-Type") == "text/plain"
    assert reply.header("Content-Length") == str(len(TEXT))
    assert reply.header("Accept-Ranges") == "bytes"
    assert reply.header("Server") == "lodefs"
    assert reply.header("Date")


def test_head_has_the_same_headers_and_no_body(client: Client) -> None:
    """HEAD ignores Range and answers as GET without bytes."""
    get = client.get(files("a.txt"))
    head = client.get(files("a.txt"), method="HEAD", Range="bytes=1-2")
    skipped = ("Date",)
    assert (head.status, head.body) == (200, b"")
    assert [one for one in head.headers if one[0] not in skipped] == [
        one for one in get.headers if one[0] not in skipped
    ]


def test_caching_depends_on_the_revision(client: Client, commit: str) -> None:
    """What a whole commit id names may be kept forever; a branch or a prefix may not."""
    assert (
        client.get(files("a.txt", commit)).header("Cache-Control") == "max-age=31536000, immutable"
    )
    assert client.get(files("a.txt")).header("Cache-Control") == "no-cache"
    assert client.get(files("a.txt", commit[:8])).header("Cache-Control") == "no-cache"


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("bytes=0-0", 0, 0),
        ("bytes=100-", 100, len(BIG) - 1),
        ("bytes=-10", len(BIG) - 10, len(BIG) - 1),
        ("bytes=65530-65540", 65530, 65540),
        ("bytes=1048575-9999999999", len(BIG) - 1, len(BIG) - 1),
        ("bytes=0-10,5-20", 0, 20),
        ("bytes=3-4, 9999999-", 3, 4),
    ],
)
@pytest.mark.parametrize("rev", ["branch", "commit"])
def test_single_range(
    client: Client, commit: str, asked: str, first: int, last: int, rev: str
) -> None:
    """206 with the bytes and their place."""
    reply = client.get(files("big.bin", commit if rev == "commit" else "main"), Range=asked)
    assert reply.status == 206
    assert reply.body == BIG[first : last + 1]
    assert reply.header("Content-Range") == f"bytes {first}-{last}/{len(BIG)}"
    assert reply.header("Content-Length") == str(last - first + 1)


def test_several_ranges(client: Client) -> None:
    """multipart/byteranges with one part per range, in the order of the request."""
    reply = client.get(files("a.txt"), Range="bytes=10-14, 0-2, -5")
    assert reply.status == 206
    assert len(reply.body) == int(reply.header("Content-Length") or 0)
    head = f"Content-Type: {reply.header('Content-Type')}\r\n\r\n".encode()
    message = email.message_from_bytes(head + reply.body, policy=email.policy.HTTP)
    assert message.get_content_type() == "multipart/byteranges"
    parts = [
        (part["Content-Range"], part.get_payload(decode=True)) for part in message.iter_parts()
    ]
    total = len(TEXT)
    assert parts == [
        (f"bytes 10-14/{total}", TEXT[10:15]),
        (f"bytes 0-2/{total}", TEXT[:3]),
        (f"bytes {total - 5}-{total - 1}/{total}", TEXT[-5:]),
    ]


@pytest.mark.parametrize("asked", ["bytes=45-", "bytes=-0", "bytes=5-4", "bytes=x", "bytes=0-1,,z",
                                   "bytes=" + ",".join("0-0" for _ in range(100))])  # fmt: skip
def test_unsatisfiable(client: Client, asked: str) -> None:
    """416 names the size, so that the client can ask again."""
    reply = client.get(files("a.txt"), Range=asked)
    assert reply.status == 416
    assert reply.header("Content-Range") == f"bytes */{len(TEXT)}"
    assert reply.json()["error"] == "InvalidInput"


def test_two_range_headers_are_one_malformed_list(client: Client, proxy: RunningProxy) -> None:
    """A Range sent twice is not silently taken for the first of them."""
    from tests.support.proxy.fake_node import exchange

    request = (
        f"GET {files('a.txt')} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        "Range: bytes=0-1\r\nRange: bytes=3-4\r\n\r\n"
    )
    assert exchange(proxy.connect(), request.encode()).startswith(b"HTTP/1.1 416 ")


def test_unknown_unit_fetches_the_file(client: Client) -> None:
    """A unit that nobody knows is ignored."""
    assert client.get(files("a.txt"), Range="lines=1-2").status == 200


def test_empty_file(client: Client) -> None:
    """An empty file is whole, and has no ranges."""
    whole = client.get(files("empty"))
    assert (whole.status, whole.body, whole.header("Content-Length")) == (200, b"", "0")
    assert client.get(files("empty"), Range="bytes=0-").status == 416


def test_conditions(client: Client) -> None:
    """Tags decide between 304, 412, part and whole."""
    tag = client.get(files("a.txt")).header("ETag") or ""
    same = client.get(files("a.txt"), If_None_Match=tag)
    assert (same.status, same.body, same.header("ETag")) == (304, b"", tag)
    assert client.get(files("a.txt"), If_None_Match='"other"').status == 200
    assert client.get(files("a.txt"), If_Match='"other"').status == 412
    assert client.get(files("a.txt"), If_Match=tag).status == 200
    assert client.get(files("a.txt"), Range="bytes=0-1", If_Range=tag).body == TEXT[:2]
    assert client.get(files("a.txt"), Range="bytes=0-1", If_Range='"other"').body == TEXT
    assert client.get(files("a.txt"), Range="bytes=0-1", If_None_Match=tag).status == 304
    assert client.get(files("a.txt"), Range="bytes=99-", If_Range='"other"').status == 200


@pytest.mark.parametrize("name", [ODD, b"n" * 255])
def test_awkward_names(client: Client, name: bytes) -> None:
    """Names are bytes: not UTF-8, with newlines, as long as Linux allows."""
    reply = client.get(files(quote_from_bytes(name)))
    assert (reply.status, reply.body) == (200, FILES[name])


def test_media_types(client: Client) -> None:
    """Known names have their type; compressed and unknown ones are plain octets."""
    assert client.get(files("d/x.tar.gz")).header("Content-Type") == "application/octet-stream"
    assert client.get(files("empty")).header("Content-Type") == "application/octet-stream"


@pytest.mark.parametrize(
    ("target", "status", "words"),
    [
        (files("nothing"), 404, "nothing"),
        (files("a.txt/b"), 404, "not a directory"),
        (files("d"), 404, "use /list/"),
        (files(""), 404, "use /list/"),
        (files("d/link"), 404, "symlink to '../a.txt'"),
        (files("a.txt", "nobranch"), 404, "nobranch"),
        ("/files/other@main/a", 404, "other"),
        ("/nowhere", 404, "/openapi.json"),
        (files("../a.txt"), 400, ".."),
        (files("%2e%2e/a.txt"), 400, ".."),
        (files("a%00"), 400, "NUL"),
        (files("%f"), 400, "%"),
        ("/files/bad name@main/a".replace(" ", "%20"), 400, "repository name"),
    ],
)
def test_failures_say_what_is_wrong(client: Client, target: str, status: int, words: str) -> None:
    """Each failure has its status, the class of the error, and words about the thing."""
    reply = client.get(target)
    assert reply.status == status
    failure = reply.json()
    assert failure["error"] in ("NotFound", "NotADirectory", "InvalidInput")
    assert words in failure["message"]


def test_a_connection_lives_through_failures(client: Client) -> None:
    """After an error answer the same connection serves on."""
    assert client.get(files("nothing")).status == 404
    assert client.get(files("a.txt")).body == TEXT


def test_aiohttp_client(proxy: RunningProxy) -> None:
    """An asynchronous client with several requests at once gets every byte."""

    async def fetch_all() -> list[bytes]:
        async with aiohttp.ClientSession(proxy.url) as session:

            async def fetch(first: int) -> bytes:
                headers = {"Range": f"bytes={first}-{first + 999}"}
                async with session.get(files("big.bin"), headers=headers) as answer:
                    assert answer.status == 206
                    return await answer.read()

            return await asyncio.gather(*(fetch(first * 1000) for first in range(50)))

    assert b"".join(asyncio.run(fetch_all())) == BIG[:50_000]
