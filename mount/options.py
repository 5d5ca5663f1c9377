"""The options of a mount: where, of what, through which proxy, and its limits."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import DEFAULT_BRANCH
from lodefs.mount.kernel.features import Feature

READ_TIMEOUT_S = 30.0
READ_AHEAD_KIB = 4096
THREADS = 16
MODE_MAX = 0o555  # nobody may write
MODE_MAX_BELOW = 0o775  # below an overlay, in which owner and group may write
WORKERS_MIN, WORKERS_MAX = 2, 4

Wanted = Literal["auto", "on", "off"]


class MountOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one mount.

    ``proxy``: ``unix:/PATH`` or ``http://HOST:PORT``; ``token`` is only for TCP. ``path``: the
    directory of the snapshot to mount, b"" for its root. ``read_timeout_s``: after this, a request
    of the kernel fails with EIO. ``threads``: how many slow requests one worker serves at once.
    ``passthrough``: whether the kernel reads complete files of the cache by itself, if it can;
    "auto": unless most files are small. ``log_path`` "": syslog. ``uid``, ``gid``: the owner of all
    files. ``mode``: of directories and programs, up to 0o555, or 0o775 below an overlay; other
    files get it without its executable bits; None: 0o555. ``without``: kernel features that are
    not used.
    ``leaves_namespace``: the mount's processes leave the mount namespace (mount.kernel.namespaces),
    and the mount ends with it. ``ends_with``: the id of a process with which the mount ends; 0:
    none.
    """

    repo: str
    mountpoint: str
    proxy: str
    rev: str = DEFAULT_BRANCH
    path: bytes = b""
    token: str | None = None
    uid: int = msgspec.field(default_factory=os.getuid)
    gid: int = msgspec.field(default_factory=os.getgid)
    mode: int | None = None
    read_timeout_s: float = READ_TIMEOUT_S
    hang_margin_s: float = 10.0  # a worker busy for this much longer than read_timeout_s hangs
    ready_margin_s: float = 30.0  # for mounting, in addition to two read timeouts
    workers: int = 0  # 0: the number of cores, but 2 to 4
    threads: int = THREADS
    read_ahead_kib: int = READ_AHEAD_KIB
    allow_other: bool = True
    passthrough: Wanted = "auto"
    log_path: str = ""
    without: frozenset[Feature] = frozenset()
    leaves_namespace: bool = False
    ends_with: int = 0

    def __repr__(self) -> str:
        """Leaves out the token."""
        return f"MountOptions({self.repo}@{self.rev} on {self.mountpoint} through {self.proxy})"

    def worker_count(self) -> int:
        """Returns the number of worker processes to start."""
        if self.workers:
            return self.workers
        return min(max(len(os.sched_getaffinity(0)), WORKERS_MIN), WORKERS_MAX)


def check_mode(mode: int | None, most: int = MODE_MAX) -> None:
    """Raises InvalidInput for permissions that a read-only mount cannot have."""
    if mode is not None and (mode < 0 or mode & ~most):
        raise InvalidInput(f"mode {mode:04o}: a mount has permissions up to {most:04o}")
