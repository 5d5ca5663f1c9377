"""What a mount is of, fixed for its life, and what its process says when it is ready."""

from __future__ import annotations

import msgspec

from lodefs.chunkstore.nodeapi.wire import Failure, Node, Snapshot
from lodefs.mount.options import MountOptions


class Job(msgspec.Struct, frozen=True, tag="mount"):
    """A mount whose revision and path are resolved: it can never be of anything else."""

    options: MountOptions
    snapshot: Snapshot
    root: Node


class TakeOver(msgspec.Struct, frozen=True, tag="take over"):
    """A mount that has processes already: go on for its supervisor.

    ``socket`` and ``inode``: where they answer. ``log_path`` "": as before.
    """

    socket: str
    inode: int
    log_path: str = ""


class Report(msgspec.Struct, frozen=True):
    """What the daemon tells whom started it: ``failure`` is None when the mount can be read.

    ``repo``, ``commit`` and ``path`` say what was taken over; a new mount's starter knows it.
    """

    pid: int
    failure: Failure | None = None
    repo: str = ""
    commit: str = ""
    path: bytes = b""
