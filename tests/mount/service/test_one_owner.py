"""Volumes of Docker and of Kubernetes on a node, by real processes: one set of mounts for both."""

from __future__ import annotations

from pathlib import Path

import pytest

from lodefs.mount.docker.volume_files import Records
from lodefs.mount.docker.volumes import Volumes
from lodefs.mount.helper.deadline_calls import Calls
from lodefs.mount.service.client import RemoteMounts
from tests.support.chunkstore.child_process import private_directory
from tests.support.csi.real_driver import DEMO, RealDriver
from tests.support.docker.rig import split_url
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import SAMPLE, WAIT_S

pytestmark = [pytest.mark.fuse, pytest.mark.slow]
VOLUMES = 6


def test_one_set_of_mounts_for_both_drivers(tmp_path: Path) -> None:
    """Volumes of both drivers, of two snapshots, are two mounts, which are read at both places;
    they stay while one driver's last volume has them, also when the service was killed, and go
    then."""
    parts = ("", "deep")
    with (
        private_directory() as folder,
        FakeProxy(SAMPLE, folder) as proxy,
        RealDriver(folder, proxy.address) as node,
    ):
        service, records = RemoteMounts(folder / "mounter.sock"), Records(tmp_path / "docker")
        volumes = Volumes(
            records,
            service,
            Calls(),
            split_url=split_url,
            read_token=lambda _source: None,
            answer_timeout_s=WAIT_S,
        )
        for number in range(VOLUMES):
            name, options = f"v{number}", DEMO | {"path": parts[number % 2]}
            volumes.create(name, options)
            place = Path(volumes.mount(name, "one"))
            node.kubelet.publish(name, node.target(name), options)
            assert {path.name for path in place.iterdir()} == {
                path.name for path in node.target(name).iterdir()
            }
        assert len(node.fuse_mounts()) == 2
        assert len({volumes.path(f"v{number}") for number in range(VOLUMES)}) == 2
        for number in range(VOLUMES):
            node.kubelet.unpublish(f"v{number}", node.target(f"v{number}"))
        node.restart_mounter()
        assert sum(shown.held.references for shown in volumes.list()) == VOLUMES
        assert len(node.fuse_mounts()) == 2
        for number in range(VOLUMES):
            volumes.unmount(f"v{number}", "one")
            volumes.remove(f"v{number}")
        node.await_no_mounts()
        records.close()
