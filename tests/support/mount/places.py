"""Directories to mount on through the helper, and the processes of what is mounted there."""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from pathlib import Path

from lodefs.chunkstore.errors import InvalidInput, LodefsError
from lodefs.mount.helper.helper_client import MountHelper
from lodefs.mount.helper.helper_requests import Unmount
from lodefs.mount.kernel import mount_syscalls, mount_table
from lodefs.mount.mount_spec import MountRequest
from lodefs.mount.options import MountOptions
from lodefs.mount.process import control_socket, handover
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import SAMPLE, WAIT_S, until, workers_of

SHORT_S = 1.0
MOUNTS_BEGUN = 8  # a time limit that lets a mount begin lets so many be made one after the other


def processes_of(mounted: mount_table.Mount) -> list[int]:
    """The supervisor of a mount, and its workers; none where nobody answers."""
    place = control_socket.find(mounted.device)
    try:
        assert place is not None
        supervisor = handover.state_of(place).pid
    except (AssertionError, LodefsError):
        return []
    return [supervisor, *workers_of(supervisor)]


class Places:
    """Directories to mount on, and what orders name them."""

    def __init__(self, folder: Path, proxy: FakeProxy) -> None:
        self._folder = folder
        self._proxy = proxy
        self._pid_fds: dict[str, list[int]] = {}  # of processes, by their mount's place

    def new(self, name: str) -> str:
        """An empty directory."""
        path = self._folder / name
        path.mkdir()
        return str(path)

    def mount(self, place: str) -> MountRequest:
        """The order to mount the sample there."""
        return MountRequest(
            MountOptions(
                repo="demo",
                rev=SAMPLE.snapshot.commit,
                mountpoint=place,
                proxy=self._proxy.address,
                log_path=str(self._folder / "mount.log"),
                workers=2,
                threads=4,
            )
        )

    def short_s(self, helper: MountHelper) -> float:
        """A time limit for an order that will be late, but not before its mount is half made: what
        some mounts take on this machine now."""
        place = self.new("measured")
        begun_s = time.monotonic()
        helper.run(self.mount(place), WAIT_S)
        helper.run(Unmount(place), WAIT_S)
        return max(SHORT_S, MOUNTS_BEGUN * (time.monotonic() - begun_s))

    def mounted(self) -> list[mount_table.Mount]:
        """What is mounted in the folder."""
        found = [m for m in mount_table.read_table() if m.mountpoint.startswith(str(self._folder))]
        for one in found:
            if one.mountpoint not in self._pid_fds:
                self._pid_fds[one.mountpoint] = list(map(os.pidfd_open, processes_of(one)))
        return found

    def processes(self) -> int:
        """How many processes of mounts that were seen have not ended."""
        pid_fds = [fd for fds in self._pid_fds.values() for fd in fds]
        return len(pid_fds) - len(select.select(pid_fds, [], [], 0)[0])

    def close(self) -> None:
        """Leave nothing behind."""
        for found in self.mounted():
            with suppress(InvalidInput):  # it has gone by itself meanwhile
                mount_syscalls.detach(found.mountpoint, lazy=True, abort=True)
        until(lambda: not self.processes())
        for pid_fds in self._pid_fds.values():
            for pid_fd in pid_fds:
                os.close(pid_fd)
