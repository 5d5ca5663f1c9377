"""A driver whose volumes take changes, over mounts, a disk and a store in memory: its process, and
that of the mount service, can die and start again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from lodefs.mount.csi.credentials import Credentials
from lodefs.mount.csi.generated import csi_pb2 as pb
from lodefs.mount.csi.node import NodeServer
from lodefs.mount.csi.writing import PodChanges
from lodefs.mount.helper.deadline_calls import Calls
from lodefs.mount.kernel.mount_table import FS_TYPE, OVERLAY, Mount
from lodefs.mount.service.mount_files import MountFiles
from lodefs.mount.service.shared_mounts import SharedMounts
from lodefs.mount.service.upkeep import MountUpkeep
from lodefs.mount.volumes.changes import WritableVolume
from lodefs.mount.volumes.volume_files import VolumeFiles
from tests.support.csi.kubelet import MODE, capability
from tests.support.docker.memory_mounts import MemoryMounts
from tests.support.docker.memory_writer import MemoryWriter
from tests.support.docker.rig import WAIT_S, Hands, mount_files
from tests.support.service.memory_service import MemoryService, MemoryTargets

SECRET = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "hunter2"}
BRANCH = "run-42"
ATTRIBUTES = {"repo": "vision/cats", "write": "true", "branch": BRANCH}
WRITER = capability(MODE.MULTI_NODE_MULTI_WRITER)


class NodeTargets(MemoryTargets):
    """Where pods of a node see volumes, which outlives drivers. ``step`` is called before and after
    each change."""

    def __init__(self, node: MemoryMounts, writer: MemoryWriter) -> None:
        super().__init__(cast("MemoryService", None))
        self.node = node
        self.writer = writer
        self.step: Callable[[], None] = lambda: None

    def shown(self, target: str) -> Mount | None:
        """What is mounted there."""
        place, _ = self.bound.get(target, (target, False))
        if self.writer is not None and place in self.writer.mounted:
            return Mount(target, OVERLAY, b"lodefs:", f"0:{place}")
        return Mount(target, FS_TYPE, b"", f"0:{place}") if place in self.node.mounts else None

    def bind(self, place: str, target: str, *, noexec: bool, writes: bool = False) -> None:
        """Show it."""
        self.step()
        super().bind(place, target, noexec=noexec, writes=writes)
        self.step()

    def unbind(self, target: str) -> None:
        """Take it off."""
        self.step()
        super().unbind(target)
        self.step()


class WritingRig:
    """A node. Calls come from a kubelet, and rounds of upkeep are made by hand."""

    def __init__(
        self,
        folder: Path,
        node: MemoryMounts,
        targets: NodeTargets,
        hands: Hands | None = None,
        *,
        files: VolumeFiles[WritableVolume] | None = None,
        mounts: MountFiles | None = None,
    ) -> None:
        self.folder = folder
        self.hands = hands or Hands()
        self.targets = targets
        assert targets.writer is not None
        self.writer = targets.writer
        self.mount_files = mounts or mount_files(folder / "state")
        clock = self.hands.clock()
        self.service = SharedMounts(self.mount_files, node, boot=self.hands.boot, clock=clock)
        self.chores, self.calls = Calls(), Calls()
        self.upkeep = MountUpkeep(self.service, self.chores, threading.Event())
        self.files = files or volume_files(folder)
        self.credentials = Credentials(folder / "run")
        self.changes = PodChanges(
            self.service,
            self.writer,
            self.files,
            self.credentials,
            calls=self.calls,
            now_s=lambda: self.hands.uptime_s,
        )
        self.node = NodeServer(self.service, "node-1", targets, self.changes)
        self.pods = folder / "pods"
        self.pods.mkdir(exist_ok=True)

    def publish(self, volume: str, pod: str, attributes: object = None, **fields: Any) -> str:
        """Publish a volume for a pod, and where: the place of its changes, or another mount."""
        more = {"csi.storage.k8s.io/pod.name": pod, "csi.storage.k8s.io/pod.namespace": "ns"}
        given = {"volume_capability": WRITER, "secrets": SECRET, **fields}
        request = pb.NodePublishVolumeRequest(
            volume_id=volume,
            target_path=self.target(pod),
            volume_context={**cast("dict[str, str]", attributes or ATTRIBUTES), **more},
            **given,
        )
        self.node.methods()["NodePublishVolume"](request, WAIT_S)
        return self.targets.bound[self.target(pod)][0]

    def unpublish(self, volume: str, pod: str) -> None:
        """The pod has ended."""
        request = pb.NodeUnpublishVolumeRequest(volume_id=volume, target_path=self.target(pod))
        self.node.methods()["NodeUnpublishVolume"](request, WAIT_S)

    def condition(self, volume: str, pod: str) -> Any:
        """How a pod's volume is."""
        request = pb.NodeGetVolumeStatsRequest(volume_id=volume, volume_path=self.target(pod))
        response: Any = self.node.methods()["NodeGetVolumeStats"](request, WAIT_S)
        return response.volume_condition

    def use(self, volume: str, *pods: str, attributes: object = None, **fields: Any) -> None:
        """Pods that write, one beside the other, and end."""
        for pod in pods:
            self.writer.changes[self.publish(volume, pod, attributes, **fields)].append(pod)
        for pod in pods:
            self.unpublish(volume, pod)

    def target(self, pod: str) -> str:
        """Where a pod sees its volume."""
        return str(self.pods / pod)

    def round(self, times: int = 1) -> None:
        """Look and do, to the end."""
        for _ in range(times):
            self.changes.round()
            assert self.calls.wait_idle(WAIT_S)
            self.upkeep.round()
            assert self.chores.wait_idle(WAIT_S)

    def settle(self) -> None:
        """Enough rounds, and time between them, for everything to be as it should be."""
        for _ in range(4):
            self.round()
            self.hands.forward(20)

    def kept_secrets(self) -> list[str]:
        """Files with credentials."""
        return sorted(one.name for one in (self.folder / "run/csi/credentials").iterdir())

    def close(self) -> None:
        """The process ends."""
        self.files.close()
        self.mount_files.close()


def volume_files(folder: Path) -> VolumeFiles[WritableVolume]:
    """The driver's state."""
    return VolumeFiles(WritableVolume, folder / "csi", "another driver")
