"""The contract suite on every kind of source, and the settings that name them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loadtests.services import S3Server
from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.virtual_pack import SourceObject
from lodefs.chunkstore.objects.in_place.source_objects import SourceObjects
from lodefs.chunkstore.objects.in_place.source_settings import (
    SourceSettings,
    as_table,
    parse_sources,
)
from lodefs.chunkstore.objects.open_url import StoreOptions, open_bucket, open_sources
from tests.support.chunkstore.memory_source import MemorySource
from tests.support.chunkstore.source_objects_suite import DATA, SourceObjectsSuite

NAME = "archive"
Put = Callable[[str, bytes], SourceObject]


class TestMemory(SourceObjectsSuite):
    """The reference."""

    @pytest.fixture
    def source(self) -> MemorySource:
        return MemorySource(NAME)

    @pytest.fixture
    def put(self, source: MemorySource) -> Put:
        return source.put

    @pytest.fixture
    def delete(self, source: MemorySource) -> Callable[[str], None]:
        return source.delete


class TestMemoryVersions(TestMemory):
    """The same of a bucket that keeps versions."""

    @pytest.fixture
    def source(self) -> MemorySource:
        return MemorySource(NAME, has_versions=True)


class S3Suite(SourceObjectsSuite):
    """A prefix of a bucket. A subclass gives ``server`` and ``bucket``."""

    @pytest.fixture
    def client(self, server: S3Server) -> Any:
        return server.client()

    @pytest.fixture
    def source(self, server: S3Server, bucket: str) -> Iterator[SourceObjects]:
        where = SourceSettings(f"s3://{bucket}/in/put", server.endpoint_url)
        sources = open_sources({NAME: where}, StoreOptions())
        yield sources[NAME]
        sources.close()

    @pytest.fixture
    def put(self, client: Any, server: S3Server, bucket: str) -> Put:
        def put(key: str, data: bytes) -> SourceObject:
            client.put_object(Bucket=bucket, Key=f"in/put/{key}", Body=data)
            there = StoreOptions(endpoint_url=server.endpoint_url)
            reader, _ = open_bucket(f"s3://{bucket}", there)
            part = reader.get(f"in/put/{key}", 0, len(data))
            reader.close()
            return SourceObject(NAME, key, len(data), part.etag, part.version)

        return put

    @pytest.fixture
    def delete(self, client: Any, bucket: str) -> Callable[[str], None]:
        return lambda key: client.delete_object(Bucket=bucket, Key=f"in/put/{key}")


@pytest.mark.slow
class TestMoto(S3Suite):
    """S3 as moto answers it, with versions."""

    @pytest.fixture
    def server(self, moto: S3Server) -> S3Server:
        return moto

    @pytest.fixture
    def bucket(self, moto_bucket: str, client: Any) -> str:
        on = {"Status": "Enabled"}
        client.put_bucket_versioning(Bucket=moto_bucket, VersioningConfiguration=on)
        return moto_bucket


@pytest.mark.rgw
@pytest.mark.slow
class TestRgw(S3Suite):
    """S3 as Ceph RGW answers it, without versions."""

    @pytest.fixture
    def server(self, rgw: S3Server) -> S3Server:
        return rgw

    @pytest.fixture
    def bucket(self, rgw_bucket: str) -> str:
        return rgw_bucket


@pytest.mark.rgw
@pytest.mark.slow
class TestRgwVersions(TestRgw):
    """The same, with versions."""

    @pytest.fixture
    def bucket(self, rgw_bucket: str, client: Any) -> str:
        on = {"Status": "Enabled"}
        client.put_bucket_versioning(Bucket=rgw_bucket, VersioningConfiguration=on)
        return rgw_bucket

    def test_a_version_is_read_without_boto3(self, source: SourceObjects, put: Put) -> None:
        """Ranges of a version are ordered for other processes, once one has been read."""
        found = put("a b", DATA)
        assert found.version
        assert source.read(found, 0, 9) == DATA[:9]
        with source.range_order(found, 9, 9) as order:
            assert order is not None
            assert order.http is not None
            assert b"?versionId=" in order.http.request
        assert source.read(found, 9, 9) == DATA[9:18]


def test_settings_of_sources() -> None:
    """A table gives the settings, and these the table."""
    table = {
        "archive": {"url": "s3://bucket/a b"},
        "field-7": {
            "url": "s3://b",
            "endpoint_url": "http://h",
            "region": "eu",
            "profile": "p",
        },
    }
    found = parse_sources(table)
    assert found["field-7"] == SourceSettings("s3://b", "http://h", "eu", "p")
    assert as_table(found) == table
    assert parse_sources(found) == found


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ({"archive": {"url": "gs://bucket/x"}}, "lodefs push URL"),
        ({"archive": {"url": "s3://bucket/a?region=eu"}}, "settings beside it"),
        ({"archive": {"url": "/srv/data"}}, "must be s3://"),
        ({"archive": {"ur": "s3://bucket"}}, "sources.archive"),
        ({"archive": "s3://bucket"}, "sources.archive"),
        ({"arch/ive": {"url": "s3://bucket"}}, "not a name for a source"),
        ("s3://bucket", "must be tables"),
    ],
)
def test_wrong_settings(table: object, match: str) -> None:
    """A wrong name, URL or key is refused with the right form; other kinds of source are copied."""
    with pytest.raises(InvalidInput, match=match):
        parse_sources(table)


@pytest.mark.parametrize("url", ["s3://bucket/a/../b", "s3://key:secret@bucket", "s3://"])
def test_urls_that_name_no_prefix(url: str) -> None:
    """They are refused when the source is opened; what may be a secret is not quoted."""
    with pytest.raises(InvalidInput) as raised:
        open_sources({NAME: SourceSettings(url)}, StoreOptions())[NAME]
    assert "secret" not in str(raised.value)
