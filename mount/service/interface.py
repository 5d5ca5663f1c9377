"""MountService: one mount for each snapshot of a node, shared by all users who ask for it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from lodefs.mount.node.interface import ResolvedCommit, Source


class User(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who holds a mount: a volume at one of the places where it is shown. ``uid``: whose job it is,
    where that is known."""

    volume: str
    target: str
    uid: int | None = None

    @property
    def is_attached(self) -> bool:
        """Whether it is shown nowhere here, but in mount namespaces of ``uid``."""
        return not self.target and self.uid is not None


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a volume asks for. ``source`` names no token: that comes with each request, and is kept
    in no state. ``rev``: a branch, a tag or a commit. ``pin_s``: keep its data in the node's cache
    for so long from now on; 0: while it is used; None: do not."""

    source: Source
    rev: str
    pin_s: int | None = None


class Held(msgspec.Struct, frozen=True):
    """A mount that can be read at ``place``, and what it is of. ``is_new``: the user had none
    before this call."""

    place: str
    commit: str
    files: int
    size_bytes: int
    is_new: bool = False


class Health(msgspec.Struct, frozen=True):
    """A volume's mount. ``problem`` "": none."""

    held: Held
    problem: str = ""


class MountService(Protocol):
    """The mounts of this node.

    Every method returns or raises one of errors.py's classes within ``timeout_s`` (a little more at
    most), may be called by any thread, and may be repeated: a caller that heard no answer asks
    again.
    """

    def resolve(self, wanted: Wanted, token: str | None, timeout_s: float) -> ResolvedCommit:
        """What would be mounted now. NotFound, Denied (a token, or a store that is not allowed),
        InvalidInput, Unavailable."""
        ...

    def acquire(self, user: User, wanted: Wanted, token: str | None, timeout_s: float) -> Held:
        """Have a mount for a user, until ``release``. It is written down when this returns.

        A user that has one already keeps its commit, wherever its branch is by now; another
        ``token`` takes the place of the mount's, and readers notice nothing.
        AlreadyExists where the volume is held with other wishes; otherwise as ``resolve``.
        """
        ...

    def release(self, user: User, timeout_s: float) -> None:
        """A user has no use for its mount any more; fine where it has none. The mount goes when it
        has been without users for a while. Waits for no mount, proxy or store."""
        ...

    def health(self, volume: str, timeout_s: float) -> Health:
        """How the mount of a volume is. NotFound where nobody holds one."""
        ...

    def ping(self, timeout_s: float) -> None:
        """Whether the service answers. Unavailable."""
        ...


__all__ = ["Health", "Held", "MountService", "ResolvedCommit", "Source", "User", "Wanted"]
