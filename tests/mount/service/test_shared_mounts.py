"""What a mount service allows, and calls of it that overtake each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Denied
from lodefs.mount.service.interface import Source, User, Wanted
from tests.support.docker.memory_mounts import MemoryMounts
from tests.support.service.service_rig import WAIT_S, ServiceRig

USER = User("v1", "/t1")


def of_store(store: str) -> Wanted:
    return Wanted(source=Source(repo="vision/cats", store=store), rev="main")


@pytest.mark.parametrize(
    "store",
    [
        "/etc",
        "/stores/open/../closed",
        "s3://bucket/open?endpoint_url=http://169.254.169.254",
        "s3://bucket/open/below",
    ],
)
def test_stores_that_nobody_allowed(tmp_path: Path, memory: MemoryMounts, store: str) -> None:
    """A volume that names a store which is not listed is Denied before anybody looks at it."""
    rig = ServiceRig(tmp_path, memory, stores=("s3://bucket/open", "/stores/open"))
    with pytest.raises(Denied, match="--allow-store"):
        rig.mounts.acquire(USER, of_store(store), None, WAIT_S)
    with pytest.raises(Denied, match="--allow-store"):
        rig.mounts.resolve(of_store(store), None, WAIT_S)
    assert not memory.calls
    assert rig.mounts.slots() == []
    rig.end()


def test_stores_that_are_allowed(tmp_path: Path, memory: MemoryMounts) -> None:
    """One that is listed may be named, however a directory is written; none needs no list."""
    stores = ("s3://b/p?region=eu-1", "file:///stores/open/")
    rig = ServiceRig(tmp_path, memory, stores=stores)
    for number, store in enumerate(("", *stores, "/stores/open")):
        rig.mounts.acquire(User(f"v{number}", "/t"), of_store(store), None, WAIT_S)
    rig.end()
