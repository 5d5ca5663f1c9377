"""The files of Docker's volumes (mount.volumes.volume_files)."""

from __future__ import annotations

from pathlib import Path

from lodefs.mount.docker.volume import Volume
from lodefs.mount.volumes.volume_files import Damaged, VolumeFiles, decode_volume

Record = Volume | Damaged


class Records(VolumeFiles[Volume]):
    """``earlier_mounts``: where volumes were mounted, each on KEY, before the mount service had
    them."""

    def __init__(self, directory: Path) -> None:
        """Raises: InUse if another plugin has the directory; Denied, Unavailable."""
        super().__init__(Volume, directory, "another `lodefs docker-plugin`")
        self.earlier_mounts = self.directory / "mounts"


def decode_record(data: bytes) -> Volume:
    """Returns the volume that a file describes. Raises: Corrupt, UnknownFormat."""
    return decode_volume(Volume, data)


__all__ = ["Damaged", "Record", "Records", "decode_record"]
