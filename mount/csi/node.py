"""The Node service: volumes in pods, as bind mounts of the node's mounts.

It keeps no state: the mount service knows the holders of mounts, and the kernel what is mounted
where. So this process may be killed at any time, and reads go on.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from lodefs.chunkstore.errors import InUse, InvalidInput, LodefsError, NotFound, Unavailable
from lodefs.mount.csi import targets as kernel_targets
from lodefs.mount.csi.attributes import VolumeOptions, parse_token, parse_volume
from lodefs.mount.csi.capabilities import check_capability
from lodefs.mount.csi.generated import csi_pb2 as pb
from lodefs.mount.csi.rpc import Method, check_fields, labels
from lodefs.mount.csi.targets import Targets
from lodefs.mount.helper.deadline_calls import Calls
from lodefs.mount.helper.volume_locks import VolumeLocks
from lodefs.mount.service.interface import MountHandle, MountService, User

ID_BYTES_MAX = 128  # the CSI specification's limit
PATH_BYTES_MAX = 4096
EPHEMERAL = "csi.storage.k8s.io/ephemeral"
READ_TIMEOUT_S = 20.0  # for the first read of a volume's root
_Capability = pb.NodeServiceCapability
_log = logging.getLogger("lodefs.csi")


class NodeServer:
    """See the CSI specification, Node Service RPC."""

    def __init__(
        self, service: MountService, node_id: str, targets: Targets = kernel_targets
    ) -> None:
        self._service = service
        self._targets = targets
        self._node_id = node_id
        self._locks = VolumeLocks()
        self._reads = Calls()

    def methods(self) -> Mapping[str, Method]:
        """The methods, by their names in the service."""
        return {
            "NodePublishVolume": self._publish,
            "NodeUnpublishVolume": self._unpublish,
            "NodeGetVolumeStats": self._stats,
            "NodeGetCapabilities": self._capabilities,
            "NodeGetInfo": self._info,
        }

    def _publish(self, request: pb.NodePublishVolumeRequest, timeout_s: float) -> object:
        deadline_s = time.monotonic() + timeout_s
        check_fields(request, ("volume_id", "target_path"))
        if not request.HasField("volume_capability"):
            raise InvalidInput("volume_capability is missing in the request")
        user = _user(request.volume_id, request.target_path)
        context, capability = dict(request.volume_context), request.volume_capability
        is_inline = context.get(EPHEMERAL) == "true"
        check_capability(capability, read_only=request.readonly or is_inline)
        options = parse_volume(
            context, capability.mount.mount_flags, capability.mount.volume_mount_group
        )
        token = parse_token(request.secrets)
        with self._locks.holding(user.volume):
            is_new = self._show(user, options, token, deadline_s)
        if is_new:
            source, rev = options.wanted.source, options.wanted.rev
            _log.info("published %s@%s", source.repo, rev, extra=labels(request))
        return pb.NodePublishVolumeResponse()

    def _show(
        self, user: User, options: VolumeOptions, token: str | None, deadline_s: float
    ) -> bool:
        """Shows a volume at its target, readable when this returns. Returns whether it is new."""
        target = user.target
        there = self._targets.shown(target)
        if there is None:
            self._targets.make(target)
        elif not there.is_lodefs:
            raise InUse(
                f"target_path {target}: another file system ({there.fs_type}) is mounted here"
            )
        try:
            held = self._service.acquire(user, options.wanted, token, _left_s(deadline_s))
        except LodefsError:
            if there is None:
                self._targets.remove(target)
            raise
        if there is not None and self._targets.same_mount(held.place, target):
            self._targets.restrict(
                target, noexec=options.noexec
            )  # a kill may have prevented this before
            self._read(target, deadline_s)
            return False
        try:
            self._check_seen(held)
            self._targets.unbind(target)  # from a dead mount
            self._targets.bind(held.place, target, noexec=options.noexec)
            self._read(target, deadline_s)
        except LodefsError:
            if (
                there is None and held.is_new
            ):  # otherwise a pod may run, and its commit must not move
                self._undo(user)
            raise
        return True

    def _check_seen(self, held: MountHandle) -> None:
        found = self._targets.shown(held.place)
        if found is None or not found.is_lodefs:
            raise Unavailable(
                f"{held.place} is mounted, but the driver does not see it: its container needs the "
                "directory of mounts with mountPropagation HostToContainer"
            )

    def _read(self, target: str, deadline_s: float) -> None:
        """Reads through the mount. If the kernel hangs, this blocks a thread and not the call."""
        limit_s = min(READ_TIMEOUT_S, _left_s(deadline_s))
        self._reads.run(("read", target), partial(self._targets.read_root, target), limit_s)

    def _undo(self, user: User) -> None:
        with suppress(LodefsError):
            self._targets.unbind(user.target)
            self._targets.remove(user.target)
            self._service.release(user, 5.0)

    def _unpublish(self, request: pb.NodeUnpublishVolumeRequest, timeout_s: float) -> object:
        deadline_s = time.monotonic() + timeout_s
        check_fields(request, ("volume_id", "target_path"))
        user = User(request.volume_id, _target(request.target_path))
        with self._locks.holding(user.volume):
            try:
                self._targets.unbind(user.target)
                self._targets.remove(user.target)
            except InUse as error:
                _log.warning("left alone: %s", error, extra=labels(request))
            if len(user.volume.encode()) <= ID_BYTES_MAX:  # longer ids cannot be held
                self._service.release(user, _left_s(deadline_s))
        return pb.NodeUnpublishVolumeResponse()

    def _stats(self, request: pb.NodeGetVolumeStatsRequest, timeout_s: float) -> object:
        check_fields(request, ("volume_id", "volume_path"))
        if self._targets.shown(request.volume_path) is None:
            raise NotFound(f"volume_path {request.volume_path}: no volume is published here")
        user = _user(request.volume_id, request.volume_path)
        health = self._service.health(user.volume, timeout_s)
        problem = health.problem
        if not problem and not self._targets.same_mount(health.held.place, user.target):
            problem = "the pod shows a dead mount: restart the pod"
        usage = pb.VolumeUsage
        bytes_, files = health.held.size_bytes, health.held.files
        return pb.NodeGetVolumeStatsResponse(
            usage=[
                usage(unit=usage.BYTES, total=bytes_, used=bytes_, available=0),
                usage(unit=usage.INODES, total=files, used=files, available=0),
            ],
            volume_condition=pb.VolumeCondition(
                abnormal=bool(problem), message=problem or "mounted, and its proxy answers"
            ),
        )

    def _capabilities(self, _request: pb.NodeGetCapabilitiesRequest, _timeout_s: float) -> object:
        types = (
            _Capability.RPC.GET_VOLUME_STATS,
            _Capability.RPC.VOLUME_CONDITION,
            _Capability.RPC.VOLUME_MOUNT_GROUP,
        )
        return pb.NodeGetCapabilitiesResponse(
            capabilities=[_Capability(rpc=_Capability.RPC(type=type_)) for type_ in types]
        )

    def _info(self, _request: pb.NodeGetInfoRequest, _timeout_s: float) -> object:
        return pb.NodeGetInfoResponse(node_id=self._node_id)


def _user(volume: str, target: str) -> User:
    """The holder of a mount. Raises: InvalidInput."""
    size_bytes = len(volume.encode())
    if size_bytes > ID_BYTES_MAX:
        raise InvalidInput(
            f"volume_id: it has {size_bytes} bytes, and CSI allows {ID_BYTES_MAX}: choose a "
            "shorter volumeHandle"
        )
    return User(volume, _target(target))


def _target(path: str) -> str:
    """The path at which a volume is shown. Raises: InvalidInput."""
    if not os.path.isabs(path) or "\0" in path or len(path.encode()) > PATH_BYTES_MAX:
        raise InvalidInput(f"target_path must be an absolute path of up to {PATH_BYTES_MAX} bytes")
    return os.path.normpath(path)


def _left_s(deadline_s: float) -> float:
    return max(deadline_s - time.monotonic(), 0.001)
