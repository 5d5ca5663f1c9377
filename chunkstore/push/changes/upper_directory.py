"""The upper directory of an overlayfs over a commit: the changes in a writable mount.

The kernel's format (Documentation/filesystems/overlayfs.rst): a file that was written lies at its
path. A whiteout hides what the base has at its path. A directory also shows what the base has at
its path, unless it is opaque. A redirect makes another directory of the base show through, because
somebody renamed it.
"""

from __future__ import annotations

import errno
import os
import stat
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.push.changes.overlay import Names, TreeReader
from lodefs.chunkstore.push.workers.source_files import show_path, source_error
from lodefs.chunkstore.system.safe_open import closing, open_below

AS_ROOT, AS_USER = b"trusted.overlay.", b"user.overlay."  # prefixes of overlayfs attributes
NAMES_MAX = 4_000_000  # a commit needs about 2 KB of memory for each
_READ_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_READ_FILE = os.O_RDONLY | os.O_NONBLOCK
_OPAQUE, _WITH_WHITEOUTS = b"y", b"x"  # values of the "opaque" attribute


class UpperKind(Enum):
    """The kinds of entries in an upper directory."""

    FILE = "file"
    SYMLINK = "symlink"
    DIRECTORY = "directory"
    WHITEOUT = "whiteout"
    OTHER = "other"  # a device, socket or FIFO


@dataclass(frozen=True, slots=True)
class UpperBase:
    """The lower directory: the directory ``spec`` of a commit, its entry ``root``, and ``trees``.
    ``is_other``: that commit is gone, and another one replaces it."""

    spec: Spec
    root: TreeEntry
    trees: TreeReader
    is_other: bool = False


class Place(NamedTuple):
    """An entry of the base, and its path there."""

    path: Names
    entry: TreeEntry


@dataclass(frozen=True, slots=True)
class UpperEntry:
    """One name in an upper directory. ``mode``, ``size_bytes`` and ``links`` are those of stat(2).
    ``beneath`` would show if the entry were not there. ``shows`` is the directory of the base that
    shows through a directory."""

    names: Names
    kind: UpperKind
    mode: int
    size_bytes: int
    links: int
    beneath: Place | None
    shows: Place | None = None
    target: bytes = b""  # for a symlink

    @property
    def path(self) -> bytes:
        return b"/".join(self.names)

    @property
    def executable(self) -> bool:
        return self.kind is UpperKind.FILE and bool(self.mode & 0o111)

    @property
    def is_renamed(self) -> bool:
        """Whether a base directory with another path shows through."""
        return self.shows is not None and self.shows != self.beneath


def walk_upper(
    upper: bytes, base: UpperBase, xattr_prefix: bytes, without: bytes = b""
) -> Iterator[UpperEntry]:
    """Yields the entries of an upper directory, each directory before its contents; it skips the
    path ``without``. Reads only those directories of the base that are on the way. Paths may have
    any length.

    Raises: InvalidInput for more than NAMES_MAX names, and for an entry that overlayfs did not
    write, or that lodefs' mount options exclude; Denied, Unavailable, NotFound, SourceChanged for
    what cannot be read; what reading trees raises.
    """
    try:
        root_fd = os.open(upper, _READ_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise source_error(error, upper) from error
    with closing(root_fd):
        yield from _Walk(root_fd, base, xattr_prefix, without).run()


class _Walk:
    def __init__(self, root_fd: int, base: UpperBase, xattr_prefix: bytes, without: bytes) -> None:
        self._root_fd = root_fd
        self._base = base
        self._prefix = xattr_prefix
        self._without = without
        self._path = b""  # the current path, for errors
        self._names_left = NAMES_MAX

    def run(self) -> Iterator[UpperEntry]:
        try:
            yield from self._run()
        except OSError as error:
            raise source_error(error, self._path or b"the upper directory") from error

    def _run(self) -> Iterator[UpperEntry]:
        root = Place((), self._base.root)
        top = UpperEntry((), UpperKind.DIRECTORY, 0, 0, 0, root, root)
        todo: list[tuple[UpperEntry, Place | None]] = [(top, None)]
        while todo:
            entry, parent = todo.pop()
            self._path = entry.path
            with closing(open_below(self._root_fd, entry.path or b".", _READ_DIRECTORY)) as fd:
                opaque = self._attribute(fd, b"opaque")
                if entry.names:
                    shows = None if opaque == _OPAQUE else self._shown(fd, entry, parent)
                    entry = replace(entry, shows=shows)
                    yield entry
                found = list(self._children(fd, entry, is_marked=opaque == _WITH_WHITEOUTS))
            yield from (one for one in found if one.kind is not UpperKind.DIRECTORY)
            todo += [(one, entry.shows) for one in found[::-1] if one.kind is UpperKind.DIRECTORY]

    def _children(self, fd: int, above: UpperEntry, *, is_marked: bool) -> Iterator[UpperEntry]:
        """Yields the names in a directory. ``is_marked``: some files may be whiteouts."""
        shown = self._entries(above.shows)
        with os.scandir(fd) as found:
            names = sorted(os.fsencode(one.name) for one in islice(found, self._names_left + 1))
        self._names_left -= len(names)
        if self._names_left < 0:
            raise InvalidInput(
                f"more than {NAMES_MAX:,} names were changed, which is the limit of one commit: "
                "move some of them out of the mount, and commit the others first; or `lodefs push` "
                "the mounted directory, which has no such limit"
            )
        for name in names:
            names_of_it = (*above.names, name)
            self._path = b"/".join(names_of_it)
            if self._path == self._without:
                continue
            seen = os.stat(name, dir_fd=fd, follow_symlinks=False)
            kind = self._kind(fd, name, seen, is_marked=is_marked)
            target = os.readlink(name, dir_fd=fd) if kind is UpperKind.SYMLINK else b""
            stats = seen.st_mode, seen.st_size, seen.st_nlink
            yield UpperEntry(names_of_it, kind, *stats, _find(shown, name), target=target)

    def _kind(self, fd: int, name: bytes, seen: os.stat_result, *, is_marked: bool) -> UpperKind:
        if stat.S_ISDIR(seen.st_mode):
            return UpperKind.DIRECTORY
        if stat.S_ISLNK(seen.st_mode):
            return UpperKind.SYMLINK
        if stat.S_ISREG(seen.st_mode):
            if is_marked and not seen.st_size and self._has(fd, name, b"whiteout"):
                return UpperKind.WHITEOUT
            # Such a file has no blocks, so files with blocks need not be opened
            if seen.st_size and not seen.st_blocks and self._has(fd, name, b"metacopy"):
                raise InvalidInput(
                    f"{show_path(self._path)} has no content in the upper directory, which was "
                    "mounted with metacopy=on: mount it as `lodefs mount --writable` does"
                )
            return UpperKind.FILE
        if stat.S_ISCHR(seen.st_mode) and not seen.st_rdev:
            return UpperKind.WHITEOUT
        return UpperKind.OTHER

    def _has(self, dir_fd: int, name: bytes, attribute: bytes) -> bool:
        with closing(open_below(dir_fd, name, _READ_FILE)) as fd:
            return self._attribute(fd, attribute) is not None

    def _attribute(self, fd: int, name: bytes) -> bytes | None:
        """Returns an attribute of overlayfs, or None if it is not set."""
        try:
            return os.getxattr(fd, self._prefix + name)
        except OSError as error:
            if error.errno == errno.ENODATA:
                return None
            raise

    def _shown(self, fd: int, entry: UpperEntry, parent: Place | None) -> Place | None:
        """Returns the base directory that shows through a directory that is not opaque. ``parent``
        shows through the directory above."""
        redirect = self._attribute(fd, b"redirect")
        found = entry.beneath
        if redirect is not None and redirect.startswith(b"/"):
            found = self._at(Place((), self._base.root), redirect)
        elif redirect is not None:
            found = None if parent is None else self._at(parent, redirect)
        if found and found.entry.kind is Kind.DIRECTORY:
            return found
        if redirect is not None and self._base.is_other:
            raise InvalidInput(
                f"{show_path(self._path)} was renamed, it was {show_path(redirect)} before, and "
                f"{self._base.spec} has no such directory, so its content is unknown; use a "
                "revision that has it, or remove this directory from the mount"
            )
        return None

    def _at(self, place: Place | None, path: bytes) -> Place | None:
        for name in filter(None, path.split(b"/")):
            place = _find(self._entries(place), name)
        return place

    def _entries(self, place: Place | None) -> tuple[Names, list[TreeEntry]]:
        """Returns the path and entries of a base directory, by name; none for anything else."""
        if place is None or place.entry.kind is not Kind.DIRECTORY:
            return (), []
        return place.path, self._base.trees.read_tree(place.entry)


def _find(directory: tuple[Names, list[TreeEntry]], name: bytes) -> Place | None:
    """Finds a name in a directory, which may have a million names."""
    path, entries = directory
    at = bisect_left(entries, name, key=attrgetter("name"))
    if at == len(entries) or entries[at].name != name:
        return None
    return Place((*path, name), entries[at])
