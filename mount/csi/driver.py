"""The driver's process: services on a socket, registered with the kubelet on request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import LodefsError, Unavailable
from lodefs.chunkstore.protocol.figures.component_counts import ComponentCounts
from lodefs.mount.csi.controller import ControllerServer
from lodefs.mount.csi.credentials import Credentials
from lodefs.mount.csi.generated import csi_pb2, registration_pb2
from lodefs.mount.csi.identity import DRIVER, Identity
from lodefs.mount.csi.node import NodeServer
from lodefs.mount.csi.registration import Registration
from lodefs.mount.csi.rpc import RpcServer
from lodefs.mount.csi.writing import PodChanges
from lodefs.mount.helper.end_signals import asked_to_end
from lodefs.mount.service.client import RemoteMounts
from lodefs.mount.service.interface import MountService
from lodefs.mount.volumes.changes import VolumeWriter, WritableVolume
from lodefs.mount.volumes.volume_files import VolumeFiles

MOUNTER = Path("/run/lodefs/mounter/mounter.sock")
STATE = Path("/var/lib/lodefs/csi")
RUN = Path("/run/lodefs")
STOP_TIMEOUT_S = 10.0
PUBLISH_S = 2.0
_log = logging.getLogger("lodefs.csi")


class DriverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one driver. ``registration`` None: another program registers it
    (node-driver-registrar). ``kubelet_socket``: the driver's socket as the kubelet sees it; None:
    as this process does. ``figures``: where it counts for the proxy (see ComponentCounts).
    ``state``, ``run``: directories of writable volumes, on a disk and where a reboot empties it."""

    endpoint: Path
    node_id: str
    version: str
    mounter: Path = MOUNTER
    registration: Path | None = None
    kubelet_socket: Path | None = None
    figures: tuple[Path, ...] = ()
    state: Path = STATE
    run: Path = RUN


MakeWriter = Callable[[Credentials], VolumeWriter]
"""Who mounts volumes that take changes, and commits them with pods' credentials."""


def run(settings: DriverSettings, make_writer: MakeWriter | None = None) -> None:
    """Serves until SIGTERM or SIGINT. Must be called in the main thread. ``make_writer`` None: no
    volume takes changes.

    Raises: InUse, Denied, InvalidInput, Unavailable.
    """
    with asked_to_end() as end:
        service = RemoteMounts(settings.mounter)
        counts = ComponentCounts("csi", version=settings.version, directories=settings.figures)
        changes = _changes(service, settings, make_writer)
        server = serving(service, settings, counts, changes)
        registrar = _registered(settings)
        try:
            service.ping(1.0)
        except LodefsError as error:
            _log.warning("nothing can be published yet: %s", error)
        _log.info("serving %s of node %s on %s", DRIVER, settings.node_id, settings.endpoint)
        counts.publish()
        while not end.wait(PUBLISH_S):
            if changes is not None:
                changes.round()
            counts.publish(None if changes is None else changes.by_state())
        if registrar is not None:
            registrar.stop(STOP_TIMEOUT_S)
        server.stop(STOP_TIMEOUT_S)
        if changes is not None and not changes.wait_idle(STOP_TIMEOUT_S):
            _log.warning("commits that are under way are left to the next start")
    _log.info("ending on a signal; mounts stay")


def serving(
    service: MountService,
    settings: DriverSettings,
    counts: ComponentCounts | None = None,
    changes: PodChanges | None = None,
) -> RpcServer:
    """Returns the driver's services, which answer from now on."""
    server = RpcServer(counts=counts)
    by_name = csi_pb2.DESCRIPTOR.services_by_name
    server.add(by_name["Identity"], Identity(service, settings.version).methods())
    node = NodeServer(service, settings.node_id, changes=changes)
    server.add(by_name["Node"], node.methods())
    server.add(by_name["Controller"], ControllerServer(service).methods())
    server.listen(settings.endpoint)
    server.start()
    return server


def _changes(
    service: MountService, settings: DriverSettings, make_writer: MakeWriter | None
) -> PodChanges | None:
    """Returns the volumes that take changes. Raises: InUse (another driver has the state), Denied,
    Unavailable."""
    if make_writer is None:
        return None
    files = VolumeFiles(WritableVolume, settings.state, "another `lodefs csi`")
    credentials = Credentials(settings.run)
    return PodChanges(service, make_writer(credentials), files, credentials)


def _registered(settings: DriverSettings) -> RpcServer | None:
    """Returns the socket at which the kubelet finds the driver."""
    if settings.registration is None:
        return None
    if not settings.registration.is_dir():
        raise Unavailable(f"{settings.registration}: there is no such directory of a kubelet")
    server = RpcServer()
    registration = Registration(str(settings.kubelet_socket or settings.endpoint))
    descriptor = registration_pb2.DESCRIPTOR.services_by_name["Registration"]
    server.add(descriptor, registration.methods())
    server.listen(settings.registration / f"{DRIVER}-reg.sock")
    server.start()
    return server
