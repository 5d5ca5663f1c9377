"""Scans a source directory: one directory after the other, parents first, names sorted.

Symlinks are never followed. Nothing but regular files, directories and symlinks is kept.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from blake3 import blake3

from lodefs.chunkstore.errors import (
    Denied,
    InvalidInput,
    LodefsError,
    NotADirectory,
    NotFound,
    SourceChanged,
    Unavailable,
)
from lodefs.chunkstore.push.ignore_rules import FILE_NAME, SIZE_BYTES_MAX, IgnoreRules
from lodefs.chunkstore.push.workers.source_files import show_path, signed
from lodefs.chunkstore.system.safe_open import PATH_BYTES_MAX, open_below

FILE, EXECUTABLE, SYMLINK = 0, 1, 2  # what ``modes`` holds, one byte for each name

_GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE))
_DENIED = frozenset((errno.EACCES, errno.EPERM))
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OTHER_KINDS = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}
_FS_ENCODING = (sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())


class Skipped(NamedTuple):
    """Something in the source that is not in the commit, and why."""

    path: bytes
    reason: str  # names the path

    def __str__(self) -> str:
        return self.reason


Row = tuple[bytes, int, int, int, int, int]  # name, mode, size, mtime, inode, ctime
_NO_NUMBERS = array("q")


class Columns:
    """Files and symlinks of one directory, sorted by name: one column for each property.

    ``modes`` has one byte for each (FILE, EXECUTABLE, SYMLINK); the others are array("q").
    """

    __slots__ = ("ctimes_ns", "inodes", "modes", "mtimes_ns", "names", "sizes")

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        ordered = sorted(rows)
        if not ordered:  # of many directories
            self.names, self.modes = [], bytearray()
            self.sizes = self.mtimes_ns = self.inodes = self.ctimes_ns = _NO_NUMBERS
            return
        names, modes, *columns = zip(*ordered, strict=True)
        self.names = list(names)
        self.modes = bytearray(modes)
        self.sizes, self.mtimes_ns, self.inodes, self.ctimes_ns = map(_column, columns)

    def take(self, order: list[int]) -> None:
        """Keeps the rows of these numbers, in their order."""
        self.names = [self.names[n] for n in order]
        self.modes = bytearray([self.modes[n] for n in order])
        self.sizes = _taken(self.sizes, order)
        self.mtimes_ns = _taken(self.mtimes_ns, order)
        self.inodes = _taken(self.inodes, order)
        self.ctimes_ns = _taken(self.ctimes_ns, order)

    def stats(self) -> bytes:
        """Size, mtime, inode and ctime of all, one column after the other, in machine order."""
        return b"".join((self.sizes, self.mtimes_ns, self.inodes, self.ctimes_ns))

    def signature(self, subdirectories: list[bytes]) -> bytes:
        """16 bytes that differ when a name, kind, size, time or inode does."""
        names = self.names
        head = b"%d %d\0" % (len(names), len(subdirectories))
        return blake3(
            b"".join((head, b"\0".join(names), b"\0".join(subdirectories), self.modes,
                      self.sizes, self.mtimes_ns, self.inodes, self.ctimes_ns))
        ).digest(16)  # fmt: skip


@dataclass(slots=True)
class ScannedDirectory:
    """One directory as it was found. ``path`` is relative to the root, which has b""."""

    path: bytes
    depth: int  # of the root: 0
    columns: Columns
    subdirectories: list[bytes]
    scanned_ns: int  # the clock before it was read


@dataclass(slots=True)
class Scan:
    """A walk through ``root``, without what ``ignore`` and files of patterns exclude. What else it
    leaves out is in ``skipped``: special files, and with ``skip_unreadable`` what could not be
    read."""

    root: bytes
    skip_unreadable: bool = False
    clock_ns: Callable[[], int] = time.time_ns
    ignore: IgnoreRules = field(default_factory=IgnoreRules)
    skipped: list[Skipped] = field(default_factory=list)

    def __iter__(self) -> Iterator[ScannedDirectory]:
        """Directories, each before those in it, and these in the order of their names: the byte
        order of paths whose '/' is NUL. As deep as it may be.

        Raises: NotFound, NotADirectory, Denied for the root; Denied, SourceChanged, Unavailable.
        """
        root_fd = open_root(self.root)
        try:
            yield from self._walk(root_fd)
        finally:
            os.close(root_fd)

    def _walk(self, root_fd: int) -> Iterator[ScannedDirectory]:
        levels: list[tuple[bytes, list[bytes]]] = []  # a path, and names in it still to visit
        path = b""
        while True:
            found = self._visit(root_fd, path, len(levels))
            if found is not None:
                yield found
                levels.append((path, found.subdirectories[::-1]))
            while levels and not levels[-1][1]:
                levels.pop()
            if not levels:
                return
            parent, names = levels[-1]
            name = names.pop()
            path = parent + b"/" + name if parent else name

    def _visit(self, root_fd: int, path: bytes, depth: int) -> ScannedDirectory | None:
        try:
            return self._read(root_fd, path, depth)
        except OSError as error:
            found = _error(error, path)
            if depth == 0 or not self.skip_unreadable:
                raise found from error
            self.skipped.append(Skipped(path, str(found)))
            return None

    def _read(self, root_fd: int, path: bytes, depth: int) -> ScannedDirectory:
        """One directory. A name that vanishes while it is read counts as never there."""
        rows: list[Row] = []
        subdirectories: list[bytes] = []
        others: list[tuple[bytes, os.stat_result]] = []
        coding, errors = _FS_ENCODING  # os.fsencode, but for what is known to be text
        scanned_ns = self.clock_ns()
        fd = open_below(root_fd, path or b".", _OPEN)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        subdirectories.append(entry.name.encode(coding, errors))
                        continue
                    try:
                        seen = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    mode = seen.st_mode
                    if mode & 0o170000 == 0o100000:  # a regular file
                        name = entry.name.encode(coding, errors)
                        rows.append(_row(name, EXECUTABLE if mode & 0o111 else FILE, seen))
                    else:
                        others.append((os.fsencode(entry.name), seen))
            patterns = next((_patterns(fd, row[2]) for row in rows if row[0] == FILE_NAME), None)
        finally:
            os.close(fd)
        self.ignore.enter(path, patterns)
        if self.ignore:
            subdirectories = [n for n in subdirectories if self._is_kept(path, n, is_dir=True)]
            rows = [row for row in rows if self._is_kept(path, row[0])]
            others = [one for one in others if self._is_kept(path, one[0])]
        for name, seen in others:
            self._keep_other(path, name, seen, rows)
        subdirectories.sort()
        return ScannedDirectory(path, depth, Columns(rows), subdirectories, scanned_ns)

    def _is_kept(self, path: bytes, name: bytes, *, is_dir: bool = False) -> bool:
        return not self.ignore.excludes(path + b"/" + name if path else name, is_directory=is_dir)

    def _keep_other(self, path: bytes, name: bytes, seen: os.stat_result, rows: list[Row]) -> None:
        if stat.S_ISLNK(seen.st_mode):
            rows.append(_row(name, SYMLINK, seen))
            return
        kind = _OTHER_KINDS.get(stat.S_IFMT(seen.st_mode), "no file, directory or symlink")
        where = path + b"/" + name if path else name
        self.skipped.append(Skipped(where, f"{show_path(where)} is {kind}"))


def _patterns(directory_fd: int, size_bytes: int) -> bytes:
    """The content of a directory's file of patterns. Raises: InvalidInput, OSError."""
    if size_bytes > SIZE_BYTES_MAX:
        name = FILE_NAME.decode()
        raise InvalidInput(
            f"a {name} has {size_bytes:,} bytes, and {SIZE_BYTES_MAX:,} are the most"
        )
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(FILE_NAME, flags, dir_fd=directory_fd), "rb") as file:
        return file.read(SIZE_BYTES_MAX)


def _row(name: bytes, mode: int, seen: os.stat_result) -> Row:
    return name, mode, seen.st_size, seen.st_mtime_ns, seen.st_ino, seen.st_ctime_ns


def _column(numbers: Sequence[int]) -> array[int]:
    try:
        return array("q", numbers)
    except OverflowError:
        return array("q", map(signed, numbers))


def _taken(column: array[int], order: list[int]) -> array[int]:
    return array("q", map(column.__getitem__, order))


def open_root(root: bytes) -> int:
    """A descriptor of the directory to push. Raises: NotFound, NotADirectory, Denied."""
    try:
        return os.open(root, _OPEN)
    except OSError as error:
        name = show_path(root)
        if error.errno == errno.ENOTDIR:
            raise NotADirectory(f"{name} is not a directory: a push takes a directory") from error
        if error.errno == errno.ENOENT:
            raise NotFound(f"{name} does not exist") from error
        if error.errno in _DENIED:
            raise Denied(f"{name} cannot be read: {error.strerror}") from error
        raise InvalidInput(f"{name} cannot be read: {error.strerror}") from error


def read_link(root_fd: int, path: bytes) -> bytes:
    """The target of a symlink below the root. Raises: SourceChanged, Denied, Unavailable."""
    try:
        if len(path) <= PATH_BYTES_MAX:
            return os.readlink(path, dir_fd=root_fd)
        directory, _, name = path.rpartition(b"/")
        fd = open_below(root_fd, directory, _OPEN)
        try:
            return os.readlink(name, dir_fd=fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise _error(error, path) from error


def _error(error: OSError, path: bytes) -> LodefsError:
    name = show_path(path) or "the source directory"
    if error.errno in _DENIED:
        return Denied(f"{name} cannot be read: {error.strerror}")
    if error.errno in _GONE:
        return SourceChanged(f"{name} vanished or was replaced while it was pushed: push again")
    return Unavailable(f"{name} cannot be read: {error.strerror}")
