"""MountService: one mount for each snapshot of a node, shared by all users who ask for it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from lodefs.mount.helper.interface import ResolvedCommit, Source, Traffic

DOCKER = "docker"  # a driver
WRITABLE = "writable"  # the driver of writable mounts: a target is where the overlay is


class User(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who holds a mount: a volume at one of the places where it is shown. ``uid``: whose job it is,
    where that is known. ``driver``: whose volume it is: "" of Kubernetes, or a job; DOCKER: the
    target is a mount ID of dockerd."""

    volume: str
    target: str
    uid: int | None = None
    driver: str = ""

    @property
    def is_attached(self) -> bool:
        """Whether it is shown nowhere here, but in mount namespaces of ``uid``."""
        return not self.target and self.uid is not None

    @property
    def keeps_data(self) -> bool:
        """Whether it holds no mount, but its data in the node's cache."""
        return not self.target and self.uid is None

    @property
    def is_counted(self) -> bool:
        """Whether it holds a mount as often as it was acquired: dockerd mounts under one ID more
        than once at a time (a running container, and `docker cp` into it). dockerd forgets to
        unmount, too (one that is killed with its containers): so such a user lapses, when it is
        old enough for its container to show the mount, and no mount namespace does."""
        return self.driver == DOCKER and not self.keeps_data

    @property
    def wishes_of(self) -> tuple[str, str, bool]:
        """The same for all users that must ask for the same."""
        return self.driver, self.volume, self.keeps_data


class MountClaim(msgspec.Struct, frozen=True, kw_only=True):
    """What a volume asks for. ``source`` names no token: that comes with each request, and is kept
    in no state. ``rev``: a branch, a tag or a commit. ``pin_s``: keep its data in the node's cache
    for so long from now on; 0: while it is used; None: do not. ``any_store``: whoever asks may name
    every store, as root may."""

    source: Source
    rev: str
    pin_s: int | None = None
    any_store: bool | msgspec.UnsetType = msgspec.UNSET


class MountHandle(msgspec.Struct, frozen=True):
    """A mount that can be read at ``place``, and what it is of. ``is_new``: the user had none
    before this call."""

    place: str
    commit: str
    files: int
    size_bytes: int
    is_new: bool = False


class Health(msgspec.Struct, frozen=True):
    """A volume's mount. ``problem`` "": none."""

    held: MountHandle
    problem: str = ""


class Holding(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a volume holds, as it was seen last. ``references``: how often it holds the mount at
    ``place``, which is "" without any; ``is_dead``: that is to be mounted again. ``kept_commit``:
    whose data it keeps; "": none. ``traffic`` None: not asked for, or not known."""

    volume: str
    place: str = ""
    references: int = 0
    is_dead: bool = False
    kept_commit: str = ""
    pinned_until_s: float = 0.0
    pin_problem: str = ""
    traffic: Traffic | None = None


class MountService(Protocol):
    """The mounts of this node.

    Every method returns or raises one of errors.py's classes within ``timeout_s`` (a little more at
    most), may be called by any thread, and may be repeated: a caller that heard no answer asks
    again.
    """

    def resolve(self, wanted: MountClaim, token: str | None, timeout_s: float) -> ResolvedCommit:
        """What would be mounted now. NotFound, Denied (a token, or a store that is not allowed),
        InvalidInput, Unavailable."""
        ...

    def acquire(
        self, user: User, wanted: MountClaim, token: str | None, timeout_s: float
    ) -> MountHandle:
        """Have a mount for a user, until ``release``; or its data in the cache alone, where the
        user keeps that. It is written down when this returns.

        A user that has one already keeps its commit, wherever its branch is by now; another
        ``token`` takes the place of the mount's, and readers notice nothing.
        AlreadyExists where the volume is held with other wishes; otherwise as ``resolve``.
        """
        ...

    def adopt(
        self,
        user: User,
        wanted: MountClaim,
        token: str | None,
        place: str,
        found: ResolvedCommit,
        timeout_s: float,
    ) -> None:
        """The same with the mount on ``place``, which was made for the user's volume before this
        service had it. NotFound where no mount of ``found`` is there, or a dead one, which is taken
        away."""
        ...

    def release(self, user: User, timeout_s: float) -> None:
        """A user has no use for its mount any more; fine where it has none. One that is counted
        holds it once less. The mount goes when it has been without users for a while. Waits for no
        mount, proxy or store."""
        ...

    def forget(self, driver: str, volume: str, older_s: float, timeout_s: float) -> int:
        """Release those counted users of a volume that are older, and hold nothing as far as the
        kernel shows; how many mounts are left."""
        ...

    def holdings(self, driver: str, volume: str, timeout_s: float) -> list[Holding]:
        """What the volumes of a driver hold, by name; ``volume``: of this one only, with what was
        read through its mount."""
        ...

    def health(self, volume: str, timeout_s: float) -> Health:
        """How the mount of a volume is. NotFound where nobody holds one."""
        ...

    def ping(self, timeout_s: float) -> None:
        """Whether the service answers. Unavailable."""
        ...


__all__ = [
    "DOCKER",
    "WRITABLE",
    "Health",
    "Holding",
    "MountClaim",
    "MountHandle",
    "MountService",
    "ResolvedCommit",
    "Source",
    "User",
]
