"""Ranged reads without boto3: as right as with it, and left to it where they are not plain."""

from __future__ import annotations

import random
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from lodefs.chunkstore.errors import (
    Changed,
    DeadlineExceeded,
    Denied,
    NotFound,
    Unavailable,
    Unsupported,
)
from lodefs.chunkstore.objects.interface import NoSuchBucket
from lodefs.chunkstore.objects.s3.boto import S3Options
from lodefs.chunkstore.objects.s3.range_reader import RequestTemplate, request_template
from lodefs.chunkstore.objects.s3.store import S3Objects
from lodefs.chunkstore.protocol.trace_context import TraceContext, current_trace
from lodefs.chunkstore.repo.store import open_store
from tests.support.chunkstore.bad_server import Answer, BadServer, Request
from tests.support.chunkstore.certificates import certificate
from tests.support.chunkstore.object_store_suite import MUCH

pytestmark = pytest.mark.usefixtures("aws_user")

LONG_S = 60.0
SHORT_S = 0.1
DATA = random.Random(1).randbytes(300_000)
SIGNED = (
    "AWS4-HMAC-SHA256 Credential=key/20250101/eu-1/s3/aws4_request, SignedHeaders=host, Signature=0"
)


def ranged(request: Request) -> Answer:
    """What a good server says of an object that is DATA."""
    first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
    begin = int(first) if first else max(len(DATA) - int(last), 0)
    end = min(int(last) + 1, len(DATA)) if first and last else len(DATA)
    if begin >= len(DATA):
        return error(416, "InvalidRange")
    headers = {"Content-Range": f"bytes {begin}-{end - 1}/{len(DATA)}"}
    return Answer(206, DATA[begin:end], headers)


def error(status: int, code: str, **headers: str) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code></Error>".encode(), headers)


def is_quick(request: Request) -> bool:
    """boto3 says more of itself."""
    return request.headers["user-agent"] == "lodefs"


@pytest.fixture
def server() -> Iterator[BadServer]:
    with BadServer(ranged) as server:
        yield server


@pytest.fixture
def objects(server: BadServer) -> Iterator[S3Objects]:
    """Objects that have learned how to read quickly."""
    yield from learned(server)


def learned(server: BadServer) -> Iterator[S3Objects]:
    options = S3Options(
        endpoint_url=server.endpoint_url,
        connect_timeout_s=LONG_S,
        read_timeout_s=LONG_S,
        transfer_timeout_s=LONG_S,
    )
    objects = S3Objects("bucket", "a prefix", options)
    assert objects.get("a", offset=0, size=1).data == DATA[:1]
    assert not is_quick(server.requests.pop())
    yield objects
    objects.close()


def test_the_trace_goes_along_unsigned(server: BadServer, objects: S3Objects) -> None:
    """A read for a trace names it, and its signature does not depend on that."""
    trace = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", True)
    token = current_trace.set(trace)
    try:
        objects.get("a", offset=0, size=10)
    finally:
        current_trace.reset(token)
    objects.get("a", offset=0, size=10)
    traced, untraced = server.requests
    assert traced.headers["traceparent"] == trace.headers["traceparent"]
    assert "traceparent" not in untraced.headers
    assert "traceparent" not in traced.headers["authorization"]


def test_the_second_read_is_quick_and_right(server: BadServer, objects: S3Objects) -> None:
    """Any range of any key, on one connection, with the size and ETag of the object."""
    for offset, size in ((0, 10), (5, 250_000), (299_990, 100), (0, 300_000)):
        part = objects.get("b/c", offset=offset, size=size)
        assert bytes(part.data) == DATA[offset : offset + size]
        assert (part.object_size_bytes, part.etag) == (len(DATA), '"1"')
    assert bytes(objects.get("b/c", offset=-1000, size=MUCH).data) == DATA[-1000:]
    assert bytes(objects.get("b/c", offset=-1000, size=10).data) == DATA[-1000:-990]
    assert bytes(objects.get("b/c", offset=-400_000, size=MUCH).data) == DATA
    assert all(map(is_quick, server.requests))
    assert {request.path for request in server.requests} == {"/bucket/a%20prefix/b/c"}
    assert len(server._connections) <= 4  # boto3's and this one's; each is noted twice


def test_a_read_past_the_end_gives_nothing(server: BadServer, objects: S3Objects) -> None:
    """As every store does."""
    server.script = lambda request: (
        ranged(request) if request.method == "GET" else Answer(200, headers={"Content-Length": "7"})
    )
    part = objects.get("a", offset=400_000, size=10)
    assert (bytes(part.data), part.object_size_bytes) == (b"", 7)


def test_conditions_are_sent(server: BadServer, objects: S3Objects) -> None:
    """If-Match reaches the server, its refusal is Changed, and so is another ETag."""
    assert objects.get("a", offset=0, size=5, if_match='"1"').data == DATA[:5]
    assert server.requests[-1].headers["if-match"] == '"1"'
    with pytest.raises(Changed):
        objects.get("a", offset=0, size=5, if_match='"2"')
    server.script = lambda _: error(412, "PreconditionFailed")
    with pytest.raises(Changed):
        objects.get("a", offset=0, size=5, if_match='"1"')


def test_a_bucket_that_is_not_there_is_the_cause(server: BadServer, objects: S3Objects) -> None:
    """It is what a command tells first, and not how to create a store in it, which fails too."""
    server.script = lambda _: error(404, "NoSuchBucket")
    with pytest.raises(
        NotFound, match=r"^there is no bucket bucket: create it first, or"
    ) as caught:
        open_store(objects)
    assert "lodefs init" not in str(caught.value)


def test_refusals_are_the_errors_that_they_are(server: BadServer, objects: S3Objects) -> None:
    """Of one request each; the server is not asked again by another way."""
    for answer, expected in (
        (error(404, "NoSuchKey"), NotFound),
        (error(404, "NoSuchBucket"), NoSuchBucket),
        (error(503, "SlowDown", **{"Retry-After": "7"}), Unavailable),
        (error(500, ""), Unavailable),
    ):
        server.requests.clear()
        server.script = lambda _, answer=answer: answer
        with pytest.raises(expected) as caught:
            objects.get("a", offset=0, size=5)
        assert [is_quick(request) for request in server.requests] == [True]
        assert "cannot read a in s3://bucket/a prefix" in str(caught.value)
        if expected is Unavailable and answer.headers:
            assert getattr(caught.value, "retry_after_s", None) == 7


def test_broken_answers_are_unavailable(server: BadServer, objects: S3Objects) -> None:
    """Half a body, half a head, another range: never wrong bytes, never fewer."""
    other = {"Content-Range": f"bytes 7-11/{len(DATA)}"}
    for answer in (
        Answer(206, DATA[:5], {"Content-Range": f"bytes 0-4/{len(DATA)}"}, sent_bytes=3),
        Answer(cuts_head=True),
        Answer(206, DATA[:5], other),
        Answer(206, DATA[:5]),
    ):
        server.script = lambda _, answer=answer: answer
        with pytest.raises(Unavailable):
            objects.get("a", offset=0, size=5)
    server.script = ranged
    assert objects.get("a", offset=0, size=5).data == DATA[:5]


def test_a_silent_server_costs_the_read_timeout(server: BadServer, objects: S3Objects) -> None:
    """No byte for so long is DeadlineExceeded."""
    reader = objects._range_reader
    assert reader is not None
    # From now on: all before has time
    reader._options = replace(reader._options, read_timeout_s=SHORT_S)
    server.script = lambda _: Answer(hangs=True)
    with pytest.raises(DeadlineExceeded):
        objects.get("a", offset=0, size=5)


@pytest.mark.parametrize("part", ["head", "body"])
def test_a_trickle_costs_the_transfer_timeout(
    server: BadServer, objects: S3Objects, part: str
) -> None:
    """Bytes that come one by one do not make the time longer."""
    span = {"Content-Range": f"bytes 0-999/{len(DATA)}", "Content-Length": "1000000"}
    server.script = lambda _: Answer(
        206, headers=span, trickles=part == "body", trickles_head=part == "head"
    )
    objects._requests._watchdog._timeout_s = SHORT_S
    with pytest.raises(DeadlineExceeded, match="in time"):
        objects.get("a", offset=0, size=1_000_000)


def test_a_connection_that_was_closed_meanwhile_is_replaced(
    server: BadServer, objects: S3Objects
) -> None:
    """The server may end an idle connection at any time; nobody notices."""
    assert objects.get("a", offset=0, size=5).data == DATA[:5]
    server.script = lambda request: Answer(206, DATA[:5], ranged(request).headers, sent_bytes=5)
    assert objects.get("a", offset=0, size=5).data == DATA[:5]  # whole, and closed after it
    server.script = ranged
    for _ in range(3):
        assert objects.get("a", offset=9, size=5).data == DATA[9:14]
    assert all(map(is_quick, server.requests))


@pytest.mark.parametrize("kind", ["chunked", "moved", "denied"])
def test_what_is_not_plain_is_left_to_boto3(
    server: BadServer, objects: S3Objects, kind: str
) -> None:
    """And where that works, it is from then on."""
    odd = {
        "chunked": Answer(206, b"5\r\n" + DATA[:5] + b"\r\n0\r\n\r\n", {
            "Transfer-Encoding": "chunked", "Content-Range": "bytes 0-4/300000"}),
        "moved": error(307, "TemporaryRedirect"),
        "denied": error(403, "SignatureDoesNotMatch"),
    }  # fmt: skip
    server.script = lambda request: odd[kind] if is_quick(request) else ranged(request)
    for _ in range(2):
        assert objects.get("a", offset=0, size=5).data == DATA[:5]
    assert [is_quick(request) for request in server.requests] == [True, False, False]


def test_what_boto3_cannot_do_either_is_its_error(server: BadServer, objects: S3Objects) -> None:
    """Credentials that are refused are Denied; a range that is ignored is Unsupported."""
    server.script = lambda _: error(403, "AccessDenied")
    with pytest.raises(Denied):
        objects.get("a", offset=0, size=5)
    server.script = lambda _: Answer(200, DATA)
    with pytest.raises(Unsupported):
        objects.get("a", offset=0, size=5)
    server.script = ranged
    server.requests.clear()
    assert objects.get("a", offset=0, size=5).data == DATA[:5]
    assert is_quick(server.requests[0])  # it was not this way's fault


def test_many_threads_get_their_own_bytes(objects: S3Objects) -> None:
    """Connections are never shared by two reads at once."""
    wrong: list[int] = []

    def read(seed: int) -> None:
        source = random.Random(seed)
        for _ in range(20):
            offset, size = source.randrange(200_000), source.randrange(1, 100_000)
            if bytes(objects.get("a", offset=offset, size=size).data) != DATA[offset:][:size]:
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_reads_over_tls(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The certificate is checked as boto3 does, the bytes are right."""
    file = certificate(tmp_path_factory.mktemp("tls"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_CA_BUNDLE", str(file))
        with BadServer(ranged, tls=tls) as server:
            for objects in learned(server):
                for offset, size in ((0, 10), (7, 290_000)):
                    part = objects.get("a", offset=offset, size=size)
                    assert bytes(part.data) == DATA[offset:][:size]
                assert all(map(is_quick, server.requests))


@pytest.mark.parametrize("is_tls", [False, True])
def test_idle_connections_are_kept_open(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, is_tls: bool
) -> None:
    """Those that the server has closed are replaced, so that the next read does not connect."""
    tls = None
    if is_tls:
        file = certificate(tmp_path_factory.mktemp("tls"))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(file)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(file))
    with BadServer(ranged, tls=tls) as server:
        unlearned = S3Objects("bucket", "", S3Options(endpoint_url=server.endpoint_url))
        unlearned.keep_open(2)
        unlearned.close()
        for objects in learned(server):  # its first connection is boto3's
            for _ in range(2):
                objects.keep_open(2)
            assert objects.get("a", offset=9, size=5).data == DATA[9:14]
            assert server.connections == 3
            server.hang_up()
            objects.keep_open(2)
            assert objects.get("a", offset=9, size=5).data == DATA[9:14]
            assert server.connections == 5


def test_models() -> None:
    """Learned from plain signed requests alone."""
    url = "https://bucket.s3.example:9000/pre%20fix/packs/00"
    headers = {"authorization": SIGNED}
    model = RequestTemplate(
        "https://bucket.s3.example:9000", "bucket.s3.example:9000", "/pre%20fix/", "eu-1"
    )
    assert request_template(url, headers, "packs/00") == model
    assert request_template(url, {}, "packs/00") is None
    assert request_template(url, {"authorization": "AWS key:signature"}, "packs/00") is None
    assert request_template(url, headers, "packs/01") is None
    assert request_template(f"{url}?versionId=1", headers, "packs/00") is None
    assert request_template(url, {**headers, "x-amz-s3session-token": "t"}, "packs/00") is None
