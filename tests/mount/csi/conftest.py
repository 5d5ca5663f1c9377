"""A driver over a mount service in memory, and a kubelet that calls it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lodefs.mount.csi.controller import ControllerServer
from lodefs.mount.csi.generated import csi_pb2
from lodefs.mount.csi.identity import Identity
from lodefs.mount.csi.node import NodeServer
from lodefs.mount.csi.rpc import RpcServer
from tests.support.csi.kubelet import Kubelet
from tests.support.docker.rig import memory_mounts
from tests.support.service.memory_service import MemoryService, MemoryTargets


@dataclass
class DriverRig:
    """A driver without a kernel."""

    kubelet: Kubelet
    service: MemoryService
    targets: MemoryTargets
    socket: Path
    pods: Path


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[DriverRig]:
    service = MemoryService(memory_mounts().repos, tmp_path / "mounts")
    targets = MemoryTargets(service)
    server = RpcServer()
    by_name = csi_pb2.DESCRIPTOR.services_by_name
    server.add(by_name["Identity"], Identity(service, "1.2.3").methods())
    server.add(by_name["Node"], NodeServer(service, "node-1", targets).methods())
    server.add(by_name["Controller"], ControllerServer(service).methods())
    socket = tmp_path / "csi.sock"
    server.listen(socket)
    server.start()
    (pods := tmp_path / "pods").mkdir()
    with Kubelet(socket) as kubelet:
        yield DriverRig(kubelet, service, targets, socket, pods)
    server.stop(60.0)
