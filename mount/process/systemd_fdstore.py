"""All that holds a mount, kept by systemd while its service restarts (FileDescriptorStoreMax=).

systemd.service(5), sd_notify(3), sd_listen_fds(3): descriptors are sent with a name, and come back
from number 3 on when the service is started again. The job lies in a memory file among them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.system.sockets import passed
from lodefs.chunkstore.system.systemd.notify import READY, SystemdNotifier
from lodefs.mount.kernel import mount_table
from lodefs.mount.process import control_socket, handover
from lodefs.mount.process.handover import MountResources
from lodefs.mount.process.supervisor import ended

PREFIX = "lodefs-"
JOB = "job"
PASSPORT_BYTES_MAX = 1 << 20


class FdStore:
    """The store of the service that this process runs for; without one it keeps nothing."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._notifier = SystemdNotifier(environ)
        self._names: set[str] = set()

    def keep(self, resources: MountResources) -> bool:
        """Stores all that holds a mount; False if nothing is kept."""
        job = os.memfd_create(PREFIX + JOB, os.MFD_CLOEXEC)
        try:
            os.write(job, resources.handover_state())
            kept: dict[str, list[int]] = {JOB: [job]}
            for name, fd in resources.named_fds():
                kept.setdefault(name, []).append(fd)
            for name, fds in kept.items():
                if self._notifier.store(PREFIX + name, fds):
                    self._names.add(name)
        finally:
            os.close(job)
        return bool(self._names)

    def ready(self) -> None:
        """Tells systemd that the mount can be read."""
        self._notifier.send(READY)

    def forget(self) -> None:
        """Removes everything from the store."""
        for name in sorted(self._names):
            self._notifier.forget(PREFIX + name)
        self._names.clear()

    def recover(self) -> MountResources | None:
        """Returns the mount's resources that an earlier process of this service kept; None without
        a living mount."""
        named = self._received()
        job = next((fd for name, fd in named if name == JOB), -1)
        rest = [(name, fd) for name, fd in named if name != JOB]
        try:
            if job < 0:
                raise LodefsError("no job")
            resources = handover.resources_of(os.pread(job, PASSPORT_BYTES_MAX, 0), rest)
            if ended(resources.device):
                raise LodefsError("the mount is gone")
        except LodefsError:
            for _, fd in rest:
                os.close(fd)
            self.forget()
            return None
        finally:
            if job >= 0:
                os.close(job)
        return msgspec.structs.replace(resources, place=_place(resources))

    def _received(self) -> list[tuple[str, int]]:
        found = [
            (name.removeprefix(PREFIX), fd)
            for name, fd in passed(self._environ)
            if name.startswith(PREFIX)
        ]
        self._names.update(name for name, _ in found)
        return found


def _place(resources: MountResources) -> control_socket.Place | None:
    """Returns the path of the mount's socket, if it has one."""
    mounted = mount_table.on_top(resources.job.options.mountpoint)
    if mounted is None or resources.listener < 0:
        return None
    return control_socket.find(mounted.device)
