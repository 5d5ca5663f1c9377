"""How a volume may be asked for: mounted and read, never written, never as a block device. Pure."""

from __future__ import annotations

from lodefs.chunkstore.errors import InvalidInput
from lodefs.mount.csi.generated import csi_pb2 as pb

_Mode = pb.VolumeCapability.AccessMode
READING = frozenset({_Mode.SINGLE_NODE_READER_ONLY, _Mode.MULTI_NODE_READER_ONLY})
FS_TYPES = frozenset({"", "lodefs", "fuse", "fuse.lodefs"})


def check_capability(
    capability: pb.VolumeCapability, what: str = "volume_capability", *, read_only: bool = False
) -> None:
    """InvalidInput where a volume cannot be had so. ``read_only``: the request says besides that
    nothing is written, which Kubernetes does for a pod's ``readOnly: true``; of an inline volume
    it names a mode that writes in any case."""
    kind = capability.WhichOneof("access_type")
    if kind is None:
        raise InvalidInput(f"{what}: access_type is missing")
    if kind == "block":
        raise InvalidInput(f"{what}: a dataset is no block device: volumeMode is Filesystem")
    if capability.mount.fs_type not in FS_TYPES:
        raise InvalidInput(f"{what}: there is no fs_type {capability.mount.fs_type[:60]!r} here")
    mode = capability.access_mode.mode
    if mode == _Mode.UNKNOWN:
        raise InvalidInput(f"{what}: access_mode is missing")
    if mode not in READING and not read_only:
        name = _Mode.Mode.Name(mode) if mode in _Mode.Mode.values() else str(mode)
        raise InvalidInput(
            f"{what}: access_mode {name} writes, and volumes are read-only: accessModes "
            "[ReadOnlyMany], or readOnly: true"
        )
