"""Ranges that another process reads: the same bytes as by ``get``, or nothing."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Changed, Unavailable
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.objects.limiting import Limited
from lodefs.chunkstore.objects.open_url import StoreOptions, open_objects
from lodefs.chunkstore.objects.ranges.order import HttpOrder, range_order
from lodefs.chunkstore.objects.ranges.stream import FileBody, RangeStreams
from lodefs.chunkstore.objects.s3.boto import S3Options
from lodefs.chunkstore.objects.s3.store import S3Objects
from tests.support.chunkstore.bad_server import Answer, BadServer, Request
from tests.support.chunkstore.certificates import certificate

pytestmark = pytest.mark.usefixtures("aws_user")

DATA = bytes(range(256)) * 1000
ETAG = '"tag"'
LONG_S = 60.0


def ranged(request: Request) -> Answer:
    """What a good server says of an object that is DATA."""
    first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
    begin, end = int(first), min(int(last) + 1, len(DATA))
    headers = {"Content-Range": f"bytes {begin}-{end - 1}/{len(DATA)}", "ETag": ETAG}
    return Answer(206, DATA[begin:end], headers)


def learned(server: BadServer) -> S3Objects:
    """Objects that know how to order reads."""
    options = S3Options(
        endpoint_url=server.endpoint_url,
        read_timeout_s=LONG_S / 2,
        transfer_timeout_s=LONG_S,
        rate_bytes_s_min=10_000.0,
    )
    objects = S3Objects("bucket", "", options)
    assert objects.get("a", offset=0, size=1).data == DATA[:1]
    return objects


def order_of(objects: S3Objects, offset: int, size_bytes: int) -> HttpOrder:
    """The order for a range."""
    with objects.range_order("a", offset, size_bytes, ETAG) as order:
        assert order is not None
        assert order.http is not None
        return order.http


def read(streams: RangeStreams, order: HttpOrder, size_bytes: int) -> bytes:
    """Carries an order out, in two pieces."""
    data = bytearray(size_bytes)
    with streams.get(order, size_bytes) as body:
        body.read_into(memoryview(data)[: size_bytes // 2])
        body.read_into(memoryview(data)[size_bytes // 2 :])
    return bytes(data)


def test_an_order_brings_the_bytes_without_credentials() -> None:
    """Orders carried out one after the other give the right ranges; no order holds the secret. Each
    has the time of its size."""
    with BadServer(ranged) as server:
        objects, streams = learned(server), RangeStreams()
        for offset, size in ((0, 10), (7, 200_000), (255_000, 1000)):
            order = order_of(objects, offset, size)
            assert b"very-secret" not in order.request
            assert order.transfer_timeout_s == LONG_S / 2 + size / 10_000
            assert read(streams, order, size) == DATA[offset : offset + size]
        objects.close()


def test_orders_over_tls(tmp_path: Path) -> None:
    """The server's certificate is checked against the authorities that boto3 uses."""
    file, other = certificate(tmp_path), tmp_path / "other"
    other.mkdir()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_CA_BUNDLE", str(file))
        with BadServer(ranged, tls=tls) as server:
            objects, streams = learned(server), RangeStreams()
            assert read(streams, order_of(objects, 5, 100_000), 100_000) == DATA[5:100_005]
            patch.setenv("AWS_CA_BUNDLE", str(certificate(other)))
            order = order_of(objects, 0, 10)
            fields = {name: getattr(order, name) for name in order.__struct_fields__}
            wrong = HttpOrder(**{**fields, "ca_file": str(certificate(other))})
            with pytest.raises(OSError, match=r"(?i)certificate"):
                read(RangeStreams(), wrong, 10)
            objects.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(412, b"<Error/>"), Changed),
        (Answer(503, b"<Error/>"), Unavailable),
        (Answer(206, DATA[:10], {"Content-Range": "bytes 1-10/256000", "ETag": ETAG}), Unavailable),
        (Answer(206, DATA[:10], {"Content-Range": "bytes 0-9/256000", "ETag": '"o"'}), Changed),
        (Answer(206, DATA[:9], {"Content-Range": "bytes 0-8/256000", "ETag": ETAG}), Unavailable),
        (Answer(200, DATA, {"ETag": ETAG}), Unavailable),
    ],
)
def test_other_answers_are_errors(answer: Answer, error: type[Exception]) -> None:
    """Whatever is not the range that was asked for brings nothing."""
    answers: list[Answer] = []
    with BadServer(lambda request: answers[0] if answers else ranged(request)) as server:
        objects = learned(server)
        order = order_of(objects, 0, 10)
        answers.append(answer)
        with pytest.raises(error):
            read(RangeStreams(), order, 10)
        objects.close()


def test_a_store_that_was_not_read_yet_gives_no_orders() -> None:
    """Before boto3 has read an object, nobody knows how."""
    with BadServer(ranged) as server:
        options = StoreOptions(endpoint_url=server.endpoint_url)
        objects = open_objects("s3://bucket/store", options)
        with range_order(objects, "a", 0, 10, ETAG) as order:
            assert order is None
        objects.close()


def test_files_of_a_directory(tmp_path: Path) -> None:
    """A file's order is its descriptor; another ETag is a change; orders count as calls."""
    objects = DirectoryObjects(tmp_path)
    etag = objects.put("packs/a", [DATA])
    limited = Limited(objects, 1, 0.0)
    with limited.range_order("packs/a", 100, 1000, etag) as order:
        assert order is not None
        data = bytearray(1000)
        FileBody(order.fd, order.offset).read_into(memoryview(data))
        assert data == DATA[100:1100]
        with pytest.raises(Unavailable), limited.range_order("packs/a", 0, 1, etag):
            pass
    with pytest.raises(Changed), limited.range_order("packs/a", 0, 1, '"other"'):
        pass
