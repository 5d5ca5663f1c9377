"""The description of a mount, which is fixed for its life, and the messages of its startup."""

from __future__ import annotations

import msgspec

from lodefs.chunkstore.protocol.wire import Entry, Failure, Snapshot
from lodefs.mount.options import MountOptions


class Job(msgspec.Struct, frozen=True, tag="mount"):
    """A mount with a resolved revision and path. It can never show anything else."""

    options: MountOptions
    snapshot: Snapshot
    root: Entry


class MountRequest(msgspec.Struct, frozen=True, tag="mount"):
    """Asks to mount a snapshot. The requester acknowledges the reply (mount.process.startup)."""

    options: MountOptions


class TakeOver(msgspec.Struct, frozen=True, tag="take over"):
    """Asks for a new supervisor. ``log_path`` "" and ``token`` None mean as before."""

    mountpoint: str
    log_path: str = ""
    token: str | None = None

    def __repr__(self) -> str:
        """Leaves out the token."""
        return f"TakeOver({self.mountpoint})"


class Reply(msgspec.Struct, frozen=True):
    """The answer to a request; ``failure`` is None if it succeeded.

    ``pid``, ``repo``, ``commit`` and ``path`` describe a mount that can be read. ``is_dead``
    answers mount.helper.helper_requests.Look.
    """

    pid: int = 0
    failure: Failure | None = None
    repo: str = ""
    commit: str = ""
    path: bytes = b""
    is_dead: bool = False
