"""S3 servers that fail: every failure becomes the right error, within its time."""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtests.services import S3Server
from lodefs.chunkstore.errors import (
    AlreadyExists,
    Changed,
    DeadlineExceeded,
    Denied,
    InvalidInput,
    LodefsError,
    NoSpace,
    NotFound,
    Unavailable,
    Unsupported,
)
from lodefs.chunkstore.objects.interface import Md5Buffers, ObjectStore
from lodefs.chunkstore.objects.open_url import StoreOptions, open_objects
from lodefs.chunkstore.objects.s3.boto import S3Options
from lodefs.chunkstore.objects.s3.errors import error_of
from lodefs.chunkstore.objects.s3.store import S3Objects
from lodefs.chunkstore.objects.timed_requests import ANSWER_SIZE_BYTES_MAX
from tests.support.chunkstore.bad_server import Answer, BadServer
from tests.support.chunkstore.certificates import certificate
from tests.support.chunkstore.object_store_suite import MUCH

pytestmark = pytest.mark.usefixtures("aws_user")

LONG_S = 60.0  # never reached, or the test fails on its error's class
SHORT_S = 0.1
ANSWER_S = 2.0  # enough for any answer that is sent

CALLS: dict[str, Callable[[ObjectStore], Any]] = {
    "get": lambda objects: objects.get("a", size=MUCH),
    "head": lambda objects: objects.head("a"),
    "put": lambda objects: objects.put("a", [b"x" * 1000, b"y"], if_absent=True),
    "list": lambda objects: list(objects.list("")),
    "delete": lambda objects: objects.delete("a"),
}


@pytest.fixture
def server() -> Iterator[BadServer]:
    with BadServer(lambda _: Answer(200)) as server:
        yield server


@pytest.fixture
def objects(server: BadServer) -> Iterator[S3Objects]:
    yield from opened(server.endpoint_url)


def opened(
    endpoint_url: str,
    *,
    read_timeout_s: float = LONG_S,
    transfer_timeout_s: float = LONG_S,
    first_timeout_s: float | None = None,
    rate_bytes_s_min: float | None = None,
) -> Iterator[S3Objects]:
    objects = S3Objects(
        "bucket",
        "prefix",
        S3Options(
            endpoint_url=endpoint_url,
            connect_timeout_s=LONG_S,
            read_timeout_s=read_timeout_s,
            transfer_timeout_s=transfer_timeout_s,
            first_timeout_s=first_timeout_s,
            rate_bytes_s_min=rate_bytes_s_min,
        ),
    )
    yield objects
    objects.close()


def error_answer(status: int, code: str, **headers: str) -> Answer:
    body = f"<Error><Code>{code}</Code><Message>said so</Message></Error>".encode()
    return Answer(status, body, {"Content-Type": "application/xml", **headers})


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_busy_server(
    server: BadServer, objects: S3Objects, call: Callable[[ObjectStore], Any]
) -> None:
    """503 is Unavailable, with the time that the server asks for; it is asked once."""
    server.script = lambda _: error_answer(503, "SlowDown", **{"Retry-After": "7"})
    with pytest.raises(Unavailable, match="prefix") as caught:
        call(objects)
    assert caught.value.retry_after_s == 7
    assert len(server.requests) == 1


def test_busy_server_is_asked_again(server: BadServer) -> None:
    """Through open_objects a server that is busy twice is no error; the bytes sent are whole."""
    answers = [error_answer(503, "SlowDown"), error_answer(500, "InternalError"), Answer(200)]
    server.script = lambda _: answers.pop(0)
    store = open_objects("s3://bucket/prefix", StoreOptions(endpoint_url=server.endpoint_url))
    assert store.put("a", [b"123", b"", bytearray(b"45")]) == '"1"'
    store.close()
    assert [request.body for request in server.requests] == [b"12345"] * 3


def test_put_with_an_md5(server: BadServer, objects: S3Objects) -> None:
    """It is sent, and signed, in place of the body; after a refusal bodies are signed again."""
    data = Md5Buffers([b"ab", b"cd"], bytes(range(16)))
    etag = f'"{data.md5.hex()}"'
    server.script = lambda _: Answer(200, headers={"ETag": etag})
    assert objects.put("a", data) == etag
    (first,) = server.requests
    assert first.body == b"abcd"
    assert first.headers["content-md5"] == "AAECAwQFBgcICQoLDA0ODw=="
    assert first.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert "content-md5;" in first.headers["authorization"]
    server.script = lambda request: (
        error_answer(400, "BadDigest") if "content-md5" in request.headers else Answer(200)
    )
    for _ in range(2):
        assert objects.put("a", data) == '"1"'
    _, refused, *later = server.requests
    assert "content-md5" in refused.headers
    sha256 = hashlib.sha256(b"abcd").hexdigest()
    assert [(r.body, r.headers["x-amz-content-sha256"]) for r in later] == [(b"abcd", sha256)] * 2


@pytest.mark.parametrize(
    "answer", [error_answer(501, "NotImplemented"), Answer(200, headers={"ETag": f'"{"0" * 32}"'})]
)
def test_a_server_that_does_not_check_an_md5(
    server: BadServer, objects: S3Objects, answer: Answer
) -> None:
    """It refuses it, or answers with another one: the body is put once more, now signed, and so
    are later ones."""
    server.script = lambda request: answer if "content-md5" in request.headers else Answer(200)
    for _ in range(2):
        assert objects.put("a", Md5Buffers([b"abcd"], bytes(16)[:-1] + b"1")) == '"1"'
    assert ["content-md5" in request.headers for request in server.requests] == [True, False, False]


def test_a_new_object_that_a_server_did_not_check(server: BadServer) -> None:
    """It is read back: as the put was conditional, it cannot be repeated."""
    partial = {"ETag": '"1"', "Content-Range": "bytes 0-3/4"}
    data = Md5Buffers([b"ab", b"cd"], bytes(16))
    for body in (b"abcd", b"abce"):
        server.script = lambda request, body=body: (
            Answer(206, body, partial) if request.method == "GET" else Answer(200)
        )
        for objects in opened(server.endpoint_url):
            if body == b"abcd":
                assert objects.put("a", data, if_absent=True) == '"1"'
            else:
                with pytest.raises(AlreadyExists, match="differs from the object that was put"):
                    objects.put("a", data, if_absent=True)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_silent_server(server: BadServer, call: Callable[[ObjectStore], Any]) -> None:
    """A server that takes the request and says nothing is DeadlineExceeded."""
    server.script = lambda _: Answer(hangs=True)
    for objects in opened(server.endpoint_url, read_timeout_s=SHORT_S):
        with pytest.raises(DeadlineExceeded, match="prefix"):
            call(objects)


def test_first_answer(server: BadServer) -> None:
    """A server that never answers is given up soon, with what to check and no name of a class; one
    that has answered has all of its time."""
    server.script = lambda _: Answer(hangs=True)
    for objects in opened(server.endpoint_url, first_timeout_s=ANSWER_S):
        with pytest.raises(DeadlineExceeded, match="check the endpoint") as caught:
            objects.get("a", size=MUCH)
        assert "Error" not in str(caught.value)
        assert caught.value.is_unreached
        server.script = lambda _: Answer(404)
        with pytest.raises(NotFound):
            objects.get("a", size=MUCH)
        server.script = lambda _: Answer(body=b"123", sent_bytes=1)
        with pytest.raises(Unavailable) as later:
            objects.get("a", size=MUCH)
        assert not later.value.is_unreached


def test_a_busy_server_has_answered(server: BadServer) -> None:
    """503 as the first answer of all is an answer: the server is waited for as long as any."""
    store = open_objects(
        "s3://bucket/prefix",
        StoreOptions(
            endpoint_url=server.endpoint_url, first_timeout_s=LONG_S, first_time_s_max=0.0
        ),
    )
    answers = [error_answer(503, "SlowDown"), error_answer(503, "SlowDown"), Answer(200)]
    server.script = lambda _: answers.pop(0)
    assert store.put("a", [b"1"]) == '"1"'
    store.close()
    assert not answers


def test_a_server_that_never_answered_is_not_asked_for_long(server: BadServer) -> None:
    """Where nothing answers, no attempt begins after the time for a first answer."""
    server.script = lambda _: Answer(hangs=True)
    store = open_objects(
        "s3://bucket/prefix",
        StoreOptions(
            endpoint_url=server.endpoint_url, first_timeout_s=SHORT_S, first_time_s_max=SHORT_S / 2
        ),
    )
    with pytest.raises(DeadlineExceeded):
        store.head("a")
    store.close()
    assert len(server.requests) <= 1  # none, if the time passes before it is sent


TRICKLES = [(name, "head") for name in CALLS] + [(name, "body") for name in CALLS if name != "head"]


@pytest.mark.parametrize(("call", "part"), TRICKLES)
def test_trickling_server(server: BadServer, call: str, part: str) -> None:
    """An answer that comes byte by byte without end is DeadlineExceeded for the whole transfer."""
    server.script = lambda _: Answer(
        headers={"Content-Length": "50000000"},
        trickles=part == "body",
        trickles_head=part == "head",
    )
    for objects in opened(server.endpoint_url, transfer_timeout_s=SHORT_S):
        with pytest.raises(DeadlineExceeded, match="in time"):
            CALLS[call](objects)


def test_a_rate_bounds_an_answer(server: BadServer) -> None:
    """Where a least rate is asked for, an answer that drips is given up by its own size, long
    before the time of a whole transfer is over."""
    server.script = lambda _: Answer(headers={"Content-Length": "50000"}, trickles=True)
    for objects in opened(server.endpoint_url, read_timeout_s=SHORT_S, rate_bytes_s_min=1e9):
        with pytest.raises(DeadlineExceeded, match="in time"):
            objects.get("a", size=50000)
    options = S3Options(read_timeout_s=10.0, rate_bytes_s_min=1000.0, transfer_timeout_s=60.0)
    assert [options.answer_s(size) for size in (0, 5000, 1 << 30)] == [10.0, 15.0, 60.0]


def test_trickle_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline of a transfer holds over TLS, too, and never lets ciphertext pass for data."""
    file = certificate(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(file))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file)
    with BadServer(lambda _: Answer(body=b"good"), tls=tls) as server:
        for objects in opened(server.endpoint_url):
            assert objects.get("a", size=MUCH).data == b"good"
            server.script = lambda _: Answer(headers={"Content-Length": "50000000"}, trickles=True)
            objects._requests._watchdog._timeout_s = SHORT_S
            with pytest.raises(DeadlineExceeded, match="in time"):
                objects.get("a", size=MUCH)


def test_server_that_takes_no_body(server: BadServer) -> None:
    """A server that stops reading in the middle of a put is DeadlineExceeded."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        endpoint_url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        for objects in opened(endpoint_url, transfer_timeout_s=SHORT_S):
            with pytest.raises(DeadlineExceeded):
                objects.put("a", [bytes(32 << 20)])


def test_connections_live_on_after_a_deadline(server: BadServer) -> None:
    """A transfer that was cut off leaves the store usable: the next call gets its own bytes."""
    never_ending = Answer(headers={"Content-Length": "50000000"}, trickles=True)
    answers = [Answer(body=b"good"), never_ending, Answer(body=b"fine"), Answer(body=b"fine")]
    server.script = lambda _: answers.pop(0)
    for objects in opened(server.endpoint_url):
        assert objects.get("a", size=MUCH).data == b"good"
        objects._requests._watchdog._timeout_s = SHORT_S
        with pytest.raises(DeadlineExceeded):
            objects.get("a", size=MUCH)
        objects._requests._watchdog._timeout_s = LONG_S
        assert [objects.get("a", size=MUCH).data for _ in range(2)] == [b"fine"] * 2


@pytest.mark.parametrize("name", ["get", "head", "list"])
def test_head_that_is_cut_off(server: BadServer, objects: S3Objects, name: str) -> None:
    """An answer that ends within its headers is Unavailable: not an empty object, not an empty
    list."""
    server.script = lambda _: Answer(cuts_head=True)
    with pytest.raises(Unavailable):
        CALLS[name](objects)


def test_empty_answer_is_no_empty_list(server: BadServer, objects: S3Objects) -> None:
    """A success without a listing in it is Unavailable: nobody may take it for an empty store."""
    for body in (b"", b"<html><p>please log in</p></html>"):
        server.script = lambda _, body=body: Answer(200, body)
        with pytest.raises(Unavailable):
            list(objects.list(""))


def test_half_a_body(server: BadServer, objects: S3Objects) -> None:
    """A body that ends before its Content-Length is Unavailable, not fewer bytes."""
    server.script = lambda _: Answer(body=bytes(100_000), sent_bytes=50_000)
    with pytest.raises(Unavailable, match="cannot read a in s3://bucket/prefix"):
        objects.get("a", size=MUCH)


def test_half_a_body_is_asked_for_again(server: BadServer) -> None:
    """Through open_objects half a body is no error: the whole one is fetched."""
    answers = [Answer(body=b"0123456789", sent_bytes=5), Answer(body=b"0123456789")]
    server.script = lambda _: answers.pop(0)
    store = open_objects("s3://bucket/prefix", StoreOptions(endpoint_url=server.endpoint_url))
    assert store.get("a", size=MUCH).data == b"0123456789"
    store.close()


def test_range_that_is_ignored(server: BadServer, objects: S3Objects) -> None:
    """A server that answers a range with the whole object is refused: it would be wrong bytes."""
    server.script = lambda _: Answer(200, b"0123456789")
    with pytest.raises(Unsupported, match="bytes=2-3"):
        objects.get("a", offset=2, size=2)


@pytest.mark.parametrize("status", [200, 206])
@pytest.mark.parametrize("form", ["length", "chunked"])
def test_more_than_was_asked_for(
    server: BadServer, objects: S3Objects, status: int, form: str
) -> None:
    """A server that sends without end, with a Content-Length that says so or with none, is left
    after what was asked for: no more is held, and nobody waits for the rest."""
    endless = {"Content-Range": "bytes 0-9/10"}
    endless |= (
        {"Content-Length": f"{1 << 40}"} if form == "length" else {"Transfer-Encoding": "chunked"}
    )
    body = b"".join(b"10000\r\n%s\r\n" % bytes(0x10000) for _ in range(64))
    server.script = lambda _: Answer(status, body, endless)
    tracemalloc.start()
    try:
        with pytest.raises((Unsupported, Unavailable), match=r"ignores ranges|the server sends"):
            objects.get("a", size=1000)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("status", [200, 403, 503])
def test_large_answers_that_are_no_objects(
    server: BadServer, objects: S3Objects, status: int
) -> None:
    """A listing or an error of a gigabyte is given up after what a listing can have."""
    server.script = lambda _: Answer(status, b"<a>" * (2 << 20), {"Content-Length": f"{1 << 30}"})
    with pytest.raises(Unavailable, match=f"more than {ANSWER_SIZE_BYTES_MAX} bytes"):
        list(objects.list(""))


@pytest.mark.parametrize("length", ["²", "9" * 5000, "1e3"])
def test_lengths_that_are_no_numbers(server: BadServer, objects: S3Objects, length: str) -> None:
    """A Content-Length that no server can mean is an error of lodefs, before and after ranged
    reads go without boto3."""
    server.script = lambda _: Answer(206, b"0", {"Content-Range": "bytes 0-0/1"})
    assert bytes(objects.get("a", size=1).data) == b"0"
    server.script = lambda _: Answer(
        206, b"0", {"Content-Range": "bytes 0-0/1", "Content-Length": length}
    )
    for _ in range(2):
        with pytest.raises(LodefsError):
            objects.get("a", size=1)


def test_if_match_that_is_ignored(server: BadServer, objects: S3Objects) -> None:
    """A server that ignores If-Match is found out by the ETag of its answer."""
    server.script = lambda _: Answer(200, b"0123456789", {"ETag": '"new"'})
    with pytest.raises(Changed, match='"new"'):
        objects.get("a", if_match='"old"', size=MUCH)


def test_answer_that_is_no_s3(server: BadServer, objects: S3Objects) -> None:
    """What a captive portal or a load balancer says in HTML is Unavailable."""
    server.script = lambda _: Answer(200, b"<html><p>please log in", {"Content-Type": "text/html"})
    with pytest.raises(Unavailable):
        list(objects.list(""))


def test_no_server() -> None:
    """A refused connection is Unavailable and names the endpoint."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can take the port
        endpoint_url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        for objects in opened(endpoint_url):
            with pytest.raises(Unavailable, match=f"{endpoint_url}.*check the endpoint") as caught:
                objects.get("a", size=MUCH)
            assert "Error:" not in str(caught.value)


def test_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where AWS's chain finds no credentials, the error says where to put them."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for objects in opened("http://127.0.0.1:9"):
        with pytest.raises(Denied, match="AWS_ACCESS_KEY_ID"):
            objects.get("a", size=MUCH)


def test_unknown_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile that does not exist is named."""
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    with pytest.raises(LodefsError, match="no-such-profile"):
        S3Objects("bucket")


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, "NoSuchBucket", NotFound),
        (404, "NoSuchKey", NotFound),
        (404, "", NotFound),
        (403, "AccessDenied", Denied),
        (403, "InvalidAccessKeyId", Denied),
        (403, "SignatureDoesNotMatch", Denied),
        (403, "", Denied),
        (401, "", Denied),
        (400, "ExpiredToken", Denied),
        (403, "QuotaExceeded", NoSpace),
        (507, "", NoSpace),
        (412, "PreconditionFailed", Changed),
        (409, "ConditionalRequestConflict", Unavailable),
        (429, "", Unavailable),
        (500, "InternalError", Unavailable),
        (503, "SlowDown", Unavailable),
        (400, "RequestTimeout", Unavailable),
        (501, "NotImplemented", Unsupported),
        (301, "PermanentRedirect", InvalidInput),
        (400, "AuthorizationHeaderMalformed", InvalidInput),
        (400, "InvalidArgument", InvalidInput),
    ],
)
def test_answers(status: int, code: str, expected: type[LodefsError]) -> None:
    """Each code and status of S3 becomes the error that says whether to try again."""
    answer = {
        "Error": {"Code": code, "Message": "said so"},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {}},
    }
    error = error_of(answer, "cannot read a in s3://bucket", "bucket")
    assert isinstance(error, expected)
    assert "cannot read a in s3://bucket" in str(error)


def test_missing_bucket_names_the_way_out() -> None:
    """A missing bucket is told from a missing object."""
    answer = {"Error": {"Code": "NoSuchBucket"}, "ResponseMetadata": {"HTTPStatusCode": 404}}
    assert "no bucket lake: create it" in str(error_of(answer, "cannot list", "lake"))


def test_conditional_header(server: BadServer, objects: S3Objects) -> None:
    """if_absent sends If-None-Match: *, 412 is AlreadyExists, and 409 may be tried again."""
    server.script = lambda _: error_answer(412, "PreconditionFailed")
    with pytest.raises(AlreadyExists, match="a exists already"):
        objects.put("a", [b"x"], if_absent=True)
    server.script = lambda _: error_answer(409, "ConditionalRequestConflict")
    with pytest.raises(Unavailable):
        objects.put("a", [b"x"], if_absent=True)
    assert [request.headers["if-none-match"] for request in server.requests] == ["*", "*"]


def test_requests_are_plain(server: BadServer, objects: S3Objects) -> None:
    """Requests are path-style, without checksum trailers that older servers cannot read, and
    their secret never crosses the wire."""
    objects.put("a", [b"12", b"345"])
    objects.get("a", size=MUCH)
    sent = [(request.method, request.path, request.body) for request in server.requests]
    assert sent == [("PUT", "/bucket/prefix/a", b"12345"), ("GET", "/bucket/prefix/a", b"")]
    for request in server.requests:
        assert "trailer" not in str(request.headers)
        assert "chunked" not in str(request.headers)
        assert "very-secret" not in str(request.headers)


# Against a real RGW


def on_rgw(rgw: S3Server, bucket: str) -> Iterator[ObjectStore]:
    store = open_objects(f"s3://{bucket}/store", StoreOptions(endpoint_url=rgw.endpoint_url))
    yield store
    store.close()


@pytest.mark.rgw
@pytest.mark.slow
def test_wrong_credentials(rgw: S3Server, rgw_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown user and a wrong secret are Denied, whatever is asked, and not tried again."""
    for name, value in (
        ("AWS_SECRET_ACCESS_KEY", "wrong-secret"),
        ("AWS_ACCESS_KEY_ID", "UNKNOWN"),
    ):
        monkeypatch.setenv(name, value)
        for store in on_rgw(rgw, rgw_bucket):
            for call in CALLS.values():
                with pytest.raises(Denied) as caught:
                    call(store)
                assert "wrong-secret" not in str(caught.value)


@pytest.mark.rgw
@pytest.mark.slow
def test_missing_bucket(rgw: S3Server, rgw_bucket: str) -> None:
    """A bucket that does not exist is NotFound and named."""
    for store in on_rgw(rgw, f"{rgw_bucket}-missing"):
        for name in ("get", "put", "list"):
            with pytest.raises(NotFound, match=f"no bucket {rgw_bucket}-missing"):
                CALLS[name](store)
        with pytest.raises(NotFound):
            store.head("a")


@pytest.mark.rgw
@pytest.mark.slow
def test_bucket_without_write_permission(rgw: S3Server, rgw_bucket: str) -> None:
    """In a bucket that only may be read, writing is Denied and reading works."""
    for store in on_rgw(rgw, rgw_bucket):
        store.put("there", [b"x"])
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Deny",
                "Principal": "*",
                "Action": ["s3:PutObject", "s3:DeleteObject"],
                "Resource": [f"arn:aws:s3:::{rgw_bucket}/*"],
            }
        ],
    }
    client = rgw.client()
    client.put_bucket_policy(Bucket=rgw_bucket, Policy=json.dumps(policy))
    client.close()
    for store in on_rgw(rgw, rgw_bucket):
        with pytest.raises(Denied, match="check the credentials, and that they allow this"):
            store.put("a", [b"x"], if_absent=True)
        with pytest.raises(Denied):
            store.delete("there")
        assert store.get("there", size=MUCH).data == b"x"
        assert [info.key for info in store.list("")] == ["there"]
