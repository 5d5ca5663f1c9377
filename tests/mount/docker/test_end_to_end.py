"""The node's mounts with a real proxy: what its answers really are."""

from __future__ import annotations

import json
import os
import random

import msgspec
import pytest

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.protocol.cache_control import WarmRequest
from lodefs.mount.helper.helper_client import MountHelper
from lodefs.mount.helper.interface import Source
from lodefs.mount.helper.kernel_mounts import KernelMounts
from tests.support.chunkstore.child_process import private_directory
from tests.support.mount.mounts import WAIT_S, until
from tests.support.proxy.fake_node import RunningProxy
from tests.support.proxy.rig import REPO, Rig, serve_rig

pytestmark = [pytest.mark.fuse, pytest.mark.slow]

FILES = {
    b"train/a": random.Random(1).randbytes(300_000),
    b"train/b": b"b",
    b"test/c": random.Random(2).randbytes(200_000),
}


def pinned(proxy: RunningProxy) -> list[str]:
    """The paths of all pins."""
    with proxy.client() as client:
        return [pin["path"] for pin in json.loads(client.get("/pins").body)["pins"]]


def owners(proxy: RunningProxy) -> list[str]:
    """Who has pins, and gave a name."""
    with proxy.client() as client:
        pins = json.loads(client.get("/pins").body)["pins"]
        return [owner for pin in pins for owner in pin["owners"]]


def test_a_volume(helper: MountHelper) -> None:
    """Resolved, mounted, read, counted, pinned and taken away, through a real proxy."""
    logged: list[str] = []
    with private_directory() as folder, serve_rig(Rig(folder, FILES)) as (proxy, _):
        node = KernelMounts(
            helper, lambda _store, _timeout_s: proxy.address, environ={}, log=logged.append
        )
        source = Source(repo=REPO, path=b"train")
        found = node.resolve(source, "main", WAIT_S)
        assert (found.files, found.size_bytes) == (3, sum(map(len, FILES.values())))
        for bad, error in (
            (Source(repo="no/such"), NotFound),
            (Source(repo=REPO, path=b"nowhere"), NotFound),
            (Source(repo=REPO, path=b"train/a"), InvalidInput),
        ):
            with pytest.raises(error, match=r"no/such|nowhere|train/a"):
                node.resolve(bad, "main", WAIT_S)
        with pytest.raises(NotFound, match="no-branch"):
            node.resolve(source, "no-branch", WAIT_S)

        place = folder / "place"
        place.mkdir()
        node.mount(source, found.commit, str(place), WAIT_S)
        try:
            assert sorted(os.listdir(place)) == ["a", "b"]
            assert (place / "a").read_bytes() == FILES[b"train/a"]
            told = node.traffic(str(place), WAIT_S)
            assert told is not None
            assert told.cache_bytes + told.store_bytes >= len(FILES[b"train/a"])
            assert told.store_bytes > 0
            for path in (b"train", b""):
                part = msgspec.structs.replace(source, path=path)
                for _ in range(2):
                    node.pin(part, found.commit, 600, WAIT_S)
                until(lambda path=path: set(pinned(proxy)) == {path.decode()})
                for _ in range(2):
                    node.unpin(part, found.commit, WAIT_S)
                assert pinned(proxy) == []
            with proxy.client() as client:
                own = msgspec.json.encode(WarmRequest(REPO, paths=["train"], pin_s=300))
                assert client.get("/warm", method="POST", body=own).status == 202
            until(lambda: pinned(proxy) == ["train"])
            node.pin(source, found.commit, 600, WAIT_S)
            until(lambda: owners(proxy) == ["docker"])
            node.unpin(source, found.commit, WAIT_S)
            assert (pinned(proxy), owners(proxy)) == (["train"], [])
        finally:
            node.unmount(str(place), WAIT_S)
    assert logged == []
