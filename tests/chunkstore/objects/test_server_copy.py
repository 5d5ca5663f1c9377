"""Copies that a server makes itself: the contract in memory, on moto and on Ceph RGW, and servers
that do something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from loadtests.services import S3Server
from lodefs.chunkstore.errors import (
    Changed,
    Denied,
    LodefsError,
    NotFound,
    Unavailable,
    Unsupported,
)
from lodefs.chunkstore.objects.interface import ObjectStore, ServerCopy
from lodefs.chunkstore.objects.open_url import StoreOptions, open_objects, open_server_copy
from tests.support.chunkstore.bad_server import Answer, BadServer
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.memory_server_copy import MemoryServerCopy

KEY = "packs/ab/a-b.c"
DATA = [bytes(range(256)) * 5000, b"the end"]

Stores = tuple[ObjectStore, ObjectStore, ServerCopy]


class ServerCopySuite:
    """What every ServerCopy does."""

    def test_what_arrives(self, stores: Stores) -> None:
        """An object arrives whole, under its key and ETag; one that is missing is NotFound."""
        source, there, copies = stores
        etag = source.put(KEY, DATA)
        assert copies.copy(KEY, etag) == etag == there.head(KEY).etag
        assert there.get(KEY, size=1 << 22).data == b"".join(DATA)
        with pytest.raises(NotFound):
            copies.copy("packs/none", etag)


class TestMemory(ServerCopySuite):
    """The reference."""

    @pytest.fixture
    def stores(self) -> Stores:
        source, there = MemoryObjects("memory:a"), MemoryObjects("memory:b")
        return source, there, MemoryServerCopy(source, there)

    def test_one_that_has_changed(self, stores: Stores) -> None:
        """It is not copied, by a server that knows the condition: not moto, nor Ceph RGW 16."""
        source, there, copies = stores
        etag = source.put("packs/new", [b"1"])
        source.put("packs/new", [b"2"])
        with pytest.raises(Changed):
            copies.copy("packs/new", etag)
        with pytest.raises(NotFound):
            there.head("packs/new")


@pytest.mark.slow
class TestMoto(ServerCopySuite):
    """S3 as moto answers it."""

    @pytest.fixture
    def stores(self, moto: S3Server, moto_bucket: str) -> Iterator[Stores]:
        yield from _on_s3(moto, moto_bucket)


@pytest.mark.rgw
@pytest.mark.slow
class TestRgw(ServerCopySuite):
    """S3 as Ceph RGW answers it."""

    @pytest.fixture
    def stores(self, rgw: S3Server, rgw_bucket: str) -> Iterator[Stores]:
        yield from _on_s3(rgw, rgw_bucket)


def _on_s3(server: S3Server, bucket: str) -> Iterator[Stores]:
    client = server.client()
    client.create_bucket(Bucket=f"{bucket}-there")
    options = StoreOptions(endpoint_url=server.endpoint_url)
    urls = f"s3://{bucket}/a+b=c/d", f"s3://{bucket}-there/b"
    stores = [open_objects(url, options) for url in urls]
    copies = open_server_copy(*urls, options)
    assert copies is not None
    yield stores[0], stores[1], copies
    for one in stores:
        one.close()
    copies.close()


OTHER = "http://127.0.0.2:9000"


@pytest.mark.usefixtures("aws_user")
@pytest.mark.parametrize(
    ("source", "there"),
    [
        ("/a/directory", "s3://bucket/b"),
        ("s3://bucket/a", "/a/directory"),
        ("s3://bucket/a", f"s3://bucket/b?endpoint_url={OTHER}"),
        ("s3://bucket/a?region=eu-west-1", "s3://bucket/b?region=eu-west-2"),
    ],
)
def test_two_servers(source: str, there: str) -> None:
    """Only stores at one endpoint are copied by their server."""
    options = StoreOptions(endpoint_url="http://127.0.0.1:9000/")
    assert open_server_copy(source, there, options) is None
    same = open_server_copy("s3://aaa?endpoint_url=http://127.0.0.1:9000", "s3://bbb", options)
    assert same is not None
    same.close()


@pytest.fixture
def server() -> Iterator[BadServer]:
    with BadServer(lambda _: Answer(200)) as server:
        yield server


def _error(status: int, code: str) -> Answer:
    body = f"<Error><Code>{code}</Code><Message>said so</Message></Error>".encode()
    return Answer(status, body, {"Content-Type": "application/xml"})


@pytest.mark.usefixtures("aws_user")
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda: Answer(200, b"", {"ETag": '"1"'}), Unsupported),  # it took it for a put
        (lambda: _error(501, "NotImplemented"), Unsupported),
        (lambda: _error(403, "AccessDenied"), Denied),
        (lambda: _error(404, "NoSuchKey"), NotFound),
        (lambda: _error(412, "PreconditionFailed"), Changed),
        (lambda: _error(200, "InternalError"), Unavailable),  # S3 begins its answer early
    ],
)
def test_refusals(
    server: BadServer, answer: Callable[[], Answer], error: type[LodefsError]
) -> None:
    """What a server says instead is the right error; the request names source, ETag and that
    nothing is to be overwritten."""
    server.script = lambda _: answer()
    options = StoreOptions(endpoint_url=server.endpoint_url, attempts_max=1)
    copies = open_server_copy("s3://here/a", "s3://there/b", options)
    assert copies is not None
    with pytest.raises(error):
        copies.copy("packs/x", '"1"')
    copies.close()
    (request,) = server.requests
    assert (request.method, request.path) == ("PUT", "/there/b/packs/x")
    sent = request.headers
    assert sent["x-amz-copy-source"] == "here/a/packs/x"
    assert (sent["x-amz-copy-source-if-match"], sent["if-none-match"]) == ('"1"', "*")
