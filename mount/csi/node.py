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
from typing import NamedTuple

import msgspec

from lodefs.chunkstore.errors import (
    InUse,
    InvalidInput,
    LodefsError,
    NotFound,
    Unavailable,
    Unsupported,
)
from lodefs.mount.csi import targets as kernel_targets
from lodefs.mount.csi.attributes import (
    EPHEMERAL,
    Secrets,
    VolumeOptions,
    parse_secrets,
    parse_volume,
)
from lodefs.mount.csi.capabilities import ALONE, check_capability
from lodefs.mount.csi.generated import csi_pb2 as pb
from lodefs.mount.csi.rpc import Method, check_fields, labels
from lodefs.mount.csi.targets import Targets
from lodefs.mount.csi.writing import PodChanges
from lodefs.mount.helper.deadline_calls import Calls, left_s
from lodefs.mount.helper.volume_locks import VolumeLocks
from lodefs.mount.service.interface import POD_CHANGES, MountService, User
from lodefs.mount.volumes.openings import Opened

ID_BYTES_MAX = 128  # the CSI specification's limit
PATH_BYTES_MAX = 4096
READ_TIMEOUT_S = 20.0  # for the first read of a volume's root
_Capability = pb.NodeServiceCapability
_log = logging.getLogger("lodefs.csi")


class _Wanted(NamedTuple):
    """A request to publish a volume. ``label``: the pod, as a commit names it; ``is_alone``: no
    other target of the node may have the volume."""

    user: User
    options: VolumeOptions
    secrets: Secrets
    label: str
    writes: bool
    is_alone: bool


class NodeServer:
    """See the CSI specification, Node Service RPC."""

    def __init__(
        self,
        service: MountService,
        node_id: str,
        targets: Targets = kernel_targets,
        changes: PodChanges | None = None,
    ) -> None:
        """``changes`` None: no volume takes any."""
        self._service = service
        self._targets = targets
        self._node_id = node_id
        self._changes = changes
        self._locks = VolumeLocks()
        self._reads = Calls()

    def methods(self) -> Mapping[str, Method]:
        """Returns the methods, by their names in the service."""
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
            raise InvalidInput("volume_capability: missing in the request")
        wanted = _wanted(request)
        if wanted.writes and self._changes is None:
            raise Unsupported(
                'write: "true": the driver of this node takes no changes: csi.writable.credentials '
                "of the chart, or `lodefs csi --writable`, says with whose credentials it may; "
                "readOnly: true reads the branch"
            )
        with self._locks.holding(wanted.user.volume):
            is_new = self._show(wanted, deadline_s)
        if is_new:
            claim = wanted.options.wanted
            what = "%s@%s, to be changed" if wanted.writes else "%s@%s"
            _log.info(f"published {what}", claim.source.repo, claim.rev, extra=labels(request))
        return pb.NodePublishVolumeResponse()

    def _show(self, wanted: _Wanted, deadline_s: float) -> bool:
        """Shows a volume at its target. It can be read when this returns. Returns whether it is new
        there."""
        target, noexec, writes = wanted.user.target, wanted.options.noexec, wanted.writes
        there = self._targets.shown(target)
        if there is None:
            self._targets.make(target)
        elif not there.is_ours:
            raise InUse(
                f"target_path {target}: another file system ({there.fs_type}) is mounted here"
            )
        try:
            place, held = self._acquire(wanted, deadline_s)
        except LodefsError:
            if there is None:
                self._targets.remove(target)
            raise
        if there is not None and self._targets.same_mount(place, target):
            # a kill may have come before that
            self._targets.restrict(target, noexec=noexec, writes=writes)
            self._read(target, deadline_s)
            return False
        try:
            self._check_seen(place)
            self._targets.unbind(target)  # of a mount that had died
            self._targets.bind(place, target, noexec=noexec, writes=writes)
            self._read(target, deadline_s)
        except LodefsError:
            if there is None and held.is_new:  # else a pod may run, and its commit must not move
                self._undo(wanted.user)
            raise
        return True

    def _acquire(self, wanted: _Wanted, deadline_s: float) -> Opened:
        """Returns the mount that is to be shown at the target."""
        user, options, token = wanted.user, wanted.options, wanted.secrets.token
        if not wanted.writes or self._changes is None:
            held = self._service.acquire(user, options.wanted, token, left_s(deadline_s))
            return Opened(held.place, held)
        volume = options.writable(user.volume)
        timeout_s = left_s(deadline_s)
        opened = self._changes.open(user, volume, wanted.secrets, wanted.label, timeout_s)
        if wanted.is_alone and opened.below.is_new:
            self._changes.check_alone(user, left_s(deadline_s))
        return opened

    def _check_seen(self, place: str) -> None:
        found = self._targets.shown(place)
        if found is None or not found.is_ours:
            raise Unavailable(
                f"{place} is mounted, but the driver does not see it: its container needs the "
                "directory of mounts with mountPropagation HostToContainer"
            )

    def _read(self, target: str, deadline_s: float) -> None:
        """Reads through the mount. If the kernel hangs, this blocks a thread and not the call."""
        limit_s = min(READ_TIMEOUT_S, left_s(deadline_s))
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
            if len(user.volume.encode()) <= ID_BYTES_MAX:  # nobody can hold another one
                for driver in ("", POD_CHANGES):
                    one = msgspec.structs.replace(user, driver=driver)
                    self._service.release(one, left_s(deadline_s))
        return pb.NodeUnpublishVolumeResponse()

    def _stats(self, request: pb.NodeGetVolumeStatsRequest, timeout_s: float) -> object:
        check_fields(request, ("volume_id", "volume_path"))
        if self._targets.shown(request.volume_path) is None:
            raise NotFound(f"volume_path {request.volume_path}: no volume is published here")
        user = _user(request.volume_id, request.volume_path)
        if self._changes is not None:
            place, problem = self._changes.look(user.volume, timeout_s)
            if place and self._targets.same_mount(place, user.target):
                return _stats_of(place, problem)
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
            _Capability.RPC.SINGLE_NODE_MULTI_WRITER,
            _Capability.RPC.GET_VOLUME_STATS,
            _Capability.RPC.VOLUME_CONDITION,
            _Capability.RPC.VOLUME_MOUNT_GROUP,
        )
        return pb.NodeGetCapabilitiesResponse(
            capabilities=[_Capability(rpc=_Capability.RPC(type=type_)) for type_ in types]
        )

    def _info(self, _request: pb.NodeGetInfoRequest, _timeout_s: float) -> object:
        return pb.NodeGetInfoResponse(node_id=self._node_id)


def _wanted(request: pb.NodePublishVolumeRequest) -> _Wanted:
    """Returns the decoded request. Raises: InvalidInput."""
    user = _user(request.volume_id, request.target_path)
    context, capability = dict(request.volume_context), request.volume_capability
    flags, group = capability.mount.mount_flags, capability.mount.volume_mount_group
    options = parse_volume(context, flags, group)
    takes_changes = bool(options.commits)
    is_inline = context.get(EPHEMERAL) == "true" and not takes_changes
    read_only = request.readonly or is_inline
    writes = check_capability(capability, read_only=read_only, takes_changes=takes_changes)
    if writes:
        user = msgspec.structs.replace(user, driver=POD_CHANGES)
    names = labels(request)
    pod = f"{names.get('namespace', '')}/{names['pod']}" if "pod" in names else user.target
    is_alone = capability.access_mode.mode == ALONE
    return _Wanted(user, options, parse_secrets(request.secrets), pod, writes, is_alone)


def _user(volume: str, target: str) -> User:
    """Returns the holder of a mount. Raises: InvalidInput."""
    size_bytes = len(volume.encode())
    if size_bytes > ID_BYTES_MAX:
        raise InvalidInput(
            f"volume_id: it has {size_bytes} bytes, and CSI allows {ID_BYTES_MAX}: choose a "
            "shorter volumeHandle"
        )
    return User(volume, _target(target))


def _target(path: str) -> str:
    """Returns the path at which a volume is shown. Raises: InvalidInput."""
    if not os.path.isabs(path) or "\0" in path or len(path.encode()) > PATH_BYTES_MAX:
        raise InvalidInput(f"target_path must be an absolute path of up to {PATH_BYTES_MAX} bytes")
    return os.path.normpath(path)


def _stats_of(place: str, problem: str) -> pb.NodeGetVolumeStatsResponse:
    """Returns the room for a volume's changes on the node's disk, and its problem."""
    try:
        found = os.statvfs(place)
    except OSError as error:
        raise Unavailable(f"{place}: {error.strerror}") from error
    size, left = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    used = (found.f_blocks - found.f_bfree) * found.f_frsize
    usage = pb.VolumeUsage
    condition = pb.VolumeCondition(
        abnormal=bool(problem), message=problem or "mounted, and takes changes"
    )
    return pb.NodeGetVolumeStatsResponse(
        usage=[usage(unit=usage.BYTES, total=size, used=used, available=left)],
        volume_condition=condition,
    )
