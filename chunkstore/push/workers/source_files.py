"""The files of a directory that is pushed: opened safely, and known to be read at one moment."""

from __future__ import annotations

import errno
import os
import stat

import msgspec

from lodefs.chunkstore.errors import Denied, LodefsError, NotFound, SourceChanged, Unavailable
from lodefs.chunkstore.system.safe_open import open_below


class SourceFile(msgspec.Struct, frozen=True, gc=False):
    """A regular file that the scan found.

    ``path`` is relative to the root directory, in any bytes; ``size_bytes`` is what the scan saw;
    ``token`` is the caller's number.
    """

    path: bytes
    size_bytes: int
    token: int


class FileStat(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Identifies one state of a file."""

    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int


_OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK  # a FIFO in the file's place must not hang the push
_REPLACED = frozenset((errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EISDIR))
_GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ESTALE))
_DENIED = frozenset((errno.EACCES, errno.EPERM))


class Source:
    """A root directory, open. Paths are resolved below it; the last part is never followed.

    Raises: NotFound or Denied if ``root`` cannot be opened.
    """

    def __init__(self, root: bytes) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            self._root_fd = os.open(root, flags)
        except OSError as error:
            raise source_error(error, root) from error
        self._noatime = os.O_NOATIME

    def open(self, path: bytes) -> int:
        """A descriptor of the file at ``path``. Raises: OSError if it cannot be opened."""
        try:
            return open_below(self._root_fd, path, _OPEN_FLAGS | self._noatime)
        except PermissionError:
            if not self._noatime:
                raise
        fd = open_below(self._root_fd, path, _OPEN_FLAGS)
        self._noatime = 0  # only a file's owner may ask for it, so stop asking
        return fd

    def close(self) -> None:
        os.close(self._root_fd)


def stat_of(fd: int) -> FileStat:
    """The state of an open file. Raises: OSError(ENODEV) if it is not a regular file."""
    seen = os.fstat(fd)
    if not stat.S_ISREG(seen.st_mode):
        raise OSError(errno.ENODEV, "not a regular file")
    times_ns = signed(seen.st_mtime_ns), signed(seen.st_ctime_ns)
    return FileStat(seen.st_size, *times_ns, signed(seen.st_ino))


def signed(number: int) -> int:
    """The low 64 bits of an inode number, or of a time in ns (after the year 2262 it has more than
    63), as a signed number: all that comparing them takes."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def read_full(fd: int, buffer: memoryview, offset: int, enough: int) -> int:
    """Bytes read from ``offset`` on: at least ``enough`` of them, unless the file ends before.

    A buffer of one byte more than ``enough`` shows whether the file ends there, in one call.
    """
    done = os.preadv(fd, [buffer], offset)
    while done < enough:
        got = os.preadv(fd, [buffer[done:]], offset + done)
        if got == 0:
            break
        done += got
    return done


def source_error(error: OSError, path: bytes) -> LodefsError:
    """What an OSError met at ``path`` means: NotFound, Denied, SourceChanged or Unavailable."""
    name = show_path(path)
    if error.errno in _GONE:
        return NotFound(f"{name}: {error.strerror}")
    if error.errno in _DENIED:
        return Denied(f"{name} cannot be read: {error.strerror}")
    if error.errno in _REPLACED:
        return SourceChanged(f"{name} is no longer a regular file")
    return Unavailable(f"{name} cannot be read: {error.strerror}")


def show_path(path: bytes) -> str:
    """A path for a message."""
    return path.decode("utf-8", "backslashreplace")
