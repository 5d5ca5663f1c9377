"""The contract suite on every object store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.services import S3Server
from lodefs.chunkstore.maintenance.overlay import OverlayObjects
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.objects.pack_locations import PackLocations
from lodefs.chunkstore.objects.s3.boto import S3Options
from lodefs.chunkstore.objects.s3.store import S3Objects
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.object_store_suite import ObjectStoreSuite


class TestMemory(ObjectStoreSuite):
    """The reference."""

    @pytest.fixture
    def objects(self) -> ObjectStore:
        return MemoryObjects()


class TestPackLocations(ObjectStoreSuite):
    """One that looks into composites too."""

    @pytest.fixture
    def objects(self) -> ObjectStore:
        return PackLocations(MemoryObjects())


class TestOverlayObjects(ObjectStoreSuite):
    """One whose writes stay in memory."""

    @pytest.fixture
    def objects(self) -> ObjectStore:
        return OverlayObjects(MemoryObjects())


class TestDirectory(ObjectStoreSuite):
    """Files."""

    @pytest.fixture
    def objects(self, tmp_path: Path) -> ObjectStore:
        return DirectoryObjects(tmp_path / "store")


@pytest.mark.slow
class TestMoto(ObjectStoreSuite):
    """S3 as moto answers it."""

    @pytest.fixture
    def objects(self, moto: S3Server, moto_bucket: str) -> Iterator[ObjectStore]:
        yield from _s3(moto, moto_bucket)


@pytest.mark.rgw
@pytest.mark.slow
class TestRgw(ObjectStoreSuite):
    """S3 as Ceph RGW answers it."""

    @pytest.fixture
    def objects(self, rgw: S3Server, rgw_bucket: str) -> Iterator[ObjectStore]:
        yield from _s3(rgw, rgw_bucket)


def _s3(server: S3Server, bucket: str) -> Iterator[ObjectStore]:
    options = S3Options(endpoint_url=server.endpoint_url, connections_max=16)
    objects = S3Objects(bucket, "below/a-prefix", options)
    yield objects
    objects.close()
