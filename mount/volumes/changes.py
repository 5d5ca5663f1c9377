"""Volumes that take changes: what they need of the node and the store, and what becomes of them.

A volume is *open* from its first user on until its changes are in a commit, kept, or given up:
``users`` says so, and for whom. Whatever ends in between, upkeep finds it open and unused, and
closes it.
"""

from __future__ import annotations

import string
from typing import NamedTuple, Protocol

import msgspec
from blake3 import blake3

from lodefs.chunkstore.errors import Conflict, InUse, LodefsError, Unavailable
from lodefs.mount.helper.interface import Source
from lodefs.mount.volumes.options import ON_LAST

TEMPORARY = (Unavailable, Conflict, InUse)
USERS_MAX = 50  # that a message names; the latest
KEY_NAME_CHARS_MAX = 64
KEY_DIGEST_BYTES = 8
_SAFE = frozenset(string.ascii_letters + string.digits + "._-")


class WritableVolume(msgspec.Struct, frozen=True, kw_only=True):
    """A volume that takes changes. ``branch``: where they are committed; ``commits``: what becomes
    of them (volumes.options); ``commit``: the one that its mount shows below them; ``users``: who
    may have written to it since it was opened, as a message names them, the latest last."""

    name: str
    source: Source
    branch: str
    commits: str
    commit: str = ""
    users: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name of its files."""
        return key_of(self.name)


class Base(NamedTuple):
    """The snapshot below a writable mount, as the mount service is asked for it."""

    source: Source
    commit: str


class Closed(NamedTuple):
    """The outcome of a volume's changes. ``commit``: the commit that has them, "" if none was made;
    ``kept``: they are still on the disk; ``left_out``: the paths that no commit can hold, and why,
    for people; "" if there are none."""

    commit: str
    kept: bool
    left_out: str = ""


class VolumeWriter(Protocol):
    """Writable mounts of volumes, and commits of them. The caller has the volume for itself. What
    was done may be done again: a kill at any moment loses nothing."""

    def branch(self, volume: WritableVolume) -> str:
        """Ensures that commits can be made to the volume's branch, which begins at ``main`` if
        there is none. Returns the commit at which it is. Raises: NotFound (the repository), Denied
        (credentials for writing), InvalidInput (a tag), Unavailable."""
        ...

    def base(self, volume: WritableVolume) -> Base:
        """Returns the snapshot below the volume's mount: the base of the changes that it has, or
        else the newest commit of its branch. Raises: NotFound, Denied, Unavailable."""
        ...

    def place(self, volume: WritableVolume) -> str:
        """Returns the mountpoint of a volume, if it is mounted."""
        ...

    def mount(self, volume: WritableVolume, token: str | None) -> str:
        """Mounts the volume with the changes that it has, unless it is mounted, and returns the
        directory. The volume is at its ``base``, which the mount service has mounted. Raises: InUse
        (a container has it that is not known any more), InvalidInput (a disk that cannot take
        changes), NoSpace, Unavailable."""
        ...

    def close(self, volume: WritableVolume, message: str) -> Closed:
        """Removes the mount, if there is one, and commits the changes, if there are any. With
        ``message`` "" it keeps them instead, or gives them up if the volume says DISCARD. They stay
        if this raises: InUse if a container still has the mount, Diverged, NotFound (the branch),
        NoSpace, Denied, Unavailable."""
        ...


class Words(NamedTuple):
    """The names of a driver's volumes and their users in messages of commits."""

    volume: str
    user: str


def key_of(name: str) -> str:
    """Returns the name of a volume's files: up to 64 safe characters of its name, and 16 hex digits
    of the name's BLAKE3."""
    safe = "".join(c if c in _SAFE else "_" for c in name[:KEY_NAME_CHARS_MAX]).lstrip(".")
    return f"{safe}-{blake3(name.encode()).hexdigest(length=KEY_DIGEST_BYTES)}"


def opened(volume: WritableVolume, commit: str, user: str) -> WritableVolume:
    """Returns the volume with one more user, who may write to it. Pure."""
    users = volume.users if user in volume.users else (*volume.users, user)[-USERS_MAX:]
    return msgspec.structs.replace(volume, commit=commit, users=users)


def closed(volume: WritableVolume, commit: str) -> WritableVolume:
    """Returns the volume after its changes are in ``commit``; "": there are none, or they are kept.
    Pure."""
    return msgspec.structs.replace(volume, commit=commit or volume.commit, users=())


def message(volume: WritableVolume, words: Words) -> str:
    """Returns the message for the commit of its changes; "" if they are not to be committed.
    Pure."""
    if volume.commits != ON_LAST:
        return ""
    users = [f"{words.user} {one}" for one in volume.users]
    return "\n".join((f"{words.volume} {volume.name}", "", *users))


def close_due(volume: WritableVolume, references: int, failure: LodefsError | None) -> bool:
    """Whether it is open, and nobody has it mounted; after a ``failure`` that does not go by itself
    somebody has to do something first. Pure."""
    is_open = bool(volume.users) and not references
    return is_open and (failure is None or isinstance(failure, TEMPORARY))
