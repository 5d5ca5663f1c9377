"""A mount service without its process: its upkeep is done by hand, and it can start again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lodefs.chunkstore.protocol import rpc
from lodefs.chunkstore.protocol.figures.component_counts import ComponentCounts
from lodefs.mount.helper.deadline_calls import Calls
from lodefs.mount.helper.interface import NodeMounts
from lodefs.mount.service import shared_mount
from lodefs.mount.service.machine_clock import CLOCK, Clock
from lodefs.mount.service.mount_files import MountFiles
from lodefs.mount.service.server import ServiceServer
from lodefs.mount.service.shared_mounts import SharedMounts
from lodefs.mount.service.upkeep import MountUpkeep

WAIT_S = 60.0


class ServiceRig:
    """One start of a service in ``folder``. ``boot``: of the machine; ``stores``: those that
    volumes may name."""

    def __init__(
        self,
        folder: Path,
        node: NodeMounts,
        *,
        boot: str = "boot-1",
        stores: tuple[str, ...] = (),
        clock: Clock = CLOCK,
    ) -> None:
        self.folder = folder
        self.node = node
        self.files = MountFiles(folder / "state", folder / "run", folder / "mounts")
        self.mounts = SharedMounts(self.files, node, boot=boot, stores=stores, clock=clock)
        self.calls = Calls()
        self.upkeep = MountUpkeep(self.mounts, self.calls, threading.Event())

    def round(self, times: int = 1) -> None:
        """Look and do, to the end."""
        for _ in range(times):
            self.upkeep.round()
            assert self.calls.wait_idle(WAIT_S)

    def idle(self) -> None:
        """Time goes by for mounts that nobody uses."""
        self.round()
        for slot in self.mounts.slots():
            if slot.idle_since_s is not None:
                slot.idle_since_s -= shared_mount.IDLE_S
        self.round(2)

    def places(self) -> list[str]:
        """Mount points that are there."""
        return self.files.places()

    def end(self) -> None:
        """As kill -9: nothing is told to anybody."""
        self.files.close()

    def again(self, boot: str = "boot-1") -> ServiceRig:
        """The next start."""
        self.end()
        return ServiceRig(self.folder, self.node, boot=boot)

    def clear(self) -> None:
        """Leave no mount behind."""
        for key in self.files.places():
            self.node.unmount(self.files.place(key), WAIT_S)
        self.end()


@contextmanager
def served(
    mounts: SharedMounts, path: Path, counts: ComponentCounts | None = None
) -> Iterator[None]:
    """The service behind a socket."""
    server = ServiceServer(rpc.listen(path, replace=False), mounts, lambda _timeout_s: None, counts)
    server.start()
    try:
        yield
    finally:
        server.stop()
        assert server.wait_idle(WAIT_S)
