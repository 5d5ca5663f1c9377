"""Mount services that follow one another, while volumes are read: the state is always one's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.chunkstore.child_process import Child, private_directory
from tests.support.csi.real_driver import DEMO, RealDriver, children, readers
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import SAMPLE
from tests.support.mount.places import processes_of

pytestmark = [pytest.mark.fuse, pytest.mark.slow]
WAITS = "waiting until it ends"
SERVES = "serving [0-9]+ mounts"


@pytest.fixture
def node() -> Iterator[RealDriver]:
    """A node whose mounter is a container's, with one volume."""
    with (
        private_directory() as folder,
        FakeProxy(SAMPLE, folder) as fake,
        RealDriver(folder, fake.address, "--restart") as made,
    ):
        made.kubelet.publish("v1", made.target("v1"), DEMO)
        yield made


def test_a_rollout_that_is_undone(node: RealDriver) -> None:
    """A service that has left its mounts takes them back when its successor is told to end: these
    end only then, no read fails, and it answers again."""
    [first] = node.mounters
    with readers(node, ["v1"]):
        second = node.mounter("--restart")
        first.wait_for(WAITS)
        node.kubelet.publish("v2", node.target("v2"), DEMO)
        served_by = _processes(node)
        assert second.terminate() == 0
        assert not _processes(node) & served_by  # which end with the container
        first.wait_for(f"(?s){SERVES}.*{SERVES}")
        node.kubelet.publish("v3", node.target("v3"), DEMO)
    node.kubelet.unpublish("v2", node.target("v2"))
    third = node.mounter("--restart")  # the next rollout
    node.mounters.append(third)
    assert first.terminate() == 0
    for name in ("v1", "v3"):
        node.kubelet.unpublish(name, node.target(name))
    node.await_no_mounts()


def test_a_retired_service_that_is_killed(node: RealDriver) -> None:
    """A service that is started again in the container of one that has retired waits as that did,
    and takes nothing from the one that serves; it has the mounts when that one dies."""
    [first] = node.mounters
    with readers(node, ["v1"]):
        second = node.mounter("--restart")
        node.mounters.append(second)
        first.wait_for(WAITS)
        os.kill(_service_of(first), signal.SIGKILL)
        first.wait_for(f"(?s){WAITS}.*{WAITS}")
        node.kubelet.publish("v2", node.target("v2"), DEMO)
        assert first.output.count("serving ") == 1
        assert WAITS not in second.output
        service = _service_of(second)
        os.kill(second.pid, signal.SIGKILL)  # the keeper first: nobody starts it again
        os.kill(service, signal.SIGKILL)
        first.wait_for(f"(?s){SERVES}.*{SERVES}")
        node.kubelet.publish("v3", node.target("v3"), DEMO)


def test_a_service_that_is_dead_when_its_successor_comes(node: RealDriver) -> None:
    """A new container whose predecessor does not answer takes the mounts over, too; the
    predecessor's next start waits."""
    [first] = node.mounters
    os.kill(first.pid, signal.SIGSTOP)  # the keeper: it starts the service late
    os.kill(_service_of(first), signal.SIGKILL)
    before = _processes(node)
    with readers(node, ["v1"]):
        second = node.mounter("--restart")
        node.mounters.append(second)
        assert not _processes(node) & before
        os.kill(first.pid, signal.SIGCONT)
        first.wait_for(WAITS)
        node.kubelet.publish("v2", node.target("v2"), DEMO)
    assert first.terminate() == 0
    assert (node.target("v1") / "a").read_bytes() == b"hello"


def _processes(node: RealDriver) -> set[int]:
    """Those of all mounts."""
    return {pid for mounted in node.fuse_mounts() for pid in processes_of(mounted)}


def _service_of(keeper: Child) -> int:
    """The process that a container's first process has started."""
    [service] = children(keeper.pid)
    return service
