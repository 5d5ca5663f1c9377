"""The mount service's process: everything put together.

It ends without touching a mount: mounts are processes of their own, and the next service finds
them again. Where another service has the state, this one asks it to retire, and takes its mounts
over: in Kubernetes the new pod does so before the old one, with its processes, is ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.system.systemd_notify import READY, STOPPING, SystemdNotifier
from lodefs.mount.node.deadline_calls import Calls
from lodefs.mount.node.end_signals import asked_to_end
from lodefs.mount.node.interface import NodeMounts
from lodefs.mount.service.client import RemoteMounts
from lodefs.mount.service.mount_files import MountFiles
from lodefs.mount.service.server import ServiceServer, listen
from lodefs.mount.service.shared_mount import IDLE_S
from lodefs.mount.service.shared_mounts import SharedMounts, boot_id
from lodefs.mount.service.upkeep import MountUpkeep

RUN = Path("/run/lodefs/mounter")
STATE = Path("/var/lib/lodefs/mounter")
ROOT = Path("/var/lib/lodefs/mounts")
SOCKET_NAME = "mounter.sock"
RETIRE_TIMEOUT_S = 60.0
WORK_END_S = 10.0
WATCH_S = 5.0
_log = logging.getLogger("lodefs.mounter")

OpenNode = Callable[[], AbstractContextManager[NodeMounts]]
"""Makes the node. Its end touches no mount."""


class MounterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of one mount service: its socket, its state, what a reboot may empty, where it mounts, how
    long a mount stays without users, and which stores volumes may name."""

    socket: Path = RUN / SOCKET_NAME
    state: Path = STATE
    run: Path = RUN
    root: Path = ROOT
    idle_s: float = IDLE_S
    stores: tuple[str, ...] = ()


def run(settings: MounterSettings, open_node: OpenNode, environ: Mapping[str, str]) -> None:
    """Serve until SIGTERM or SIGINT. Must be called in the main thread.

    InUse, Denied, InvalidInput, Unavailable.
    """
    notifier = SystemdNotifier(environ)
    with asked_to_end() as end, open_node() as node:
        succeeds = _relieve(settings)
        files = MountFiles(settings.state, settings.run, settings.root)
        try:
            with _serving(settings, node, files, succeeds=succeeds):
                notifier.send(READY)
                while not end.wait(WATCH_S):
                    notifier.alive()
                notifier.send(STOPPING)
                _log.info("told to end; mounts stay")
        finally:
            files.close()


def _relieve(settings: MounterSettings) -> bool:
    """Have another service leave the state to this one; whether there was one."""
    with suppress(Unavailable):
        RemoteMounts(settings.socket).retire(RETIRE_TIMEOUT_S)
        return True
    return False


@contextmanager
def _serving(
    settings: MounterSettings, node: NodeMounts, files: MountFiles, *, succeeds: bool
) -> Iterator[None]:
    woken = threading.Event()
    mounts = SharedMounts(files, node, boot=boot_id(), stores=settings.stores, on_change=woken.set)
    calls = Calls()
    upkeep = MountUpkeep(mounts, calls, woken, idle_s=settings.idle_s)

    def retire(timeout_s: float) -> None:
        """No more calls and no more upkeep; then the state is another's. Mounts are served on."""
        ends_s = time.monotonic() + timeout_s
        server.stop()
        upkeep.stop(max(ends_s - time.monotonic(), 0))
        server.wait_idle(max(ends_s - time.monotonic(), 0) / 2, calls=1)
        calls.wait_idle(max(ends_s - time.monotonic(), 0) / 2)
        mounts.close()  # what still goes on fails now, and is done again by the other service
        files.close()
        _log.info("retired: another service has the mounts; waiting to be ended")

    listener = listen(settings.socket, replace=succeeds)
    server = ServiceServer(listener, mounts, retire)
    if succeeds:
        upkeep.take_over()
    upkeep.start()
    server.start()
    _log.info("serving %d mounts of %s", len(mounts.slots()), settings.state)
    try:
        yield
    finally:
        server.stop()
        upkeep.stop(WORK_END_S)
        if not calls.wait_idle(WORK_END_S):
            _log.warning("work that is not done is left to the next start")
