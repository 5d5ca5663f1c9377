"""What every mount service does: the one over the node, the one over a socket, that of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.mount.helper.kernel_mounts import KernelMounts
from lodefs.mount.service.client import RemoteMounts
from lodefs.mount.service.interface import MountClaim, MountService, Source
from tests.mount.conftest import SECRET_STORE, TOKEN
from tests.support.docker.rig import memory_mounts
from tests.support.service.memory_service import MemoryService
from tests.support.service.mount_service_suite import MountServiceSuite, ServiceGiven
from tests.support.service.service_rig import ServiceRig, served


def of_memory(service: MountService) -> ServiceGiven:
    return ServiceGiven(
        service,
        MountClaim(source=Source(repo="vision/cats"), rev="main"),
        b"train",
        b"a-file",
        MountClaim(source=Source(repo="secret"), rev="main"),
        "right-token",
    )


class TestMemoryService(MountServiceSuite):
    @pytest.fixture
    def given(self, tmp_path: Path) -> ServiceGiven:
        return of_memory(MemoryService(memory_mounts().repos, tmp_path))


class TestSharedMounts(MountServiceSuite):
    @pytest.fixture
    def given(self, rig: ServiceRig) -> ServiceGiven:
        return of_memory(rig.mounts)


class TestRemoteMounts(MountServiceSuite):
    @pytest.fixture
    def given(self, rig: ServiceRig, tmp_path: Path) -> Iterator[ServiceGiven]:
        path = tmp_path / "mounter.sock"
        with served(rig.mounts, path):
            yield of_memory(RemoteMounts(path))


@pytest.mark.fuse
@pytest.mark.slow
class TestKernelMounts(MountServiceSuite):
    @pytest.fixture
    def given(self, tmp_path: Path, node: KernelMounts) -> Iterator[ServiceGiven]:
        rig = ServiceRig(tmp_path / "service", node, stores=(SECRET_STORE,))
        yield ServiceGiven(
            rig.mounts,
            MountClaim(source=Source(repo="demo"), rev="main"),
            b"deep",
            b"a",
            MountClaim(source=Source(repo="demo", store=SECRET_STORE), rev="main"),
            TOKEN,
        )
        rig.clear()
