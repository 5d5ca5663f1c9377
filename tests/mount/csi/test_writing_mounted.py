"""Pods' volumes that take changes, with a real driver, mount service, kernel and store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import lodefs
from lodefs.settings.session import Session
from tests.mount.writable.conftest import skip_where_unfit
from tests.support.chunkstore.child_process import private_directory
from tests.support.csi.kubelet import MODE, capability
from tests.support.csi.real_driver import RealDriver
from tests.support.lodefs.dataset_node import dataset_node
from tests.support.mount.mounts import until
from tests.support.proxy.node_process import REPO

pytestmark = [pytest.mark.fuse, pytest.mark.slow]
BRANCH = "run-42"
ATTRIBUTES = {"repo": REPO, "write": "true", "branch": BRANCH}
WRITES = {"volume_capability": capability(MODE.MULTI_NODE_MULTI_WRITER), "readonly": False}
GROUP = capability(MODE.MULTI_NODE_MULTI_WRITER, group="1234")


@pytest.fixture
def node() -> Iterator[RealDriver]:
    with (
        private_directory() as folder,
        dataset_node() as served,
        RealDriver(folder, served.address, store=str(served.store)) as made,
    ):
        skip_where_unfit(folder)
        yield made
        made.await_no_mounts()


def messages(node: RealDriver) -> list[str]:
    """Of the commits of the branch since it was made, the first first."""
    session = Session({"LODEFS_STORE": node.store, "LODEFS_CONFIG": os.devnull})
    first = {entry.id for entry in lodefs.log(f"{REPO}@main", session=session)}
    found = lodefs.log(f"{REPO}@{BRANCH}", session=session)
    lines = [one.commit.message for one in found if one.id not in first]
    session.close()
    return lines[::-1]


def test_pods_write_while_the_driver_is_killed(node: RealDriver) -> None:
    """Two pods see what the other writes, a third one reads what is committed; the driver is killed
    between all of that, and there is one commit, with the changes of both."""
    one, two, reader = (node.target(name) for name in ("one", "two", "reader"))
    node.kubelet.publish("v1", one, ATTRIBUTES, **WRITES)
    (one / "text").write_text("changed")
    node.restart_driver()
    for target in (two, one):
        node.kubelet.publish("v1", target, ATTRIBUTES, **WRITES)
    node.kubelet.publish("v1", reader, ATTRIBUTES)
    assert (two / "text").read_text() == "changed"
    assert (reader / "text").read_text().startswith("line 0")
    with pytest.raises(OSError, match="Read-only"):
        (reader / "text").write_text("not this one")
    (two / "a/b/new").mkdir()
    (two / "large").unlink()
    usage = node.kubelet.stats("v1", one)
    assert usage.usage[0].available
    assert not usage.volume_condition.abnormal
    node.kubelet.unpublish("v1", one)
    node.restart_driver()
    assert messages(node) == []
    node.driver.kill()
    node.driver = node.start_driver()
    node.kubelet.unpublish("v1", two)
    until(lambda: len(messages(node)) == 1)
    assert messages(node) == [f"Kubernetes volume v1\n\npod {one}\npod {two}"]
    node.kubelet.unpublish("v1", reader)
    node.kubelet.publish("v2", one, ATTRIBUTES, **WRITES | {"volume_capability": GROUP})
    assert (one / "text").read_text() == "changed"
    assert (one / "a/b/new").is_dir()
    assert not (one / "large").exists()
    found = (one / "a").stat(), (one / "empty").stat()
    assert [(it.st_gid, it.st_mode & 0o777) for it in found] == [(1234, 0o775), (1234, 0o664)]
    node.kubelet.unpublish("v2", one)
    until(lambda: not any(Path(node.folder, "csi/changes").iterdir()))
    assert len(messages(node)) == 1
