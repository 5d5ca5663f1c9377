"""Files of a state directory: each is whole, or as it was before, whatever ends in between.

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
    """Make a directory, its owner's alone. InvalidInput where a symlink or a file is; OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_symlink() or not path.is_dir():
        raise InvalidInput(f"{path} must be a directory, and no symlink")
    path.chmod(0o700)


def lock(path: Path, whose: str) -> int:
    """Have a directory for this process alone, until the descriptor is closed; processes that it
    forks do not hold it. InUse names ``whose`` it is; OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(fd)
        raise InUse(
            f"{path.parent} is the state of {whose}: end that, or name another directory"
        ) from None
    return fd


def remove_unfinished(folder: Path, name: str = f"*{UNFINISHED}") -> None:
    """Remove what processes that were killed have left. What is no file is not ours, and stays:
    whoever writes there says so. OSError."""
    for path in folder.glob(name):
        with suppress(IsADirectoryError):
            path.unlink()


def write_whole(path: Path, data: bytes) -> None:
    """Put new content in the place of the old: on disk when this returns.

    NoSpace, Denied, Unavailable; the old content stays then.
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
    """A file's content, or the beginning of it. Corrupt where it is no regular file; OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Corrupt("it is no file")
        return file.read(size_bytes_max)


def sync(folder: Path) -> None:
    """Names that were changed in a directory are on disk. OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def translated(error: OSError, path: Path) -> LodefsError:
    """One of our errors, which names the path."""
    kind = kind_of(error)
    hint = ": make room there, and try again" if kind is NoSpace else ""
    return kind(f"{path}: {error.strerror or error}{hint}")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
