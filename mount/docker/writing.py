"""Volumes that take changes: what they need of the node and the store, and when they are committed.

A volume is *open* from the first Mount on until its changes are in a commit, or kept: ``mount_ids``
of its record says so, and for which containers. Whatever ends in between, upkeep finds it open and
unused, and closes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import msgspec

from lodefs.chunkstore.errors import Conflict, InUse, LodefsError, Unavailable
from lodefs.mount.docker.options import ON_LAST
from lodefs.mount.docker.volume import Volume
from lodefs.mount.helper.interface import Source

TEMPORARY = (Unavailable, Conflict, InUse)
MOUNT_IDS_MAX = 50  # that a message names; the latest


class Base(NamedTuple):
    """The snapshot below a writable mount, as the mount service is asked for it."""

    source: Source
    commit: str


class Closed(NamedTuple):
    """What became of a volume's changes. ``commit``: which has them, "" if none was made; ``kept``:
    they are on the disk still."""

    commit: str
    kept: bool


class VolumeWriter(Protocol):
    """Writable mounts of volumes, and commits of them. The caller has the volume for itself. What
    was done may be done again: a kill at any moment loses nothing."""

    def branch(self, repo: str, branch: str) -> str:
        """Ensures that commits can be made to a branch, which begins at ``main`` if there is none;
        the commit at which it is. NotFound (the repository), Denied (credentials for writing),
        InvalidInput (a tag), Unavailable."""
        ...

    def base(self, volume: Volume) -> Base:
        """What is, or is to be, below the volume's mount: the base of the changes that it has, or
        else the newest commit of its branch. NotFound, Unavailable."""
        ...

    def place(self, volume: Volume) -> str:
        """Where it is mounted, if it is."""
        ...

    def mount(self, volume: Volume, token: str | None) -> str:
        """Have the volume mounted on the directory that is returned, with the changes that it has;
        fine if it is. The volume is at its ``base``, which the mount service has mounted. InUse (a
        container has it that is not known any more), InvalidInput (a disk that cannot take
        changes), NoSpace, Unavailable."""
        ...

    def close(self, volume: Volume, message: str) -> Closed:
        """Take the mount away, and commit the changes if there are any; ``message`` "": keep them
        instead. Fine where nothing is mounted. They stay when this raises: InUse where a container
        has the mount still, Diverged, NotFound (the branch), NoSpace, Denied, Unavailable."""
        ...


def opened(volume: Volume, commit: str, mount_id: str) -> Volume:
    """With one container more that may write to it. Pure."""
    known = [one for one in mount_ids(volume) if one != mount_id]
    return msgspec.structs.replace(
        volume, commit=commit, mount_ids=(*known, mount_id)[-MOUNT_IDS_MAX:]
    )


def closed(volume: Volume, commit: str) -> Volume:
    """When its changes are in ``commit``; "": there are none, or they are kept. Pure."""
    return msgspec.structs.replace(volume, commit=commit or volume.commit, mount_ids=msgspec.UNSET)


def mount_ids(volume: Volume) -> tuple[str, ...]:
    """The containers' mount IDs since it was opened, the latest last. Pure."""
    return () if volume.mount_ids is msgspec.UNSET else volume.mount_ids


def message(volume: Volume) -> str:
    """Of the commit of its changes; "" of a volume that is not to be committed. Pure."""
    if volume.options.commits != ON_LAST:
        return ""
    return "\n".join((f"Docker volume {volume.name}", "", *_lines(mount_ids(volume))))


def _lines(ids: Iterable[str]) -> list[str]:
    return [f"mount {one}" for one in ids]


def close_due(volume: Volume, references: int, failure: LodefsError | None) -> bool:
    """Whether it is open, and nobody has it mounted; after a ``failure`` that does not go by itself
    somebody has to do something first. Pure."""
    is_open = bool(mount_ids(volume)) and not references
    return is_open and (failure is None or isinstance(failure, TEMPORARY))
