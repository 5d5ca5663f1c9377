"""Leases: a proxy that exits when idle sees by them that a mount lives.

A lease is a shared lock (flock(2)) on a file beside the proxy's socket. The kernel drops it with
the last process of the mount, however that ends, and keeps it for a stopped process. A proxy that
wants to exit must take the exclusive lock, and has it until its process is gone. A mount that is
being made either comes first, and the proxy stays, or waits for the proxy's end and starts another.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from lodefs.chunkstore.errors import Denied, NotFound, Unavailable

SUFFIX = ".lease"
POLL_S = 0.02


def path_of(socket_path: Path) -> Path:
    """Returns the file beside a proxy's socket."""
    return socket_path.with_name(socket_path.name + SUFFIX)


def offer(socket_path: Path) -> None:
    """Creates the file, for users that may open the socket. Raises: OSError."""
    fd = os.open(path_of(socket_path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        allowed = socket_path.stat()
        # Without access there is no lease, but the proxy still sees requests
        with suppress(PermissionError):
            os.fchown(fd, -1, allowed.st_gid)
            os.fchmod(fd, allowed.st_mode & 0o666)
    finally:
        os.close(fd)


def take(socket_path: Path, timeout_s: float = 0.0, *, create: bool = False) -> int:
    """Takes a lease. Returns a descriptor, which holds it until it and its copies in children are
    closed.

    ``create`` makes the file before the proxy runs. Raises: NotFound if the proxy offers no leases;
    Denied; Unavailable if the proxy takes longer than ``timeout_s`` to exit.
    """
    flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
    path = path_of(socket_path)
    try:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise NotFound(f"{path}: this proxy offers no lease") from None
    except OSError as error:
        raise Denied(f"{path}: {error.strerror}") from error
    deadline_s = time.monotonic() + timeout_s
    while not _shared(fd):
        if time.monotonic() >= deadline_s:
            os.close(fd)
            raise Unavailable(f"the proxy at {socket_path} is ending, since it was unused")
        time.sleep(POLL_S)
    return fd


def revoke(socket_path: Path) -> int | None:
    """Takes the exclusive lock. Returns a descriptor; None if a lease is held, or may be."""
    try:
        fd = os.open(path_of(socket_path), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # a lease is held, or the file system has no locks
        os.close(fd)
        return None
    return fd


def _shared(fd: int) -> bool:
    with suppress(OSError):  # without locks, nobody can hold the exclusive one
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
