"""Scans a source directory: one directory after the other, parents first, names sorted.

It never follows symlinks. It keeps only regular files, directories and symlinks.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
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
from lodefs.chunkstore.system.safe_open import PLACE, closing, open_below

FILE, EXECUTABLE, SYMLINK = 0, 1, 2  # the bytes in ``modes``, one for each name

_GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE))
_DENIED = frozenset((errno.EACCES, errno.EPERM))
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OTHER_KINDS = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}
# Files and directories that often lie beside data by mistake: of version control, interpreters,
# desktops
OFTEN_EXCLUDED = frozenset(
    (b".git", b".hg", b".svn", b"__pycache__", b".ipynb_checkpoints", b".DS_Store", b"Thumbs.db")
)
PRIVATE_NAMED_MAX = 3
SET_ID = stat.S_ISUID | stat.S_ISGID
_FS_ENCODING = (sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())


class Skipped(NamedTuple):
    """Something in the source that is not in the commit, and the reason."""

    path: bytes
    reason: str  # names the path

    @classmethod
    def of_kind(cls, path: bytes, mode: int) -> Skipped:
        """Returns what says of a socket, FIFO or device (``mode``: its st_mode) which it is."""
        kind = _OTHER_KINDS.get(stat.S_IFMT(mode), "not a file, directory or symlink")
        return cls(path, f"{show_path(path)} is {kind}")

    def __str__(self) -> str:
        return self.reason


class Private(StrEnum):
    """The treatment of files that others may not read: a commit does not keep such modes."""

    PUSH = "push"
    SKIP = "skip"  # leave them out, and name them
    REFUSE = "refuse"  # end the push at the first one


@dataclass(slots=True)
class SourceNotes:
    """Facts about a source that a commit does not keep, and names in it that are often left out."""

    private_files: int = 0  # files that others may not read
    private_named: list[bytes] = field(default_factory=list)  # the paths of the first ones
    hard_linked_files: int = 0  # each becomes a file of its own
    stateless_files: int = 0  # of a URL that does not tell whether they change
    set_id_files: int = 0  # setuid or setgid: a commit keeps only the executable bit
    # Number of paths, by their last name
    often_excluded: Counter[str] = field(default_factory=Counter)

    def private(self, path: bytes) -> None:
        """Adds a private file."""
        self.private_files += 1
        if len(self.private_named) < PRIVATE_NAMED_MAX:
            self.private_named.append(path)

    def note_excluded(self, *found: Sequence[bytes]) -> None:
        """Adds the names in one directory that are often left out."""
        for names in found:
            self.often_excluded.update(map(os.fsdecode, OFTEN_EXCLUDED.intersection(names)))

    def add(self, more: SourceNotes) -> None:
        """Adds the notes on another source of the same commit."""
        self.private_files += more.private_files
        self.private_named = (self.private_named + more.private_named)[:PRIVATE_NAMED_MAX]
        self.hard_linked_files += more.hard_linked_files
        self.stateless_files += more.stateless_files
        self.set_id_files += more.set_id_files
        self.often_excluded += more.often_excluded


def refuse_private(path: bytes, mode: int) -> InvalidInput:
    """Returns the error for a file or directory that others may not read."""
    return InvalidInput(
        f"{show_path(path)} is private (mode {stat.S_IMODE(mode):04o}), and all who may read its "
        "repository can read a commit: leave such files out (--exclude, or --private skip for a "
        "directory), or push them (--private push)"
    )


Row = tuple[bytes, int, int, int, int, int]  # name, mode, size, mtime, inode, ctime
_NO_NUMBERS = array("q")


class Columns:
    """The files and symlinks of one directory, sorted by name: one column for each property.

    ``modes`` has one byte for each name (FILE, EXECUTABLE, SYMLINK); the others are array("q").
    """

    __slots__ = ("ctimes_ns", "inodes", "modes", "mtimes_ns", "names", "sizes")

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        ordered = sorted(rows)
        if not ordered:  # false in many directories
            self.names, self.modes = [], bytearray()
            self.sizes = self.mtimes_ns = self.inodes = self.ctimes_ns = _NO_NUMBERS
            return
        names, modes, *columns = zip(*ordered, strict=True)
        self.names = list(names)
        self.modes = bytearray(modes)
        self.sizes, self.mtimes_ns, self.inodes, self.ctimes_ns = map(_column, columns)

    def take(self, order: list[int]) -> None:
        """Keeps only the rows with these numbers, in their order."""
        self.names = [self.names[n] for n in order]
        self.modes = bytearray([self.modes[n] for n in order])
        self.sizes = _taken(self.sizes, order)
        self.mtimes_ns = _taken(self.mtimes_ns, order)
        self.inodes = _taken(self.inodes, order)
        self.ctimes_ns = _taken(self.ctimes_ns, order)

    def stats(self) -> bytes:
        """Returns size, mtime, inode and ctime of all names, one column after the other, in machine
        order."""
        return b"".join((self.sizes, self.mtimes_ns, self.inodes, self.ctimes_ns))

    def signature(self, subdirectories: list[bytes]) -> bytes:
        """Returns 16 bytes that change with any name, kind, size, time or inode."""
        names = self.names
        head = b"%d %d\0" % (len(names), len(subdirectories))
        return blake3(
            b"".join((head, b"\0".join(names), b"\0".join(subdirectories), self.modes,
                      self.sizes, self.mtimes_ns, self.inodes, self.ctimes_ns))
        ).digest(16)  # fmt: skip


@dataclass(slots=True)
class ScannedDirectory:
    """One scanned directory. ``path`` is relative to the root, whose path is b""."""

    path: bytes
    depth: int  # 0 for the root
    columns: Columns
    subdirectories: list[bytes]
    scanned_ns: int  # the clock before it was read


@dataclass(slots=True)
class Scan:
    """A walk through ``root`` that leaves out what ``ignore`` and files of patterns exclude.
    ``skipped`` names what else it leaves out: special files, unreadable ones if ``skip_unreadable``
    is set, and private ones if ``private`` says so. ``notes`` are about what it does not leave out.
    """

    root: bytes
    skip_unreadable: bool = False
    clock_ns: Callable[[], int] = time.time_ns
    ignore: IgnoreRules = field(default_factory=IgnoreRules)
    private: Private = Private.PUSH
    skipped: list[Skipped] = field(default_factory=list)
    notes: SourceNotes = field(default_factory=SourceNotes)
    _private_depth: int | None = None  # depth of the directory above that others cannot enter

    def __iter__(self) -> Iterator[ScannedDirectory]:
        """Yields directories, each before those in it, in the byte order of paths whose '/' is NUL.
        They may lie at any depth.

        Raises: NotFound, NotADirectory, Denied for the root; Denied, SourceChanged, Unavailable.
        """
        root_fd = open_root(self.root)
        try:
            yield from walk(partial(self._visit, root_fd))
        finally:
            os.close(root_fd)

    def _visit(self, root_fd: int, path: bytes, depth: int) -> ScannedDirectory | None:
        try:
            return self._read(root_fd, path, depth)
        except OSError as error:
            found = _error(error, path)
            if depth == 0 or not self.skip_unreadable:
                raise found from error
            self.skipped.append(Skipped(path, str(found)))
            return None

    def _read(self, root_fd: int, path: bytes, depth: int) -> ScannedDirectory | None:
        """Reads one directory; returns None if it is left out. A name that vanishes while the
        directory is read is ignored."""
        rows: list[Row] = []
        linked: list[bytes] = []
        set_id: list[bytes] = []
        private: dict[bytes, int] = {}  # names, and their modes
        subdirectories: list[bytes] = []
        others: list[tuple[bytes, os.stat_result]] = []
        coding, errors = _FS_ENCODING  # as os.fsencode does, for names known to be str
        scanned_ns = self.clock_ns()
        fd = open_below(root_fd, path or b".", _OPEN)
        try:
            if depth and not self._may_enter(path, depth, os.fstat(fd).st_mode):
                return None
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
                        if not mode & stat.S_IROTH:
                            private[name] = mode
                        if seen.st_nlink > 1:
                            linked.append(name)
                        if mode & SET_ID:
                            set_id.append(name)
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
        if private or self._private_depth is not None:
            rows = self._of_private(path, rows, private)
        for name, seen in others:
            self._keep_other(path, name, seen, rows)
        subdirectories.sort()
        columns = Columns(rows)
        self._note(columns.names, subdirectories, linked, set_id)
        return ScannedDirectory(path, depth, columns, subdirectories, scanned_ns)

    def _may_enter(self, path: bytes, depth: int, mode: int) -> bool:
        """Whether a directory is part of the push; a private one may not be. Raises:
        InvalidInput."""
        if self._private_depth is not None and self._private_depth < depth:
            return True
        self._private_depth = None
        if mode & stat.S_IXOTH:
            return True
        if self.private is not Private.PUSH:
            self._leave_private(path, mode)
            return False
        self._private_depth = depth
        return True

    def _of_private(
        self, path: bytes, rows: Sequence[Row], private: Mapping[bytes, int]
    ) -> list[Row]:
        """Returns the rows of regular files to push. Private files are noted or left out."""
        is_all = self._private_depth is not None
        kept = []
        for row in sorted(rows):  # so that the same ones are named each time
            name = row[0]
            if is_all or name in private:
                if self.private is not Private.PUSH:
                    self._leave_private(below(path, name), private[name])
                    continue
                self.notes.private(below(path, name))
            kept.append(row)
        return kept

    def _leave_private(self, path: bytes, mode: int) -> None:
        if self.private is Private.REFUSE:
            raise refuse_private(path, mode)
        reason = f"{show_path(path)} is private (mode {stat.S_IMODE(mode):04o})"
        self.skipped.append(Skipped(path, reason))

    def _note(
        self,
        names: list[bytes],
        subdirectories: list[bytes],
        linked: list[bytes],
        set_id: list[bytes],
    ) -> None:
        notes = self.notes
        if linked or set_id:
            notes.hard_linked_files += len(set(linked).intersection(names))
            notes.set_id_files += len(set(set_id).intersection(names))
        notes.note_excluded(names, subdirectories)

    def _is_kept(self, path: bytes, name: bytes, *, is_dir: bool = False) -> bool:
        return not self.ignore.excludes(below(path, name), is_directory=is_dir)

    def _keep_other(self, path: bytes, name: bytes, seen: os.stat_result, rows: list[Row]) -> None:
        if stat.S_ISLNK(seen.st_mode):
            rows.append(_row(name, SYMLINK, seen))
            return
        self.skipped.append(Skipped.of_kind(below(path, name), seen.st_mode))


def walk(visit: Callable[[bytes, int], ScannedDirectory | None]) -> Iterator[ScannedDirectory]:
    """Yields what ``visit`` finds at a path and a depth: the root, and the subdirectories of all
    that it finds, in the order of Scan. None leaves a directory out."""
    levels: list[tuple[bytes, list[bytes]]] = []  # a path, and names in it still to visit
    path = b""
    while True:
        found = visit(path, len(levels))
        if found is not None:
            yield found
            levels.append((path, found.subdirectories[::-1]))
        while levels and not levels[-1][1]:
            levels.pop()
        if not levels:
            return
        parent, names = levels[-1]
        path = below(parent, names.pop())


def below(path: bytes, name: bytes) -> bytes:
    """Returns the path of a name in the directory ``path`` (b"": the root)."""
    return path + b"/" + name if path else name


def _patterns(directory_fd: int, size_bytes: int) -> bytes:
    """Returns the content of a directory's file of patterns. Raises: InvalidInput, OSError."""
    if size_bytes > SIZE_BYTES_MAX:
        name = FILE_NAME.decode()
        raise InvalidInput(f"a {name} has {size_bytes:,} bytes; the limit is {SIZE_BYTES_MAX:,}")
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
    """Opens the directory to push. Returns a descriptor. Raises: NotFound, NotADirectory,
    Denied."""
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
    """Returns the target of a symlink below the root. Raises: SourceChanged, Denied,
    Unavailable."""
    try:
        directory, _, name = path.rpartition(b"/")
        if not directory:
            return os.readlink(name, dir_fd=root_fd)
        with closing(open_below(root_fd, directory, PLACE)) as fd:
            return os.readlink(name, dir_fd=fd)
    except OSError as error:
        raise _error(error, path) from error


def _error(error: OSError, path: bytes) -> LodefsError:
    name = show_path(path) or "the source directory"
    if error.errno in _DENIED:
        return Denied(f"{name} cannot be read: {error.strerror}")
    if error.errno in _GONE:
        return SourceChanged(f"{name} vanished or was replaced while it was pushed: push again")
    return Unavailable(f"{name} cannot be read: {error.strerror}")
