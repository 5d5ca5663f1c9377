"""Files with counters beside a proxy's socket: programs of its node write them, and it reads them.

A program that counts holds a shared lock on its file (flock(2), which ends with the last of its
processes); a file without that lock is left over. Readers use pread(2), so a truncated file does no
harm.
"""

from __future__ import annotations

import fcntl
import os
import random
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lodefs.chunkstore.system import safe_open

DIRECTORY = "figures"
PRIVATE_DIRECTORY = "figures-of-root"
FILES_MAX = 1000  # files of a kind and a user that are read
NAMES_MAX = 5_000  # names of a kind that are examined, in a tenth of a second
_MODE = 0o644


class FigureFile(NamedTuple):
    """An open file, the user who owns it, and its name, which no other file ever has."""

    fd: int
    uid: int
    name: str


def directory_of(socket: str | os.PathLike[str]) -> Path:
    """Returns the directory where all who use the proxy at a socket may have files."""
    return Path(socket).parent / DIRECTORY


def private_directory_of(socket: str | os.PathLike[str]) -> Path:
    """Returns the directory where only root has files, and only root and the proxy's user may look.
    Nobody else can add names there, or hold the lock of a file whose program has ended."""
    return Path(socket).parent / PRIVATE_DIRECTORY


def directories_of(socket: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Returns both directories, for readers."""
    return private_directory_of(socket), directory_of(socket)


def directories_for(socket: str | os.PathLike[str], uid: int) -> tuple[Path, ...]:
    """Returns the directories where a program of a user may have its file: it uses the first one
    that works. Root of a user namespace cannot use root's."""
    return directories_of(socket) if uid == 0 else (directory_of(socket),)


def create_in_first(
    directories: Iterable[Path], ending: str, head: bytes, size_bytes: int
) -> int | None:
    """Does what ``create`` does in the first directory where that works; returns None if none
    does."""
    for directory in directories:
        with suppress(OSError):
            return create(directory, ending, head, size_bytes)
    return None


def create(directory: Path, ending: str, head: bytes, size_bytes: int) -> int:
    """Makes a new file, which gets its name only when it is locked. It allocates the space, so that
    no write finds the disk full. Returns its descriptor. Raises: OSError."""
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
    """Yields the files with an ending in which a program counts, by name, the first FILES_MAX of
    each user, as far as they can be opened. Each is open until the next one. ``sweep`` removes the
    others, if that is allowed.

    Of more than NAMES_MAX names it examines that many at random, so that no user's names come
    before those of others. Then ``sweep`` removes all beyond each user's first ones.
    """
    try:
        place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    with safe_open.closing(place):
        yield from _living(place, ending, sweep=sweep)


def _living(place: int, ending: str, *, sweep: bool) -> Iterator[FigureFile]:
    try:
        found = os.listdir(f"/proc/self/fd/{place}")
    except OSError:
        return
    names = [name for name in found if name.endswith(ending)]
    is_crowded = len(names) > NAMES_MAX
    of_user: Counter[int] = Counter()
    for name in sorted(random.sample(names, NAMES_MAX) if is_crowded else names):
        with suppress(OSError), safe_open.closing(_path(place, name)) as path:
            status = os.fstat(path)
            of_user[status.st_uid] += 1
            if of_user[status.st_uid] > FILES_MAX or not stat.S_ISREG(status.st_mode):
                if is_crowded and sweep:
                    os.unlink(name, dir_fd=place)
                continue
            with safe_open.closing(_opened(path)) as fd:
                if is_held(fd):
                    yield FigureFile(fd, status.st_uid, name)
                elif sweep:
                    os.unlink(name, dir_fd=place)
                    of_user[status.st_uid] -= 1


def _path(place: int, name: str) -> int:
    """Opens a file of the directory ``place`` with O_PATH first, until its kind is known. In a file
    system that a user mounted over it, even fstat(2) may wait forever. Raises: OSError."""
    return safe_open.open_in_mount(place, name, os.O_PATH | os.O_NOFOLLOW)


def _opened(path: int) -> int:
    return os.open(f"/proc/self/fd/{path}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def is_held(fd: int) -> bool:
    """Whether a living process shares the lock on an open file."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
