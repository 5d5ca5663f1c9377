"""A volume of Docker as one that takes changes (mount.volumes.changes). Pure."""

from __future__ import annotations

import msgspec

from lodefs.mount.docker.options import Options
from lodefs.mount.docker.volume import Volume
from lodefs.mount.volumes.changes import Words, WritableVolume

WORDS = Words("Docker volume", "mount")


def asked(name: str, options: Options) -> WritableVolume:
    """Returns a volume that is to be made, which takes changes."""
    return WritableVolume(
        name=name, source=options.source, branch=options.rev, commits=str(options.commits)
    )


def writable(volume: Volume) -> WritableVolume:
    """Returns a volume that takes changes."""
    users = mount_ids(volume)
    return msgspec.structs.replace(
        asked(volume.name, volume.options), commit=volume.commit, users=users
    )


def changed(volume: Volume, after: WritableVolume) -> Volume:
    """Returns the volume as it is now."""
    return msgspec.structs.replace(
        volume, commit=after.commit, mount_ids=after.users or msgspec.UNSET
    )


def mount_ids(volume: Volume) -> tuple[str, ...]:
    """Returns the containers' mount IDs since it was opened, the latest last."""
    return () if volume.mount_ids is msgspec.UNSET else volume.mount_ids
