"""Writable volumes: what they need of the node and the store, and when they are committed.

A volume is *open* from its first Mount until its changes are in a commit, or kept. ``mount_ids`` of
its record says so, and for which containers. Whatever ends in between, upkeep finds it open and
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
MOUNT_IDS_MAX = 50  # the latest ones that a message names


class Base(NamedTuple):
    """The snapshot below a writable mount, in the form of the mount service."""

    source: Source
    commit: str


class Closed(NamedTuple):
    """What became of a volume's changes. ``commit``: the commit with them, "" if none was made;
    ``kept``: they are still on the disk."""

    commit: str
    kept: bool


class VolumeWriter(Protocol):
    """Writable mounts of volumes, and commits of them. The caller holds the volume exclusively.
    Calls may be repeated: a kill at any moment loses nothing."""

    def branch(self, repo: str, branch: str) -> str:
        """Ensures that commits can be made to a branch, and returns its head. A missing branch
        begins at ``main``. Raises: NotFound (the repository), Denied (credentials for writing),
        InvalidInput (a tag), Unavailable."""
        ...

    def base(self, volume: Volume) -> Base:
        """The snapshot below the volume's mount: the base of its changes or, without changes, the
        newest commit of its branch. Raises: NotFound, Unavailable."""
        ...

    def place(self, volume: Volume) -> str:
        """The path at which it is mounted, if it is."""
        ...

    def mount(self, volume: Volume, token: str | None) -> str:
        """Mounts the volume, unless it is mounted, on the directory that is returned, with its
        changes. The volume is at its ``base``, which the mount service has mounted. Raises: InUse
        (an unknown container still has it), InvalidInput (the disk cannot take changes), NoSpace,
        Unavailable."""
        ...

    def close(self, volume: Volume, message: str) -> Closed:
        """Unmounts it, if it is mounted, and commits its changes, if there are any; ``message``
        "": keeps them instead. They stay when this raises: InUse if a container still has the
        mount, Diverged, NotFound (the branch), NoSpace, Denied, Unavailable."""
        ...


def opened(volume: Volume, commit: str, mount_id: str) -> Volume:
    """The volume with one more container that may write to it. Pure."""
    known = [one for one in mount_ids(volume) if one != mount_id]
    return msgspec.structs.replace(
        volume, commit=commit, mount_ids=(*known, mount_id)[-MOUNT_IDS_MAX:]
    )


def closed(volume: Volume, commit: str) -> Volume:
    """The volume when ``commit`` has its changes; "": there are none, or they are kept. Pure."""
    return msgspec.structs.replace(volume, commit=commit or volume.commit, mount_ids=msgspec.UNSET)


def mount_ids(volume: Volume) -> tuple[str, ...]:
    """The containers' mount IDs since it was opened, the latest last. Pure."""
    return () if volume.mount_ids is msgspec.UNSET else volume.mount_ids


def message(volume: Volume) -> str:
    """The message for the commit of its changes; "" for a volume that is not committed. Pure."""
    if volume.options.commits != ON_LAST:
        return ""
    return "\n".join((f"Docker volume {volume.name}", "", *_lines(mount_ids(volume))))


def _lines(ids: Iterable[str]) -> list[str]:
    return [f"mount {one}" for one in ids]


def close_due(volume: Volume, references: int, failure: LodefsError | None) -> bool:
    """Whether it is open and not mounted. After a ``failure`` that does not go away by itself,
    False until somebody acts. Pure."""
    is_open = bool(mount_ids(volume)) and not references
    return is_open and (failure is None or isinstance(failure, TEMPORARY))
