"""The contract suite on every source that a URL names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from loadtests.services import S3Server
from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.objects.interface import ObjectInfo
from lodefs.chunkstore.objects.s3.boto import S3Options
from lodefs.chunkstore.objects.s3.bucket import Level, S3Bucket
from lodefs.chunkstore.objects.s3.store import is_archived
from lodefs.chunkstore.push.remote.remote_files import RemoteFiles, is_url, open_remote
from lodefs.chunkstore.push.remote.s3_files import S3Files, open_s3_files
from tests.support.chunkstore.memory_remote import MemoryRemote
from tests.support.chunkstore.remote_files_suite import Put, RemoteFilesSuite, walked


class TestMemory(RemoteFilesSuite):
    """The reference."""

    @pytest.fixture
    def source(self) -> MemoryRemote:
        return MemoryRemote({})

    @pytest.fixture
    def put(self, source: MemoryRemote) -> Put:
        return source.files.__setitem__


@pytest.mark.rgw
@pytest.mark.slow
class TestRgw(RemoteFilesSuite):
    """Ceph RGW."""

    @pytest.fixture
    def source(self, rgw: S3Server, rgw_bucket: str) -> Iterator[RemoteFiles]:
        source = open_s3_files(f"s3://{rgw_bucket}/in put?endpoint_url={rgw.endpoint_url}")
        yield source
        source.close()

    @pytest.fixture
    def put(self, rgw: S3Server, rgw_bucket: str) -> Iterator[Put]:
        bucket = S3Bucket(rgw_bucket, "", S3Options(endpoint_url=rgw.endpoint_url))
        yield lambda path, data: put_into(bucket, f"in put/{path.decode()}", data)
        bucket.close()

    def test_levels(self, source: S3Files, put: Put) -> None:
        """A directory with many objects below it is listed by itself; the walk finds the same."""
        paths = [b"b", b"c", b"d/e", b"d/f/g", b"d/f/h", b"d.x", b"i/j"]
        for path in [*paths, b"i/", b"k/"]:
            put(path, b"" if path.endswith(b"/") else b"1")
        several = [S3Files(source._bucket, "in put", most) for most in (0, 1, 2, 3, 100)]
        assert [sorted(walked(one)) for one in several] == [sorted(paths)] * 5
        assert all(b"k" in one.list(b"").subdirectories for one in several)

    def test_keys_that_are_no_paths(self, source: S3Files, put: Put) -> None:
        """They are listed where they are found, under names that no file can have."""
        for path in (b"/x", b"a//b", b"a/../c", b"a/ok"):
            put(path, b"1")
        for most in (0, 100):
            one = S3Files(source._bucket, "in put", most)
            assert sorted(one.list(b"").subdirectories) == [b"", b"a"]
            assert sorted(one.list(b"a").subdirectories) == [b"", b".."]

    def test_paths_that_are_no_text(self, source: S3Files) -> None:
        """A list may name them, but no key can be one: the error names the path and the source."""
        for ask in (source.find, source.list, lambda path: source.read(path, 0, 1)):
            with pytest.raises(InvalidInput, match=r"a\\xff is no key in s3://.*UTF-8"):
                ask(b"a\xff")

    def test_one_object(self, source: S3Files, put: Put) -> None:
        """A prefix may be the key of one object."""
        put(b"a", b"one")
        one = S3Files(source._bucket, "in put/a")
        found = one.find(b"")
        assert found is not None and (found.name, found.size_bytes) == (b"a", 3)
        assert one.read(b"", 1, 9).data == b"ne"
        assert source.find(b"") is None

    def test_requester_pays(
        self, rgw: S3Server, source: S3Files, put: Put, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every request says that its sender pays, and signs that, if the environment says so."""
        put(b"a", b"one")
        monkeypatch.setenv("AWS_REQUEST_PAYER", "requester")
        paying = open_s3_files(source.location)
        sent: list[str] = []

        def note(request: Any, **_: Any) -> None:
            sent.append(str(request.headers["Authorization"]))

        paying._bucket._bucket._client.meta.events.register("before-send.s3", note)
        assert [file.name for file in paying.list(b"").files] == [b"a"]
        assert {bytes(paying.read(b"a", 0, 9).data) for _ in range(3)} == {b"one"}
        paying.close()
        assert len(sent) == 4 and all("x-amz-request-payer" in one for one in sent)

    def test_long_keys(self, source: S3Files, put: Put) -> None:
        """Keys may be long; S3 allows 1,024 bytes, and this server fewer."""
        path = b"/".join([b"x" * 200] * 4)
        put(path, b"1")
        assert walked(source) == {path: 1}
        assert source.read(path, 0, 1).data == b"1"

    def test_a_store_is_seen(self, source: S3Files, put: Put, rgw_bucket: str) -> None:
        """A store in the source, or around it, is seen by its first object."""
        place = f"s3://{rgw_bucket}/in put"
        assert not source.holds(f"{place}/s")
        put(b"s/store.json", b"{}")
        assert source.holds(f"{place}/s")
        assert not source.holds(f"s3://{rgw_bucket}/other")
        assert not source.holds("s3://another/in put/s")


def put_into(bucket: S3Bucket, key: str, data: bytes) -> None:
    bucket.put(key, [data])


BAD_URLS = ["s3://", "s3://b/a//c", "s3://b/../c", "s3://k:s@bucket/x"]
NO_TEXT = os.fsdecode(b"/\xff")


@pytest.mark.parametrize("url", [*BAD_URLS, f"s3://bucket{NO_TEXT}", f"http://[::1]{NO_TEXT}"])
def test_bad_url(url: str) -> None:
    """A URL that names no files below a prefix is refused, with a secret in it too."""
    with pytest.raises(InvalidInput):
        open_remote(url)


def test_urls() -> None:
    """Paths and URLs of local files are no URLs of sources."""
    assert is_url("s3://b") and is_url(b"hf://b")
    assert not any(map(is_url, ("s3:/b", "/s3://b", "./s3://b", "a", "-", "file:///x")))


class Archive:
    """A bucket with objects in all states of Glacier."""

    url = "s3://archive"

    def __init__(self, items: list[dict[str, Any]]) -> None:
        self._found = [ObjectInfo(one["Key"], 1, "e", is_archived(one)) for one in items]

    def list(self, prefix: str, limit: int) -> Iterator[ObjectInfo]:
        return iter(self._found[:limit])

    def levels(self, prefix: str) -> Iterator[Level]:
        yield Level(self._found, [])


@pytest.mark.parametrize(
    ("restore", "archived"),
    [
        ({}, True),
        ({"Restore": 'ongoing-request="true"'}, True),
        ({"Restore": 'ongoing-request="false", expiry-date="Fri, 21 Dec 2012"'}, False),
    ],
)
def test_archived_objects_of_a_head(restore: dict[str, str], archived: bool) -> None:
    """A HEAD tells in another form than a list whether an object has been restored."""
    assert is_archived({"StorageClass": "GLACIER", **restore}) is archived


@pytest.mark.parametrize("flat_keys_max", [0, 100])
def test_archived_objects(flat_keys_max: int) -> None:
    """They are named when they are listed; those that have been restored can be read."""
    restored = {"RestoreStatus": {"IsRestoreInProgress": False, "RestoreExpiryDate": "tomorrow"}}
    restoring = {"RestoreStatus": {"IsRestoreInProgress": True}}
    items: list[dict[str, Any]] = [
        {"Key": "a", "StorageClass": "GLACIER"},
        {"Key": "b", "StorageClass": "DEEP_ARCHIVE", **restoring},
        {"Key": "c", "StorageClass": "GLACIER", **restored},
        {"Key": "d", "StorageClass": "GLACIER_IR"},
        {"Key": "e"},
    ]
    bucket: Any = Archive(items)
    listing = S3Files(bucket, "", flat_keys_max).list(b"")
    assert [file.name for file in listing.files] == [b"c", b"d", b"e"]
    assert [one.name for one in listing.unreadable] == [b"a", b"b"]
    assert "a is archived (Glacier): restore it" in listing.unreadable[0].reason
