"""The supported uses of a volume: mounted, for reading or writing, never a block device. Pure."""

from __future__ import annotations

from lodefs.chunkstore.errors import InvalidInput
from lodefs.mount.csi.generated import csi_pb2 as pb

_Mode = pb.VolumeCapability.AccessMode
READING = frozenset({_Mode.SINGLE_NODE_READER_ONLY, _Mode.MULTI_NODE_READER_ONLY})
ALONE = _Mode.SINGLE_NODE_SINGLE_WRITER  # at one target of one node
FS_TYPES = frozenset({"", "lodefs", "fuse", "fuse.lodefs"})


def check_capability(
    capability: pb.VolumeCapability,
    what: str = "volume_capability",
    *,
    read_only: bool = False,
    takes_changes: bool = False,
) -> bool:
    """Whether the volume is used for writing. Raises InvalidInput for an unsupported use.

    ``read_only``: the request also says that nothing is written, as Kubernetes does for a pod's
    ``readOnly: true``; for an inline volume it always names a mode that writes.
    ``takes_changes``: the volume is writable.
    """
    kind = capability.WhichOneof("access_type")
    if kind is None:
        raise InvalidInput(f"{what}: access_type is missing")
    if kind == "block":
        raise InvalidInput(f"{what}: a dataset is not a block device: set volumeMode to Filesystem")
    if capability.mount.fs_type not in FS_TYPES:
        raise InvalidInput(f"{what}: there is no fs_type {capability.mount.fs_type[:60]!r} here")
    mode = capability.access_mode.mode
    if mode == _Mode.UNKNOWN:
        raise InvalidInput(f"{what}: access_mode is missing")
    is_known = mode in _Mode.Mode.values()
    if mode in READING or read_only:
        return False
    if not takes_changes or not is_known:
        name = _Mode.Mode.Name(mode) if is_known else str(mode)
        raise InvalidInput(
            f"{what}: access_mode {name} writes, and the volume is read-only: accessModes "
            '[ReadOnlyMany], or readOnly: true; or write: "true" for one that takes changes'
        )
    return True
