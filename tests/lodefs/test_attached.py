"""Jobs that get the node's mounts: ``lodefs run`` and enroot's hook beside a mount service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hpc.job_user import Enroot, JobUser, processes
from tests.support.hpc.node_mounter import NodeMounter, node_mounter
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import until

pytestmark = [pytest.mark.fuse, pytest.mark.slow]


@pytest.fixture
def node(user: JobUser, group_proxy: FakeProxy) -> Iterator[NodeMounter]:
    """A mount service for a user who may not use the proxy."""
    with node_mounter(user.folder / "node", group_proxy.address) as made:
        user.environment["LODEFS_ATTACH_SOCKET"] = str(made.socket)
        yield made


def test_jobs_share_the_nodes_mount(user: JobUser, node: NodeMounter) -> None:
    """A job and a container of a user without any right to the proxy read one mount, which no
    process of theirs serves. It outlives the service's kill -9, and ends after the last of them."""
    words = user.lodefs("run", "demo:./d", "demo@main:deep:./e", "--", "sh", "-c")
    script = "cat d/a e/er/est/f; echo; stat -c %d d; touch d/x; read line; cat d/a"
    with user.start(*words, script, groups=()) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "hellobottom\n"
        device = job.stdout.readline()
        until(lambda: processes() == [job.pid])
        node.kill()
        node.start()
        enroot = Enroot(user)
        hook = [user.python, "-m", "lodefs.main", "enroot-hook"]
        enroot.hook("50-lodefs.sh", f"exec {' '.join(hook)}")
        code, out, err = enroot.run(
            command="cat /data/a; stat -c %d /data", LODEFS_DATASETS="demo:/data"
        )
        assert (code, out, err) == (0, f"hello{device}", "")
        assert len(node.devices()) == 2
        out, err = job.communicate("go on\n", timeout=60)
        assert (job.returncode, out[-5:]) == (0, "hello")
        assert "Read-only file system" in err
    user.wait_for_end()
    node.await_none()
