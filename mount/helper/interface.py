"""NodeMounts: what volumes need of their node, without Docker: resolve, mount, look."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import msgspec

from lodefs.mount.shm.traffic_counters import Traffic


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a volume, except the revision: they say which data it shows, and how.

    ``store`` "": the node's own. ``token_file`` and ``token_env`` name the place of a token; the
    token itself is read whenever it is needed, and never kept. ``uid``, ``gid``, ``mode`` None: the
    defaults of mounts; ``mode`` is for directories and programs, and other files get it without its
    executable bits.
    """

    repo: str
    store: str = ""
    path: bytes = b""
    token_file: str = ""
    token_env: str = ""
    uid: int | None = None
    gid: int | None = None
    mode: int | None = None


class ResolvedCommit(msgspec.Struct, frozen=True):
    """The commit that a revision is now. ``files`` and ``size_bytes``: of the whole commit."""

    commit: str
    files: int
    size_bytes: int


class MountStatus(msgspec.Struct, frozen=True):
    """An existing lodefs mount. ``alive``: its root can be read, or at least some process answers;
    not ``supervised``: workers have lost their supervisor; not ``ready``: it may be incomplete, and
    no requester knows of it."""

    place: str
    repo: str
    commit: str
    path: bytes
    alive: bool
    supervised: bool
    ready: bool = True


class NodeMounts(Protocol):
    """Mounts of this node.

    Every method returns or raises one of errors.py's classes within ``timeout_s`` (a little more at
    most), and may be called by any thread. A call that was late has no later effect that another
    call would not undo: a mount that nobody waits for any more is removed.
    """

    def resolve(self, source: Source, rev: str, timeout_s: float) -> ResolvedCommit:
        """Returns the commit that ``rev`` is now; the path must be a directory in it.

        Raises: NotFound, Denied (token), InvalidInput (path, token reference), Unavailable.
        """
        ...

    def mount(self, source: Source, commit: str, place: str, timeout_s: float) -> None:
        """Mounts a commit on the empty directory ``place``; it can be read when this returns.

        First removes a dead mount on ``place``. Raises: InUse for a living one; InvalidInput if
        ``place`` is not an empty directory, or is a symlink; otherwise what ``resolve`` raises.
        """
        ...

    def unmount(self, place: str, timeout_s: float, *, abort: bool = False) -> None:
        """Removes the mount there, alive, dead or stuck, if there is one. ``abort``: nothing is
        answered any more, whatever holds it."""
        ...

    def list_mounts(
        self, timeout_s: float, is_wanted: Callable[[str], bool] = lambda _place: True
    ) -> list[MountStatus]:
        """Returns all lodefs mounts that this process sees at wanted places. Others are not
        touched: one that a user has made may never answer."""
        ...

    def look(self, place: str, timeout_s: float) -> MountStatus | None:
        """Returns the lodefs mount on ``place``; None without one."""
        ...

    def revive(self, place: str, timeout_s: float) -> None:
        """Starts a supervisor for a mount that has lost its own, or one that replaces its own.
        Readers notice nothing."""
        ...

    def renew(self, source: Source, place: str, timeout_s: float) -> None:
        """Makes the mount on ``place`` use the token that ``source`` refers to from now on. Readers
        notice nothing. Raises: Unavailable if the kernel cannot do that (before Linux 6.9)."""
        ...

    def traffic(self, place: str, timeout_s: float) -> Traffic | None:
        """Returns the counts of reads through a mount since it was made; None if there are no
        counts. Raises: NotFound without a mount."""
        ...

    def showing(self, places: Collection[str]) -> Mapping[str, frozenset[int]]:
        """Returns the users whose mount namespaces, other than this process's, show the mounts on
        ``places`` (writable ones, too) at places of their own; mounts without any are left out.
        Raises: Unavailable if that cannot be seen (in a process namespace of our own)."""
        ...

    def pin(self, source: Source, commit: str, pin_s: int, timeout_s: float) -> None:
        """Fetches the volume's data into the node's cache, and keeps it there for ``pin_s``
        seconds. Returns when the node has begun. A repetition starts the time again."""
        ...

    def unpin(self, source: Source, commit: str, timeout_s: float) -> None:
        """Lets its data be evicted like all other data, and that of volumes' pins of directories
        below it. Pins of others stay. It is no error if nothing is pinned."""
        ...


__all__ = ["MountStatus", "NodeMounts", "ResolvedCommit", "Source", "Traffic"]
