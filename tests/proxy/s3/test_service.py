"""The S3 interface over HTTP, with boto3 and with requests that boto3 does not send."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.protocol.wire import Snapshot
from lodefs.proxy.api.responses import Answer
from lodefs.proxy.http.tokens import create_s3_token, create_token, delete_token
from lodefs.proxy.metrics.server_metrics import Metrics
from lodefs.proxy.node import NamePage
from lodefs.proxy.s3.buckets import S3Settings
from lodefs.proxy.s3.service import LISTING_FOR_S, S3Service
from tests.support.proxy.fake_node import (
    COMMIT_TIME_S,
    DictNode,
    RunningProxy,
    name_page,
    start_proxy,
)

BIG = bytes(range(256)) * 4096
FILES = {
    b"a-b": b"1",
    b"a.txt": b"22",
    b"a/x": b"333",
    "é +%@".encode(): b"special",
    b"zero": b"",
    b"big": BIG,
    b"dir/in/deep": b"4444",
    b"odd#1?/x#y": b"55555",
}
SETTINGS = S3Settings(
    aliases={
        "data": Spec("demo", "main", b""),
        "inner": Spec("demo", "main", b"dir/in"),
        "gone": Spec("demo", "nothing", b""),
        "foreign": Spec("secret", "main", b""),
        "odd": Spec("demo", "main", b"odd#1?"),
    },
    domain="s3.test",
)


class Rig:
    """A proxy with an S3 endpoint, and keys for it."""

    def __init__(self, proxy: RunningProxy, tokens: Path, secret: str) -> None:
        self.proxy = proxy
        self.tokens = tokens
        self.secret = secret

    def client(self, name: str = "team", secret: str | None = None, **config: Any) -> Any:
        """boto3's client."""
        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.proxy.s3_port}",
            region_name="eu-west-1",
            aws_access_key_id=name,
            aws_secret_access_key=secret or self.secret,
            config=Config(
                s3={"addressing_style": "path"},
                retries={"total_max_attempts": 1},
                **{"signature_version": "s3v4", **config},
            ),
        )

    def get(self, target: str, method: str = "GET", **headers: str) -> tuple[int, Any, bytes]:
        """An unsigned request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.s3_port, timeout=60)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, target, headers=names)
        answer = connection.getresponse()
        found = answer.status, answer.headers, answer.read()
        connection.close()
        return found


@contextmanager
def serving(folder: Path, *, tokens: bool) -> Iterator[Rig]:
    """A Rig."""
    path = folder / "tokens"
    secret = create_s3_token(path, "team", ["demo"], now_s=1).s3_secret
    node = DictNode(FILES, extents=True)
    with start_proxy(node, tokens_file=path if tokens else None, s3=SETTINGS) as proxy:
        yield Rig(proxy, path, secret)
    node.close()


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with serving(tmp_path_factory.mktemp("s3"), tokens=True) as made:
        yield made


@pytest.fixture(scope="module")
def open_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with serving(tmp_path_factory.mktemp("s3"), tokens=False) as made:
        yield made


def code_of(call: Any, **arguments: Any) -> tuple[str, int]:
    """Code and status of a refusal."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    found = caught.value.response
    return found["Error"]["Code"], found["ResponseMetadata"]["HTTPStatusCode"]


@pytest.mark.parametrize(("bucket", "base"), [("data", ""), ("lodefs", "demo@main/")])
def test_every_byte(rig: Rig, bucket: str, base: str) -> None:
    """boto3 lists all keys in the order of their bytes, and reads each whole and in ranges."""
    s3 = rig.client()
    pages = s3.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Prefix=base, PaginationConfig={"PageSize": 2}
    )
    found = [one for page in pages for one in page["Contents"]]
    assert [one["Key"].removeprefix(base).encode() for one in found] == sorted(FILES)
    for one in found:
        content = FILES[one["Key"].removeprefix(base).encode()]
        for _ in range(2):  # the second time by the fast path
            got = s3.get_object(Bucket=bucket, Key=one["Key"])
            assert (got["Body"].read(), got["ETag"]) == (content, one["ETag"])
            assert got["LastModified"].timestamp() == one["LastModified"].timestamp()
        head = s3.head_object(Bucket=bucket, Key=one["Key"])
        assert (head["ContentLength"], head["ETag"]) == (len(content), one["ETag"])
        assert set(head["Metadata"]) == {"lodefs-commit", "lodefs-digest"}
        assert one["LastModified"].timestamp() == COMMIT_TIME_S
    assert rig.proxy.call(lambda: rig.proxy.server.metrics.fast_answers) > 0


@pytest.mark.parametrize(
    ("wanted", "part"),
    [
        ("bytes=0-0", slice(0, 1)),
        ("bytes=5-99999999", slice(5, None)),
        ("bytes=1000000-", slice(1_000_000, None)),
        ("bytes=-262144", slice(-262_144, None)),
        ("bytes=-99999999", slice(None)),
    ],
)
def test_ranges(rig: Rig, wanted: str, part: slice) -> None:
    """Each form of a range fetches its bytes."""
    for _ in range(2):
        got = rig.client().get_object(Bucket="data", Key="big", Range=wanted)
        assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
        assert got["Body"].read() == BIG[part]
        assert got["ContentRange"].endswith(f"/{len(BIG)}")


@pytest.mark.parametrize("key", ["big", "zero"])
def test_ranges_that_are_not_there(rig: Rig, key: str) -> None:
    """A range beyond the end is refused; what is no range, or several, fetches all."""
    s3 = rig.client()
    assert code_of(s3.get_object, Bucket="data", Key=key, Range="bytes=9999999-") == (
        "InvalidRange",
        416,
    )
    for wanted in ("bytes=5-1", "bytes=a-b", "lines=1-2", "bytes=0-1,3-4"):
        got = s3.get_object(Bucket="data", Key=key, Range=wanted)
        assert got["Body"].read() == FILES[key.encode()]


def test_conditions(rig: Rig) -> None:
    """Tags and dates are compared as S3 does it."""
    s3 = rig.client()
    etag = s3.head_object(Bucket="data", Key="big")["ETag"]
    before, after = COMMIT_TIME_S - 1, COMMIT_TIME_S + 1
    for good in (
        {"IfMatch": etag},
        {"IfMatch": "*"},
        {"IfNoneMatch": '"other"'},
        {"IfModifiedSince": before},
        {"IfUnmodifiedSince": after},
        {"IfMatch": etag, "IfUnmodifiedSince": before},
        {"IfNoneMatch": '"other"', "IfModifiedSince": after},
        {"IfModifiedSince": after},  # the branch was set back: the client has another commit
    ):
        assert s3.get_object(Bucket="data", Key="big", **good)["Body"].read() == BIG
    for failed in ({"IfMatch": '"other"'}, {"IfUnmodifiedSince": before}):
        got = code_of(s3.get_object, Bucket="data", Key="big", **failed)
        assert got == ("PreconditionFailed", 412)
    for same in ({"IfNoneMatch": etag}, {"IfModifiedSince": COMMIT_TIME_S}):
        assert code_of(s3.get_object, Bucket="data", Key="big", **same) == ("304", 304)


def test_if_range(open_rig: Rig) -> None:
    """A tag lets a range count. A date never does: two commits may be of the same second."""
    etag = open_rig.get("/data/big")[1]["ETag"]
    date = formatdate(COMMIT_TIME_S, usegmt=True)
    for wanted, status in ((etag, 206), (date, 200), ('"other"', 200)):
        assert open_rig.get("/data/big", Range="bytes=0-0", If_Range=wanted)[0] == status


def test_parts(rig: Rig) -> None:
    """Objects have one part, which is all of them."""
    s3 = rig.client()
    got = s3.get_object(Bucket="data", Key="big", PartNumber=1)
    assert (got["ContentLength"], got["ResponseMetadata"]["HTTPStatusCode"]) == (len(BIG), 206)
    assert code_of(s3.get_object, Bucket="data", Key="big", PartNumber=2)[1] == 416
    assert code_of(s3.get_object, Bucket="data", Key="big", PartNumber=0)[1] == 400


def test_headers_of_choice(rig: Rig, open_rig: Rig) -> None:
    """A signed request, or presigned URL, may choose headers; an unsigned one may not."""
    wanted = {"ResponseContentType": "x/y", "ResponseCacheControl": "no-store"}
    got = rig.client().get_object(Bucket="data", Key="big", **wanted)
    assert (got["ContentType"], got["CacheControl"]) == ("x/y", "no-store")
    url = rig.client().generate_presigned_url(
        "get_object", {"Bucket": "data", "Key": "é +%@", "ResponseContentType": "x/y"}
    )
    status, headers, body = rig.get(url.partition(str(rig.proxy.s3_port))[2])
    assert (status, headers["Content-Type"], body) == (200, "x/y", b"special")
    # whatever type it is asked for as, it runs nothing in a browser
    assert headers["Content-Security-Policy"] == "sandbox"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert open_rig.get("/data/big?response-content-type=x/y")[0] == 400
    assert rig.client().get_object(Bucket="data", Key="zero")["ContentType"] != "x/y"
    bad = {"ResponseContentType": "x\r\nSet-Cookie: y"}
    assert code_of(rig.client().get_object, Bucket="data", Key="big", **bad)[1] == 400


def test_who_may_read(rig: Rig) -> None:
    """Wrong secrets, unknown keys, unsigned requests, foreign repositories: each has its code."""
    assert code_of(rig.client(secret="x" * 43).list_buckets) == ("SignatureDoesNotMatch", 403)
    assert code_of(rig.client("nobody").list_buckets) == ("InvalidAccessKeyId", 403)
    assert code_of(rig.client(signature_version=UNSIGNED).list_buckets) == ("AccessDenied", 403)
    s3 = rig.client()
    assert code_of(s3.list_objects_v2, Bucket="foreign") == ("NoSuchBucket", 404)
    with pytest.raises(ClientError) as caught:
        s3.list_objects_v2(Bucket="foreign")
    assert "secret" not in str(caught.value)  # the repository behind the bucket
    denied = code_of(s3.get_object, Bucket="lodefs", Key="secret@main/x")
    assert denied == ("AccessDenied", 403)
    found = [one["Name"] for one in s3.list_buckets()["Buckets"]]
    assert found == ["data", "gone", "inner", "lodefs", "odd"]
    # a token of HTTP alone is no key, and a key that was deleted is none any more
    create_token(rig.tokens, "plain", ["*"], now_s=1)
    secret = create_s3_token(rig.tokens, "other", ["demo"], now_s=1).s3_secret
    served = rig.proxy.server.tokens
    rig.proxy.until(lambda: any(
        book.access_key("other") is not None for book in served._endpoints))  # fmt: skip
    assert code_of(rig.client("plain").list_buckets) == ("InvalidAccessKeyId", 403)
    assert rig.client("other", secret).head_object(Bucket="data", Key="big")
    assert rig.client("other", secret).head_object(Bucket="data", Key="big")
    delete_token(rig.tokens, "other")
    rig.proxy.until(lambda: all(
        book.access_key("other") is None for book in served._endpoints))  # fmt: skip
    assert code_of(rig.client("other", secret).head_object, Bucket="data", Key="big")[1] == 403
    again = create_s3_token(rig.tokens, "other", ["demo"], now_s=1).s3_secret
    assert again != secret


def test_what_is_not_there(rig: Rig) -> None:
    """Unknown buckets, keys, revisions and repositories are 404; a directory is no object."""
    s3 = rig.client()
    assert code_of(s3.list_objects_v2, Bucket="nothing") == ("NoSuchBucket", 404)
    assert code_of(s3.list_objects_v2, Bucket="gone") == ("NoSuchBucket", 404)
    for key in ("nothing", "a", "a/", "big/x", "./big", "a//x", "dir/../big", "x\0y", "n" * 300):
        assert code_of(s3.get_object, Bucket="data", Key=key) == ("NoSuchKey", 404)
    for key in ("demo@nothing/x", "demo", "demo@main", "no repo@main/x", "x"):
        got = code_of(s3.get_object, Bucket="lodefs", Key=key)
        assert got == ("NoSuchKey", 404)
    assert code_of(s3.head_object, Bucket="data", Key="a") == ("404", 404)
    assert s3.list_objects_v2(Bucket="lodefs", Prefix="demo@nothing/")["KeyCount"] == 0
    assert s3.list_objects_v2(Bucket="data", Prefix="nothing")["KeyCount"] == 0


def test_writes_are_refused(rig: Rig) -> None:
    """Each way of writing is 405, with S3's code."""
    s3 = rig.client()
    wanted = ("MethodNotAllowed", 405)
    assert code_of(s3.put_object, Bucket="data", Key="new", Body=b"x" * 100_000) == wanted
    assert code_of(s3.delete_object, Bucket="data", Key="big") == wanted
    assert code_of(s3.create_bucket, Bucket="new") == wanted
    assert code_of(s3.create_multipart_upload, Bucket="data", Key="new") == wanted
    assert code_of(s3.copy_object, Bucket="data", Key="n", CopySource="data/big") == wanted
    assert code_of(s3.list_object_versions, Bucket="data") == ("NotImplemented", 501)


def test_small_questions(rig: Rig) -> None:
    """What clients ask first is answered as by a bucket that nobody has configured."""
    s3 = rig.client()
    assert s3.get_bucket_location(Bucket="data")["LocationConstraint"] is None
    assert "Status" not in s3.get_bucket_versioning(Bucket="data")
    assert s3.head_bucket(Bucket="data")["BucketRegion"] == "us-east-1"
    assert s3.get_object_tagging(Bucket="data", Key="big")["TagSet"] == []
    assert s3.get_bucket_acl(Bucket="data")["Grants"]
    assert code_of(s3.get_bucket_policy, Bucket="data") == ("NoSuchBucketPolicy", 404)
    assert code_of(s3.head_bucket, Bucket="nothing") == ("404", 404)


def test_listing_v1(rig: Rig) -> None:
    """V1 pages by markers, and shows common prefixes once."""
    s3 = rig.client()
    pages = s3.get_paginator("list_objects").paginate(
        Bucket="data", Delimiter="/", PaginationConfig={"PageSize": 1}
    )
    keys, prefixes = [], []
    for page in pages:
        keys += [one["Key"] for one in page.get("Contents", [])]
        prefixes += [one["Prefix"] for one in page.get("CommonPrefixes", [])]
    assert (keys, prefixes) == (["a-b", "a.txt", "big", "zero", "é +%@"], ["a/", "dir/", "odd#1?/"])


def test_listing_v1_of_two_clients(tmp_path: Path) -> None:
    """A client's pages hold what it may read, also where another one, who may read other
    repositories, was given the same marker meanwhile."""
    path = tmp_path / "tokens"
    secrets = {
        name: create_s3_token(path, name, patterns, now_s=1).s3_secret
        for name, patterns in (("a", ["a", "c"]), ("b", ["a", "b"]))
    }

    class Three(DictNode):
        async def repos(self, prefix: bytes, start: bytes) -> NamePage:
            return name_page("abc", "@", prefix, start)

        async def revisions(self, repo: str, start: bytes) -> NamePage:
            return name_page(["main"], "/", b"", start)

        async def snapshot(self, repo: str, rev: str) -> Snapshot:
            return await super().snapshot("demo", "main")

    with start_proxy(Three({b"x": b""}), tokens_file=path, s3=SETTINGS) as proxy:
        rig = Rig(proxy, path, "")
        clients = {name: rig.client(name, secret) for name, secret in secrets.items()}

        def page(name: str, marker: str) -> list[str]:
            found = clients[name].list_objects(Bucket="lodefs", MaxKeys=1, Marker=marker)
            return [one["Key"] for one in found["Contents"]]

        assert [page(name, "") for name in "ab"] == [["a@main/x"], ["a@main/x"]]
        assert [page(name, "a@main/x") for name in "ba"] == [["b@main/x"], ["c@main/x"]]
        for name in "ba":
            page(name, "")
        assert [page(name, "a@main/x") for name in "ab"] == [["c@main/x"], ["b@main/x"]]


def test_a_bucket_of_an_odd_directory(rig: Rig) -> None:
    """'#' and '?' in the directory of a bucket, and in keys, are plain characters."""
    s3 = rig.client()
    assert [one["Key"] for one in s3.list_objects_v2(Bucket="odd")["Contents"]] == ["x#y"]
    for _ in range(2):
        assert s3.get_object(Bucket="odd", Key="x#y")["Body"].read() == b"55555"


def test_listing_v1_later() -> None:
    """Pages of V1 are of one commit for a quarter of an hour; a marker that comes later is a key
    of what the branch is then."""
    asked: list[str] = []

    class Moving(DictNode):
        async def snapshot(self, repo: str, rev: str) -> Snapshot:
            asked.append(rev)
            return await super().snapshot(repo, rev)

    node, now_s = Moving({b"a": b"", b"b": b"", b"c": b""}), [1000.0]
    service = S3Service(node, SETTINGS, None, Metrics("", dict), clock_s=lambda: now_s[0])

    def page(marker: str) -> bytes:
        target = f"/data?max-keys=1&marker={marker}"
        return asyncio.run(service.answer("GET", target, {})).body

    assert b"<NextMarker>a</NextMarker>" in page("")
    asked.clear()
    assert b"<Key>b</Key>" in page("a")
    now_s[0] += LISTING_FOR_S + 1
    assert b"<Key>b</Key>" in page("a")
    assert asked == ["main", node.commit, "main", "main"]


@pytest.mark.parametrize("keys_max", [0, 10_000])
def test_page_sizes(rig: Rig, keys_max: int) -> None:
    """No key at all may be asked for; more than a thousand are a thousand."""
    got = rig.client().list_objects_v2(Bucket="data", MaxKeys=keys_max)
    wanted = len(FILES) if keys_max else 0
    assert (got["KeyCount"], got["MaxKeys"]) == (wanted, min(keys_max, 1000))
    assert got["IsTruncated"] is False
    assert rig.client().list_objects_v2(Bucket="data", ContinuationToken="")["KeyCount"]


def test_bad_listings(rig: Rig) -> None:
    """Malformed parameters are 400."""
    s3 = rig.client()
    for bad in ({"MaxKeys": -1}, {"EncodingType": "x"}, {"ContinuationToken": "x"}):
        assert code_of(s3.list_objects_v2, Bucket="data", **bad) == ("InvalidArgument", 400)


def test_without_tokens(open_rig: Rig) -> None:
    """Where HTTP needs no token, requests need no signature, and a signature is not looked at."""
    assert open_rig.get("/data/a.txt")[2] == b"22"
    assert open_rig.get("/data/a.txt")[2] == b"22"
    assert open_rig.client("any", "thing").head_object(Bucket="data", Key="big")
    assert open_rig.get("/foreign")[0] == 404


def test_hosts(open_rig: Rig) -> None:
    """A host below the domain is a bucket."""
    for _ in range(2):
        assert open_rig.get("/a.txt", Host="data.s3.test:7480")[2] == b"22"
        assert open_rig.get("/deep", Host="inner.S3.test")[2] == b"4444"
    assert b"<Name>data</Name>" in open_rig.get("/?list-type=2", Host="data.s3.test")[2]
    assert open_rig.get("/a.txt", Host="other.test")[0] == 404


def test_presigned_urls_are_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log shows what was asked for, without the signature: also where the answer fails, before
    its first byte or in the middle."""
    with caplog.at_level("DEBUG", "lodefs"), serving(tmp_path, tokens=True) as rig:
        url = rig.client().generate_presigned_url("get_object", {"Bucket": "data", "Key": "big"})
        target = url.partition(str(rig.proxy.s3_port))[2]
        signature = target.rpartition("Signature=")[2][:64]
        assert rig.get(target)[2] == BIG
        rig.proxy.until(lambda: "GET /data/big" in caplog.text)

        async def broken(*_: object) -> Answer:
            raise ValueError("a defect")

        async def breaking_off(*_: object) -> Answer:
            return Answer(200, [("Content-Length", "10")], pieces=endless(), size_bytes=10)

        async def endless() -> AsyncGenerator[bytes, None]:
            yield b"x"
            raise ValueError("a defect")

        for failing, said in ((broken, "request failed"), (breaking_off, "an answer failed")):
            monkeypatch.setattr(S3Service, "answer", failing)
            with suppress(http.client.IncompleteRead, ConnectionError):
                rig.get(target)
            rig.proxy.until(lambda said=said: said in caplog.text)
    assert signature
    assert signature not in caplog.text


def test_no_good_http(open_rig: Rig) -> None:
    """Long headers and lines are refused in XML, too; others are served on."""
    status, headers, body = open_rig.get("/data/a.txt", X_Long="x" * 9000)
    assert (status, headers["Content-Type"]) == (431, "application/xml")
    assert b"<Code>InvalidRequest</Code>" in body
    assert open_rig.get("/data/a.txt", X_Long="x" * 8000)[2] == b"22"
    assert open_rig.get("/data/%zz")[0] == 404
    assert open_rig.get("/data/%ff")[0] == 400
