"""Files of figures beside a proxy's socket: programs of its node count in them for it to read.

Who counts shares a lock on its file (flock(2), which ends with the last of its processes); a file
without that lock is left over. Readers use pread(2): a file that somebody cuts does them no harm.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

DIRECTORY = "figures"
FILES_MAX = 1000  # of a kind, that are read
_MODE = 0o644
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FigureFile(NamedTuple):
    """An open file of figures, and which user's it is."""

    fd: int
    uid: int


def directory_of(socket: str | os.PathLike[str]) -> Path:
    """Where programs that use the proxy at a socket have their files."""
    return Path(socket).parent / DIRECTORY


def create(directory: Path, ending: str, head: bytes, size_bytes: int) -> int:
    """A new file, which has its name only when it is locked. Its space is taken: no write to it
    finds the disk full. Returns its descriptor. Raises: OSError."""
    name = f"{os.getpid()}-{os.urandom(4).hex()}"
    hidden, path = directory / f".{name}", directory / f"{name}{ending}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(hidden, flags, _MODE)
    try:
        os.fchmod(fd, _MODE)
        os.posix_fallocate(fd, 0, size_bytes)
        os.pwrite(fd, head, 0)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.rename(hidden, path)
    except OSError:
        os.close(fd)
        with suppress(OSError):
            hidden.unlink()
        raise
    return fd


def living(directory: Path, ending: str, *, sweep: bool) -> Iterator[FigureFile]:
    """The files with an ending in which somebody counts, the first FILES_MAX by name, as far as
    they can be opened; each is open until the next. ``sweep``: others are removed, where that is
    allowed."""
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(ending))
    except OSError:
        return
    for name in names[:FILES_MAX]:
        with suppress(OSError):
            fd = os.open(directory / name, _FLAGS)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    continue
                if is_held(fd):
                    yield FigureFile(fd, status.st_uid)
                elif sweep:
                    (directory / name).unlink()
            finally:
                os.close(fd)


def is_held(fd: int) -> bool:
    """Whether anybody lives who shares the lock on an open file."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
