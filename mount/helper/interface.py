"""NodeMounts: what volumes need of their node, without Docker: resolving, mounting, looking."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import msgspec

from lodefs.mount.shm.traffic_counters import Traffic


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What a volume is of and how it is shown: all that its options say, but for the revision.

    ``store`` "": the node's own. ``token_file`` and ``token_env`` name where a token is; the
    token itself is read each time it is needed, and kept nowhere. ``uid``, ``gid``, ``mode``
    None: as of any mount; ``mode`` is of directories and programs, other files get it without
    its executable bits.
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
    """The commit that a revision is now. ``files`` and ``size_bytes`` are of the whole commit."""

    commit: str
    files: int
    size_bytes: int


class MountStatus(msgspec.Struct, frozen=True):
    """A lodefs mount that is there. ``alive``: its root can be read, or at least somebody answers
    for it; not ``supervised``: workers have lost their supervisor; not ``ready``: it may be half
    made, and nobody was told that it is there."""

    place: str
    repo: str
    commit: str
    path: bytes
    alive: bool
    supervised: bool
    ready: bool = True


class NodeMounts(Protocol):
    """Mounts of this node.

    Every method returns or raises one of errors.py's classes within ``timeout_s`` (a little more
    at most), and may be called by any thread. A call that was late has no effect afterwards that
    another call would not undo: a mount that nobody waits for any more is taken away.
    """

    def resolve(self, source: Source, rev: str, timeout_s: float) -> ResolvedCommit:
        """The commit that ``rev`` is now; the path must be a directory there.

        NotFound, Denied (token), InvalidInput (path, token reference), Unavailable.
        """
        ...

    def mount(self, source: Source, commit: str, place: str, timeout_s: float) -> None:
        """Mount a commit on the empty directory ``place``, readable when this returns.

        A dead mount on ``place`` is taken away first. InUse where a living one is; InvalidInput
        where ``place`` is no empty directory, or a symlink; as ``resolve`` otherwise.
        """
        ...

    def unmount(self, place: str, timeout_s: float, *, abort: bool = False) -> None:
        """Take what is mounted there away, alive, dead or stuck; fine where nothing is. ``abort``:
        nothing is answered any more, whoever holds it."""
        ...

    def list_mounts(
        self, timeout_s: float, is_wanted: Callable[[str], bool] = lambda _place: True
    ) -> list[MountStatus]:
        """All lodefs mounts that this process sees, on places that are wanted. Others are not
        looked at: one that a user has made may never answer."""
        ...

    def look(self, place: str, timeout_s: float) -> MountStatus | None:
        """The lodefs mount on ``place``; None where there is none."""
        ...

    def revive(self, place: str, timeout_s: float) -> None:
        """Start a supervisor for a mount that has lost its own, or another in the place of its
        own. Readers notice nothing."""
        ...

    def renew(self, source: Source, place: str, timeout_s: float) -> None:
        """Have the mount on ``place`` use the token that ``source`` refers to from now on. Readers
        notice nothing. Unavailable where the kernel cannot do that (before Linux 6.9)."""
        ...

    def traffic(self, place: str, timeout_s: float) -> Traffic | None:
        """What was read through a mount since it was made; None where that is not counted.
        NotFound where no mount is."""
        ...

    def showing(self, places: Collection[str]) -> Mapping[str, frozenset[int]]:
        """In whose mount namespaces, other than this process's, the mounts on ``places`` (writable
        ones, too) are, at places of their own; those without any are left out. Unavailable where
        that cannot be seen (a process namespace of our own)."""
        ...

    def pin(self, source: Source, commit: str, pin_s: int, timeout_s: float) -> None:
        """Bring the volume's data into the node's cache and keep it there for ``pin_s`` seconds;
        returns when the node has begun. Again: the time starts anew."""
        ...

    def unpin(self, source: Source, commit: str, timeout_s: float) -> None:
        """Let its data be evicted as all others, and that of volumes' pins of directories below it;
        what others than volumes pinned stays. Fine where nothing is pinned."""
        ...


__all__ = ["MountStatus", "NodeMounts", "ResolvedCommit", "Source", "Traffic"]
