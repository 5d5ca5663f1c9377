"""Copies and bundles keep the quota of the store that they go to."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import pytest

from lodefs.chunkstore.push.limits import OverQuota
from lodefs.chunkstore.repo.refs import TAGS
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.transfer.bundle import create_bundle, standing, unpack_bundle
from lodefs.chunkstore.transfer.bundle_file import BundleReader, check_bundle
from tests.chunkstore.transfer.test_copy import Stores


def _limit(stores: Stores, size_bytes: int | None) -> None:
    stores.destination.settings_log("r").change(
        lambda now: replace(now, quota_size_bytes=size_bytes)
    )


def test_a_copy_keeps_the_quota_of_its_destination() -> None:
    """A version over the quota there is refused before anything is sent, also by a dry run; others
    come. It comes where that has grown, and a new name for what is there is no new version."""
    stores = Stores()
    made = stores.made
    stores.source.refs("r").advance(TAGS, "v1", stores.commits[-1], expected_sequence=None)
    sizes = [made.store.commit("r", one).size_bytes for one in stores.commits]
    stores.copy()
    made.commit("r", {b"large": bytes(sizes[-1] + 1)})
    _limit(stores, sizes[-1])
    before = dict(stores.memory.objects)
    raised = f"lodefs quota r --store {stores.destination.url} --size-bytes-max {sizes[-1] + 1}$"
    for dry_run in (True, False):
        with pytest.raises(OverQuota, match=f"in memory:.* is {sizes[-1]:,} bytes .*{raised}"):
            stores.copy(dry_run=dry_run)
    assert stores.memory.objects == before
    result = stores.copy(None)
    assert [one.ref.name for one in result.refused] == ["main"]
    assert [one.ref.name for one in result.refs] == ["v1"]
    _limit(stores, None)
    assert stores.copy().commits == 1
    stores.check()


def unpacked(data: bytes, store: Store, size_bytes: int | None = None) -> None:
    reader = BundleReader(BytesIO(data), "it")
    unpack_bundle(reader, store, standing(reader, store), size_bytes=size_bytes)


def test_a_bundle_keeps_the_quota_of_its_store() -> None:
    """A bundle with a version over the quota moves no ref; one that was checked puts nothing."""
    stores = Stores()
    _limit(stores, 100)
    file = BytesIO()
    create_bundle(stores.source, "r", "main", None, file)
    data = file.getvalue()
    checked = check_bundle(BytesIO(data), "it")
    before = dict(stores.memory.objects)
    with pytest.raises(OverQuota, match="is 100 bytes"):
        unpacked(data, stores.destination, size_bytes=checked.size_bytes)
    assert stores.memory.objects == before
    with pytest.raises(OverQuota, match="is 100 bytes"):
        unpacked(data, stores.destination)
    assert stores.at() is None
    _limit(stores, checked.size_bytes)
    unpacked(data, stores.destination, size_bytes=checked.size_bytes)
    stores.check()
