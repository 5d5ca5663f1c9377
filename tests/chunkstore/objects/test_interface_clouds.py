"""The contract suite on Google Cloud Storage and Azure Blobs, as small servers of this process
answer. Real emulators: ``./run clouds``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lodefs.chunkstore.objects.clouds.azure import AzureApi, account_of
from lodefs.chunkstore.objects.clouds.gcs import GcsApi
from lodefs.chunkstore.objects.clouds.http_objects import HttpObjects
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.objects.timed_requests import HttpOptions
from tests.support.chunkstore.bad_server import BadServer
from tests.support.chunkstore.cloud_servers import AzureServer, GcsServer
from tests.support.chunkstore.object_store_suite import ObjectStoreSuite

PREFIX = "below/a-prefix"


def azure_environment(endpoint_url: str) -> dict[str, str]:
    """The variables that name the account of an emulator."""
    parts = {
        "AccountName": "devstoreaccount1",
        "AccountKey": "a2V5",
        "BlobEndpoint": f"{endpoint_url}/devstoreaccount1",
    }
    text = ";".join(f"{name}={value}" for name, value in parts.items())
    return {"AZURE_STORAGE_CONNECTION_STRING": text}


class TestGcs(ObjectStoreSuite):
    """Google's JSON API."""

    @pytest.fixture
    def objects(self) -> Iterator[ObjectStore]:
        with BadServer(GcsServer()) as server:
            api = GcsApi("bucket", server.endpoint_url, lambda: "token")
            objects = HttpObjects(api, PREFIX, HttpOptions())
            yield objects
            objects.close()


class TestAzure(ObjectStoreSuite):
    """Azure's REST interface, where a listing begins at no key, and no range is a suffix."""

    @pytest.fixture
    def objects(self) -> Iterator[ObjectStore]:
        with BadServer(AzureServer()) as server:
            account = account_of(None, azure_environment(server.endpoint_url))
            objects = HttpObjects(AzureApi("bucket", account, str), PREFIX, HttpOptions())
            yield objects
            objects.close()
