"""MountService: one mount for each snapshot of a node, shared by all users who ask for it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from lodefs.mount.helper.interface import ResolvedCommit, Source, Traffic

DOCKER = "docker"  # a driver
WRITABLE = "writable"  # the driver of writable mounts; a target is the overlay's path
POD_CHANGES = "csi"  # the driver of pods that write to volumes


class User(msgspec.Struct, frozen=True, omit_defaults=True):
    """The holder of a mount: a volume at one of its targets. ``uid``: the user of its job, if that
    is known. ``driver``: "" for Kubernetes or a job; DOCKER: the target is a mount ID of
    dockerd; WRITABLE; POD_CHANGES."""

    volume: str
    target: str
    uid: int | None = None
    driver: str = ""

    @property
    def is_attached(self) -> bool:
        """Whether only mount namespaces of ``uid`` show it, and no path here."""
        return not self.target and self.uid is not None

    @property
    def keeps_data(self) -> bool:
        """Whether it holds no mount, but keeps its data in the node's cache."""
        return not self.target and self.uid is None

    @property
    def is_counted(self) -> bool:
        """Whether it holds a mount as often as it was acquired. dockerd mounts more than once under
        one ID (a running container, and `docker cp` into it), and a killed dockerd forgets to
        unmount. So such a user lapses when it is old enough for its container to show the mount,
        and no mount namespace shows it."""
        return self.driver == DOCKER and not self.keeps_data

    @property
    def wishes_of(self) -> tuple[str, str, bool]:
        """A key that is equal for all users that must ask for the same."""
        return self.driver, self.volume, self.keeps_data


class MountClaim(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a volume. ``source`` contains no token: each request brings it, and no state
    keeps it. ``rev``: a branch, a tag or a commit. ``pin_s``: keep its data in the node's cache for
    this long from now on; 0: while it is used; None: do not keep it. ``any_store``: the caller may
    name every store, like root."""

    source: Source
    rev: str
    pin_s: int | None = None
    any_store: bool | msgspec.UnsetType = msgspec.UNSET


class MountHandle(msgspec.Struct, frozen=True):
    """A mount that can be read at ``place``, and what it shows. ``is_new``: the user had none
    before this call."""

    place: str
    commit: str
    files: int
    size_bytes: int
    is_new: bool = False


class Health(msgspec.Struct, frozen=True):
    """The health of a volume's mount. ``problem`` "": it is well."""

    held: MountHandle
    problem: str = ""


class Holding(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a volume at the last look. ``references``: how often it holds the mount at
    ``place``, which is "" without one; ``is_dead``: the mount must be made again. ``kept_commit``:
    the commit whose data it keeps; "": none. ``traffic`` None: not asked for, or unknown."""

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
    most), may be called by any thread, and may be repeated: a caller that got no answer asks again.
    """

    def resolve(self, wanted: MountClaim, token: str | None, timeout_s: float) -> ResolvedCommit:
        """Returns the commit that would be mounted now. Raises: NotFound, Denied (a token, or a
        store that is not allowed), InvalidInput, Unavailable."""
        ...

    def acquire(
        self, user: User, wanted: MountClaim, token: str | None, timeout_s: float
    ) -> MountHandle:
        """Holds a mount for a user until ``release``; or only its data in the cache, if the user
        keeps that. It is recorded on disk when this returns.

        A user that already has a mount keeps its commit, wherever its branch is now. Another
        ``token`` replaces that of the mount, and readers notice nothing. Raises: AlreadyExists if
        the volume is held with other options; otherwise what ``resolve`` raises.
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
        """Acquires the existing mount on ``place``, which was made for the user's volume before
        this service had it. Raises: NotFound if no mount of ``found`` is there, or a dead one,
        which is removed."""
        ...

    def release(self, user: User, timeout_s: float) -> None:
        """Releases a user's mount, if it has one. A counted user holds it once less. The mount is
        removed after a time without users. Waits for no mount, proxy or store."""
        ...

    def forget(self, driver: str, volume: str, older_s: float, timeout_s: float) -> int:
        """Releases the counted users of a volume that are older, and hold nothing as far as the
        kernel shows. Returns how many mounts are left."""
        ...

    def holdings(self, driver: str, volume: str, timeout_s: float) -> list[Holding]:
        """Returns the state of a driver's volumes, by name. With ``volume`` it is only that one,
        with the counts of reads through its mount."""
        ...

    def health(self, volume: str, timeout_s: float) -> Health:
        """Returns the health of a volume's mount. Raises: NotFound if no user holds one."""
        ...

    def ping(self, timeout_s: float) -> None:
        """Checks that the service answers. Raises: Unavailable."""
        ...


__all__ = [
    "DOCKER",
    "POD_CHANGES",
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
