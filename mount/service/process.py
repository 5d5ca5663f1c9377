"""The mount service's process, which puts all parts together.

It ends without touching a mount: mounts are separate processes, and the next service finds them. If
another service owns the state, this one asks it to retire and takes its mounts over: in Kubernetes
the new pod does so before the old one ends with its processes. The retired service stands by, and
takes the mounts back if the other one ends first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgspec

from lodefs.chunkstore.errors import InUse, Unavailable
from lodefs.chunkstore.protocol import rpc
from lodefs.chunkstore.protocol.figures.component_counts import ComponentCounts
from lodefs.chunkstore.system.systemd.notify import READY, STOPPING, SystemdNotifier
from lodefs.mount.helper.deadline_calls import Calls
from lodefs.mount.helper.end_signals import asked_to_end
from lodefs.mount.helper.interface import NodeMounts
from lodefs.mount.service.client import RemoteMounts
from lodefs.mount.service.keeper import Tenure
from lodefs.mount.service.machine_clock import boot_id
from lodefs.mount.service.mount_files import MountFiles
from lodefs.mount.service.server import OPERATIONS, ServiceServer
from lodefs.mount.service.shared_mount import IDLE_S
from lodefs.mount.service.shared_mounts import SharedMounts
from lodefs.mount.service.standby import Standby, hand_over
from lodefs.mount.service.upkeep import MountUpkeep

RUN = Path("/run/lodefs/mounter")
STATE = Path("/var/lib/lodefs/mounter")
ROOT = Path("/var/lib/lodefs/mounts")
SOCKET_NAME = "mounter.sock"
RETIRE_TIMEOUT_S = 60.0
WORK_END_S = 10.0
WATCH_S = 1.0
TRIES = 3  # attempts to get the state
_log = logging.getLogger("lodefs.mounter")

OpenNode = Callable[[], AbstractContextManager[NodeMounts]]
"""Makes the NodeMounts. Its end touches no mount."""


class MounterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one mount service: its socket, its state, the directory that a reboot may empty,
    where it mounts, how long a mount stays without users, which stores volumes may name, and where
    it counts for the proxy (see ComponentCounts)."""

    socket: Path = RUN / SOCKET_NAME
    state: Path = STATE
    run: Path = RUN
    root: Path = ROOT
    idle_s: float = IDLE_S
    stores: tuple[str, ...] = ()
    figures: tuple[Path, ...] = ()
    version: str = ""


class Door(Protocol):
    """Another way to the service's mounts besides its own socket."""

    def start(self) -> None:
        """Begins to answer."""
        ...

    def stop(self) -> None:
        """Stops accepting new clients."""
        ...


OpenDoor = Callable[[SharedMounts, bool], Door]
"""Makes a door to mounts; the flag: it replaces that of another service. InUse, Unavailable."""


def run(
    settings: MounterSettings,
    open_node: OpenNode,
    environ: Mapping[str, str],
    tenure: Tenure | None = None,
    open_door: OpenDoor | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT. Must be called in the main thread. ``tenure``: of the
    container whose service this is, if there is one.

    Raises: InUse, Denied, InvalidInput, Unavailable.
    """
    notifier = SystemdNotifier(environ)
    with asked_to_end() as end, open_node() as node:
        service = _Service(settings, node, end, notifier, open_door)
        files, takes_over = _first_files(settings, tenure)
        while files or (files := service.await_files()):
            if tenure is not None:
                tenure.begin()
            if not service.serve(files, takes_over=takes_over):
                break
            files, takes_over = None, True
        notifier.send(STOPPING)


def _first_files(
    settings: MounterSettings, tenure: Tenure | None
) -> tuple[MountFiles | None, bool]:
    """Returns the state, and whether to take over living mounts: from a service that leaves them to
    this one, or from a container whose service does not answer now. None if this container has
    served before and another service now serves, which has not asked for its return."""
    is_again = tenure is not None and tenure.has_begun
    for tries_left in reversed(range(TRIES)):
        succeeds = not is_again and _relieve(settings)
        try:
            files = MountFiles(settings.state, settings.run, settings.root)
        except InUse:
            if is_again:
                break
            if not (succeeds and tries_left):
                raise
        else:
            return files, succeeds or (tenure is not None and not is_again)
    return None, True


def _relieve(settings: MounterSettings) -> bool:
    """Makes another service leave the state to this one. Returns whether there was one."""
    with suppress(Unavailable):
        RemoteMounts(settings.socket).retire(RETIRE_TIMEOUT_S)
        return True
    return False


class _Service:
    """The service of one process, which serves, stands by, and serves again."""

    def __init__(
        self,
        settings: MounterSettings,
        node: NodeMounts,
        end: threading.Event,
        notifier: SystemdNotifier,
        open_door: OpenDoor | None,
    ) -> None:
        self._settings = settings
        self._open_door = open_door
        self._node = node
        self._end = end
        self._notifier = notifier
        self._standby = Standby(settings.state)
        self._retired = threading.Event()
        self._mounts: SharedMounts | None = None
        self._upkeep: MountUpkeep | None = None
        self._counts = ComponentCounts(
            "mounter", OPERATIONS.values(), version=settings.version, directories=settings.figures
        )

    def await_files(self) -> MountFiles | None:
        """Returns the state, once its service has ended; None if this one must end."""
        settings, standby = self._settings, self._standby
        _log.info("another service has the mounts; waiting until it ends")
        self._notifier.send(READY)
        standby.begin()
        try:
            while standby.await_free(self._is_told_to_end):
                with suppress(InUse):  # somebody was faster
                    return MountFiles(settings.state, settings.run, settings.root)
            return None
        finally:
            standby.end()

    def serve(self, files: MountFiles, *, takes_over: bool) -> bool:
        """Serves until another service has the state, and returns True then; returns False if this
        one must end."""
        self._retired.clear()
        try:
            with self._serving(files, takes_over=takes_over):
                self._notifier.send(READY)
                while not (self._is_told_to_end(WATCH_S) or self._retired.is_set()):
                    pass
        finally:
            files.close()
        if self._retired.is_set() and not self._end.is_set():
            return True
        _log.info("ending on a signal; mounts stay")
        self._standby.end()
        hand_over(self._settings.state, RemoteMounts(self._settings.socket).ping)
        return False

    def _is_told_to_end(self, timeout_s: float) -> bool:
        if self._upkeep is None or self._upkeep.is_well():
            self._notifier.alive()
        self._counts.publish({} if self._mounts is None else self._mounts.by_state())
        return self._end.wait(timeout_s)

    @contextmanager
    def _serving(self, files: MountFiles, *, takes_over: bool) -> Iterator[None]:
        settings, woken = self._settings, threading.Event()
        mounts = SharedMounts(
            files, self._node, boot=boot_id(), stores=settings.stores, on_change=woken.set
        )
        calls = Calls()
        upkeep = MountUpkeep(mounts, calls, woken, idle_s=settings.idle_s)

        def retire(timeout_s: float) -> None:
            """Ends calls and upkeep; then the state belongs to another service. Mounts stay."""
            ends_s = time.monotonic() + timeout_s
            server.stop()
            if door is not None:
                door.stop()
            upkeep.stop(max(ends_s - time.monotonic(), 0))
            server.wait_idle(max(ends_s - time.monotonic(), 0) / 2, connections=1)
            calls.wait_idle(max(ends_s - time.monotonic(), 0) / 2)
            mounts.close()  # work under way fails now, and the other service repeats it
            self._standby.begin()
            files.close()
            self._retired.set()

        listener = rpc.listen(settings.socket, replace=takes_over)
        server = ServiceServer(listener, mounts, retire, self._counts)
        door = self._open_door(mounts, takes_over) if self._open_door is not None else None
        if takes_over:
            upkeep.take_over()
        upkeep.start()
        server.start()
        if door is not None:
            door.start()
        self._mounts, self._upkeep = mounts, upkeep
        _log.info("serving %d mounts of %s", len(mounts.slots()), settings.state)
        try:
            yield
        finally:
            self._mounts = self._upkeep = None
            server.stop()
            if door is not None:
                door.stop()
            upkeep.stop(WORK_END_S)
            if not calls.wait_idle(WORK_END_S):
                _log.warning("unfinished work is left to the next start")
