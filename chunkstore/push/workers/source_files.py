"""Opens the files of a source directory safely, and identifies the state in which they are read."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

import msgspec

from lodefs.chunkstore.errors import Denied, LodefsError, NotFound, SourceChanged, Unavailable
from lodefs.chunkstore.system.safe_open import open_below


class Stretch(NamedTuple):
    """The bytes of a large file, from ``begin`` to ``end``, in which the chunks begin that one
    reader of many stores (window_join.py)."""

    begin: int
    end: int


class SourceFile(msgspec.Struct, frozen=True, gc=False):
    """A regular file that the scan found.

    ``path`` is relative to the root directory and may have any bytes; ``size_bytes`` is what the
    scan saw; ``token`` is the caller's number. ``stretch`` is what is read if that is not all.
    """

    path: bytes
    size_bytes: int
    token: int
    stretch: Stretch | None = None

    @property
    def read_bytes(self) -> int:
        """The bytes that are to be read."""
        return self.size_bytes if self.stretch is None else self.stretch.end - self.stretch.begin


class FileStat(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Identifies one state of a file."""

    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class ReadCondition(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The ETag, as in its header, and the version ("": none) of an object's bytes."""

    etag: str
    version: str


_BLOCK_BYTES = 512  # the unit of st_blocks
_OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK  # a FIFO at the path must not block the push
_REPLACED = frozenset((errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EISDIR))
_GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ESTALE))
_DENIED = frozenset((errno.EACCES, errno.EPERM))


class Source:
    """An open root directory. Paths are resolved below it; the last part is never followed.

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
        """Opens the file at ``path``. Returns a descriptor. Raises: OSError."""
        try:
            return open_below(self._root_fd, path, _OPEN_FLAGS | self._noatime)
        except PermissionError:
            if not self._noatime:
                raise
        fd = open_below(self._root_fd, path, _OPEN_FLAGS)
        self._noatime = 0  # only the owner of a file may use it: stop trying
        return fd

    def close(self) -> None:
        os.close(self._root_fd)


def stat_of(fd: int) -> FileStat:
    """Returns the state of an open file. Raises: OSError(ENODEV) if it is not a regular file."""
    seen = os.fstat(fd)
    if not stat.S_ISREG(seen.st_mode):
        raise OSError(errno.ENODEV, "not a regular file")
    times_ns = signed(seen.st_mtime_ns), signed(seen.st_ctime_ns)
    return FileStat(seen.st_size, *times_ns, signed(seen.st_ino))


def signed(number: int) -> int:
    """Returns the low 64 bits as a signed number. Inode numbers, and times in ns after the year
    2262, can have more than 63 bits; the low 64 are enough to compare them."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def read_full(fd: int, buffer: memoryview, offset: int, enough: int) -> int:
    """Reads from ``offset`` on until there are ``enough`` bytes or the file ends. Returns their
    number.

    A buffer of one byte more than ``enough`` shows in one call whether the file ends there.
    """
    done = os.preadv(fd, [buffer], offset)
    while done < enough:
        got = os.preadv(fd, [buffer[done:]], offset + done)
        if got == 0:
            break
        done += got
    return done


def read_data(fd: int, buffer: memoryview, offset: int, enough: int) -> int:
    """Reads as ``read_full`` does, but no holes of a file that has fewer blocks than bytes: for
    each of their pages the kernel would put a page of zeros into memory."""
    seen = os.fstat(fd)
    if seen.st_blocks * _BLOCK_BYTES >= seen.st_size:
        return read_full(fd, buffer, offset, enough)
    at, end = offset, offset + enough
    while at < end:
        data = min(_sought(fd, at, os.SEEK_DATA, end), end)
        buffer[at - offset : data - offset] = bytes(data - at)
        hole = min(_sought(fd, data, os.SEEK_HOLE, end), end)
        got = read_full(fd, buffer[data - offset : hole - offset], data, hole - data)
        at = data + got
        if got < max(hole - data, 1):
            break
    return at - offset


def is_hole(fd: int, offset: int, size_bytes: int) -> bool:
    """Whether a part of a file is one hole, whose bytes are zeros."""
    seen = os.fstat(fd)
    if seen.st_blocks * _BLOCK_BYTES >= seen.st_size:
        return False
    return _sought(fd, offset, os.SEEK_DATA, offset + size_bytes) >= offset + size_bytes


def _sought(fd: int, offset: int, whence: int, end: int) -> int:
    """Returns where the next data, or the next hole, begins; ``end`` if there is none."""
    try:
        return os.lseek(fd, offset, whence)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return end


def source_error(error: OSError, path: bytes) -> LodefsError:
    """Maps an OSError at ``path`` to NotFound, Denied, SourceChanged or Unavailable."""
    name = show_path(path)
    if error.errno in _GONE:
        return NotFound(f"{name}: {error.strerror}")
    if error.errno in _DENIED:
        return Denied(f"{name} cannot be read: {error.strerror}")
    if error.errno in _REPLACED:
        return SourceChanged(f"{name} is no longer a regular file")
    return Unavailable(f"{name} cannot be read: {error.strerror}")


def show_path(path: bytes) -> str:
    """Returns a path as text for a message."""
    return path.decode("utf-8", "backslashreplace")
