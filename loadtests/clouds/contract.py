"""The contract suite of object stores on real emulators, which the environment names. pytest runs
this file for ``./run clouds``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loadtests.clouds.buckets import azure_container, gcs_bucket
from lodefs.chunkstore.objects.clouds.azure import open_azure
from lodefs.chunkstore.objects.clouds.gcs import open_gcs
from lodefs.chunkstore.objects.clouds.http_objects import CloudApi, HttpObjects
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.objects.timed_requests import HttpOptions
from tests.support.chunkstore.object_store_suite import ObjectStoreSuite


class TestFakeGcs(ObjectStoreSuite):
    """Google Cloud Storage as fake-gcs-server answers."""

    @pytest.fixture
    def objects(self) -> Iterator[ObjectStore]:
        yield from _opened(open_gcs(gcs_bucket()))


class TestAzurite(ObjectStoreSuite):
    """Azure Blobs as Azurite answers."""

    @pytest.fixture
    def objects(self) -> Iterator[ObjectStore]:
        yield from _opened(open_azure(azure_container(), None))


def _opened(api: CloudApi) -> Iterator[ObjectStore]:
    objects = HttpObjects(api, "below/a-prefix", HttpOptions())
    yield objects
    objects.close()
