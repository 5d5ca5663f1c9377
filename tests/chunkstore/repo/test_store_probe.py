"""A store that ignores conditional writes is found out before anything is written to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.services import S3Server
from loadtests.services.rclone import rclone_server
from lodefs.chunkstore.errors import Unsupported
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.objects.open_url import StoreOptions, open_objects
from lodefs.chunkstore.repo.store import create_store, open_store
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.object_store_suite import MUCH


@pytest.mark.slow
def test_rclone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """rclone's S3 server ignores If-None-Match: creating a store there, or first writing to one
    that was made by other means, fails with an error that says why, and leaves nothing."""
    (tmp_path / "bucket").mkdir()
    with rclone_server(tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        objects = open_objects("s3://bucket/store", StoreOptions(endpoint_url=server.endpoint_url))
        with pytest.raises(Unsupported, match="ignores If-None-Match"):
            create_store(objects)
        assert list(objects.list("")) == []

        elsewhere = MemoryObjects()
        create_store(elsewhere)
        objects.put(keys.STORE, [elsewhere.get(keys.STORE, size=MUCH).data])
        store = open_store(objects)
        with pytest.raises(Unsupported, match="ignores If-None-Match"):
            store.ensure_writable()
        assert [info.key for info in objects.list("")] == [keys.STORE]
        objects.close()


@pytest.mark.slow
def test_moto_is_accepted(moto: S3Server, moto_bucket: str) -> None:
    """A server that honours the condition gets its store, and the probe leaves nothing."""
    url = f"s3://{moto_bucket}/store?endpoint_url={moto.endpoint_url}"
    objects = open_objects(url)
    create_store(objects)
    open_store(objects).ensure_writable()
    assert [info.key for info in objects.list("")] == [keys.STORE]
    objects.close()


@pytest.mark.rgw
@pytest.mark.slow
def test_rgw_is_accepted(rgw: S3Server, rgw_bucket: str) -> None:
    """Ceph RGW honours the condition."""
    url = f"s3://{rgw_bucket}/store?endpoint_url={rgw.endpoint_url}"
    objects = open_objects(url)
    create_store(objects)
    open_store(objects).ensure_writable()
    assert [info.key for info in objects.list("")] == [keys.STORE]
    objects.close()
