"""Files of a state directory: each is complete, or as it was before, whatever process ends.

A directory belongs to its owner alone, and to one process at a time.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from lodefs.chunkstore.errors import Corrupt, InUse, InvalidInput, LodefsError, NoSpace
from lodefs.chunkstore.system.os_errors import kind_of

UNFINISHED = ".new"


def make_private(path: Path) -> None:
    """Creates a directory for its owner alone. Raises: InvalidInput for a symlink or file;
    OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_symlink() or not path.is_dir():
        raise InvalidInput(f"{path} must be a directory and not a symlink")
    path.chmod(0o700)


def lock(path: Path, whose: str) -> int:
    """Reserves a directory for this process until the descriptor is closed; forked processes do not
    hold the lock. Raises: InUse, which names ``whose`` it is; OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(fd)
        raise InUse(
            f"{path.parent} is the state of {whose}: end that process, or name another directory"
        ) from None
    return fd


def remove_unfinished(folder: Path, name: str = f"*{UNFINISHED}") -> None:
    """Removes what killed processes have left. A directory is not ours, and stays: a later write
    reports it. Raises: OSError."""
    for path in folder.glob(name):
        with suppress(IsADirectoryError):
            path.unlink()


def write_whole(path: Path, data: bytes) -> None:
    """Replaces the old content by the new; it is on disk when this returns.

    Raises: NoSpace, Denied, Unavailable; the old content then stays.
    """
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        with open(unfinished, "wb", opener=_private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
        sync(path.parent)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise translated(error, path) from error


def read_whole(path: Path, size_bytes_max: int) -> bytes:
    """Returns a file's content, or its beginning. Raises: Corrupt if it is not a regular file;
    OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Corrupt("it is not a regular file")
        return file.read(size_bytes_max)


def sync(folder: Path) -> None:
    """Makes sure that changed names in a directory are on disk. Raises: OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def translated(error: OSError, path: Path) -> LodefsError:
    """Returns the error of lodefs for an OSError, which names the path."""
    kind = kind_of(error)
    hint = ": make room there, and try again" if kind is NoSpace else ""
    return kind(f"{path}: {error.strerror or error}{hint}")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
