"""Stores on Google Cloud Storage and Azure: what fails becomes the right error, within its time,
and other processes can read ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lodefs.chunkstore.errors import (
    AlreadyExists,
    Changed,
    DeadlineExceeded,
    Denied,
    InvalidInput,
    LodefsError,
    NotFound,
    Unavailable,
    Unsupported,
)
from lodefs.chunkstore.objects.clouds.azure import AzureApi, account_of
from lodefs.chunkstore.objects.clouds.gcs import GcsApi
from lodefs.chunkstore.objects.clouds.http_objects import HttpObjects, levels_of
from lodefs.chunkstore.objects.interface import Md5Buffers, NoSuchBucket, ObjectStore
from lodefs.chunkstore.objects.open_url import (
    StoreOptions,
    check_empty,
    endpoint_of,
    open_objects,
    open_server_copy,
)
from lodefs.chunkstore.objects.ranges.order import range_order
from lodefs.chunkstore.objects.ranges.stream import RangeStreams
from lodefs.chunkstore.objects.timed_requests import ANSWER_SIZE_BYTES_MAX, HttpOptions
from tests.chunkstore.objects.test_interface_clouds import azure_environment
from tests.support.chunkstore.bad_server import Answer, BadServer
from tests.support.chunkstore.cloud_servers import AzureServer, CloudServer, GcsServer

LONG_S, SHORT_S = 60.0, 0.1
DATA = bytes(range(256)) * 300

CALLS: dict[str, Callable[[ObjectStore], Any]] = {
    "get": lambda objects: objects.get("a", size=100),
    "get-end": lambda objects: objects.get("a", offset=-10, size=100),
    "head": lambda objects: objects.head("a"),
    "put": lambda objects: objects.put("a", [b"x" * 1000, b"y"], if_absent=True),
    "list": lambda objects: list(objects.list("")),
    "delete": lambda objects: objects.delete("a"),
}
CLOUDS: dict[str, Callable[[], GcsServer | AzureServer]] = {"gs": GcsServer, "az": AzureServer}


@pytest.fixture(params=CLOUDS)
def cloud(request: pytest.FixtureRequest) -> str:
    """The scheme of each cloud."""
    name: str = request.param
    return name


@pytest.fixture
def server(cloud: str) -> Iterator[BadServer]:
    with BadServer(CLOUDS[cloud]()) as server:
        yield server


def opened(cloud: str, server: BadServer, bucket: str = "bucket", **options: Any) -> HttpObjects:
    """The store at a server."""
    account = account_of(None, azure_environment(server.endpoint_url))
    api = (
        GcsApi(bucket, server.endpoint_url, lambda: "token")
        if cloud == "gs"
        else AzureApi(bucket, account, str)
    )
    return HttpObjects(api, "prefix", HttpOptions(**options))


@pytest.fixture
def objects(cloud: str, server: BadServer) -> Iterator[HttpObjects]:
    objects = opened(cloud, server)
    yield objects
    objects.close()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(503, b"", {"Retry-After": "7"}), Unavailable),
        (Answer(429), Unavailable),
        (Answer(500), Unavailable),
        (Answer(401), Denied),
        (Answer(403), Denied),
        (Answer(400), InvalidInput),
        (Answer(302, b"", {"Location": "http://127.0.0.1:9/"}), InvalidInput),
        (Answer(200, cuts_head=True), Unavailable),
    ],
)
def test_refusals(
    server: BadServer,
    objects: HttpObjects,
    call: Callable[[ObjectStore], Any],
    answer: Answer,
    error: type[LodefsError],
) -> None:
    """Each status is its error; the server is asked once, and the message names the store."""
    server.script = lambda _: answer
    with pytest.raises(error, match="prefix") as caught:
        call(objects)
    assert len(server.requests) == 1
    if answer.status in (429, 503):
        assert isinstance(caught.value, Unavailable) and caught.value.is_throttled


def test_google_refuses_with_403_what_it_throttles() -> None:
    """The reason tells; rights are not at fault."""
    body = b'{"error": {"message": "slower", "errors": [{"reason": "rateLimitExceeded"}]}}'
    with BadServer(lambda _: Answer(403, body)) as server:
        objects = opened("gs", server)
        with pytest.raises(Unavailable, match="slower") as caught:
            objects.get("a", size=1)
        assert caught.value.is_throttled
        objects.close()


def test_azure_says_that_the_clock_is_wrong() -> None:
    """The detail, which names the date, is in the message, and doctor looks for it."""
    detail = "<AuthenticationErrorDetail>Request date header too old</AuthenticationErrorDetail>"
    body = f"<Error><Code>AuthenticationFailed</Code><Message>no\nx</Message>{detail}</Error>"
    with BadServer(lambda _: Answer(403, body.encode())) as server:
        objects = opened("az", server)
        with pytest.raises(Denied, match="date header too old"):
            objects.get("a", size=1)
        objects.close()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_server_that_hangs(
    cloud: str, server: BadServer, call: Callable[[ObjectStore], Any]
) -> None:
    """A call ends in its time, whether no byte comes or bytes come for ever."""
    for answer in (Answer(hangs=True), Answer(trickles_head=True)):
        server.script = lambda _, answer=answer: answer
        objects = opened(cloud, server, transfer_timeout_s=SHORT_S, read_timeout_s=LONG_S)
        with pytest.raises((DeadlineExceeded, Unavailable)):
            call(objects)
        objects.close()


@pytest.mark.parametrize("name", ["get", "list"])
def test_a_body_that_does_not_end(cloud: str, server: BadServer, name: str) -> None:
    """A body that ends early is no shorter object, and one that trickles ends in its time."""
    objects = opened(cloud, server, transfer_timeout_s=SHORT_S, read_timeout_s=LONG_S)
    server.script = lambda _: Answer(200, b"x" * 50, sent_bytes=3)
    with pytest.raises(Unavailable, match="prefix"):
        CALLS[name](objects)
    server.script = lambda _: Answer(200, headers={"Content-Length": "90"}, trickles=True)
    with pytest.raises(DeadlineExceeded, match="prefix"):
        CALLS[name](objects)
    objects.close()


def test_a_bucket_that_is_not_there(cloud: str, server: BadServer) -> None:
    """It is another error than an object that is not there."""
    objects = opened(cloud, server, bucket="missing")
    for name in ("get", "put", "list"):
        with pytest.raises(NoSuchBucket, match="there is no bucket missing"):
            CALLS[name](objects)
    objects.close()


def test_an_answer_that_is_too_long(server: BadServer, objects: HttpObjects) -> None:
    """More bytes than were asked for are not kept."""
    server.script = lambda _: Answer(206, b"x" * 200, {"Content-Range": "bytes 0-199/200"})
    with pytest.raises(Unavailable, match="100 bytes that were asked for"):
        objects.get("a", size=100)
    server.script = lambda _: Answer(200, b"x" * (ANSWER_SIZE_BYTES_MAX + 1))
    with pytest.raises(Unavailable):
        list(objects.list(""))


def test_a_server_that_ignores_ranges(server: BadServer, objects: HttpObjects) -> None:
    """The whole object is taken for a part only where it is one."""
    server.script = lambda _: Answer(200, b"whole", {"ETag": "1", "X-Goog-Generation": "1"})
    assert bytes(objects.get("a", size=5).data) == b"whole"
    with pytest.raises(Unsupported, match="ignores ranges"):
        objects.get("a", offset=1, size=5)
    with pytest.raises((Changed, Unavailable)):  # it looks the object up, to tell why
        objects.get("a", size=5, if_match="2")


def test_an_object_that_arrives_damaged(
    cloud: str, server: BadServer, objects: HttpObjects
) -> None:
    """The MD5 that the server tells shows it: a put that may be repeated is, another is taken."""
    script = server.script

    def damaged(request: Any) -> Answer:
        if request.method in ("PUT", "POST"):
            body = request.body.replace(b"xx", b"xy")
            request = type(request)(request.method, request.path, request.headers, body)
        return script(request)

    server.script = damaged
    data = Md5Buffers([b"xx"], bytes(16))
    with pytest.raises(AlreadyExists, match="differs"):
        objects.put("a", data, if_absent=True)
    with pytest.raises(Unavailable, match="differs"):
        objects.put("a", data)


def test_another_process_reads_a_range(cloud: str, server: BadServer, objects: HttpObjects) -> None:
    """The order has all that it takes, and a version that is gone is noticed."""
    etag = objects.put("a", [DATA])
    streams = RangeStreams()
    with range_order(objects, "a", 1000, 5000, etag) as order:
        assert order is not None and order.http is not None
        view = memoryview(bytearray(5000))
        with streams.get(order.http, 5000) as body:
            body.read_into(view)
    assert view == DATA[1000:6000]
    objects.put("a", [DATA])
    with pytest.raises(Changed), streams.get(order.http, 5000):
        pass


def test_no_orders_through_a_proxy(
    cloud: str, server: BadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An HTTP proxy of the environment is used, and other processes are not told to read."""
    monkeypatch.setenv("http_proxy", server.endpoint_url)
    monkeypatch.setenv("no_proxy", "")
    account = account_of(None, azure_environment("http://elsewhere.example"))
    api = (
        GcsApi("bucket", "http://elsewhere.example", lambda: "token")
        if cloud == "gs"
        else AzureApi("bucket", account, str)
    )
    objects = HttpObjects(api, "prefix", HttpOptions())
    assert objects.put("a", [b"x"])
    assert server.requests[-1].path.startswith("http://elsewhere.example/")
    with range_order(objects, "a", 0, 1, "1") as order:
        assert order is None
    objects.close()


def test_long_listings(cloud: str, server: BadServer, objects: HttpObjects) -> None:
    """Pages follow each other; a listing that begins late asks for few of them."""
    names = [f"d{n % 50:02}/k{n:05}" for n in range(2500)]
    stored = server.script
    assert isinstance(stored, CloudServer)
    for name in names:
        stored.put(f"prefix/{name}", b"x", if_absent=False)
    assert [one.key for one in objects.list("")] == sorted(names)
    before = len(server.requests)
    found = list(objects.list("", after="d48/k02400", limit=3))
    assert [one.key for one in found] == [one for one in sorted(names) if one > "d48/k02400"][:3]
    assert len(server.requests) - before <= 3


def test_levels_of_a_listing() -> None:
    """Deepest first; none where all keys lie before."""
    assert levels_of("a/", "a/b/c/d") == ["a/b/c/", "a/b/", "a/"]
    assert levels_of("a/", "b") == []
    assert levels_of("", "a") == [""]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("gs:bucket", "begins with gs://"),
        ("gs://", "names no bucket"),
        ("gs://NO", "lower-case"),
        ("gs://user:secret@bucket/a", "must not hold credentials"),
        ("gs://bucket/a?endpoint_url=http://evil.example", "takes no settings"),
        ("gs://bucket/a/../b", "not a prefix"),
        ("az://box/a", "needs a storage account"),
        ("az://a--b/a?account=ours", "not a valid name"),
        ("az://box/a?account=", "need values"),
        ("az://box/a?account=x.evil.example", "lower-case letters and digits"),
        ("az://user:secret@box/a", "must not hold credentials"),
    ],
)
def test_urls_that_are_none(url: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what is wrong, and repeats no secret."""
    for name in ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_CONNECTION_STRING"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidInput, match=says) as caught:
        open_objects(url)
    assert "secret" not in str(caught.value)


def test_open_by_url(cloud: str, server: BadServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """URL and environment are enough; a busy server is asked again."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint_url)
    for name, value in azure_environment(server.endpoint_url).items():
        monkeypatch.setenv(name, value)
    url, script = f"{cloud}://bucket/a-store", server.script
    answers = [Answer(503), Answer(500)]
    server.script = lambda request: answers.pop() if answers else script(request)
    objects = open_objects(url)
    assert objects.url == url
    objects.put("a", [b"123"])
    assert bytes(objects.get("a", size=9).data) == b"123"
    with pytest.raises(NotFound):
        objects.get("b", size=9)
    objects.close()
    check_empty(url)
    assert open_server_copy(url, url, StoreOptions()) is None
    assert endpoint_of(url, StoreOptions()) == server.endpoint_url
