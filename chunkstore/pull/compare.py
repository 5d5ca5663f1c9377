"""Compares a directory with what a pull would make of it. Reads all of it, and writes nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path

from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.pull.target import STATE_DIR, DirectoryHandles, has_content, translated
from lodefs.chunkstore.repo.pack_reader import PackReader
from lodefs.chunkstore.repo.tree_walk import Place, Visited, join, walk_trees

DIFFERS, MISSING, FOREIGN = "differs", "is missing", "is not in the dataset"
Difference = tuple[bytes, str]  # a path in the directory, and one of these
MayLack = Callable[[bytes, TreeEntry], bool]  # called with a path and its entry in the dataset

SHARE_FILES = 64  # files that one thread reads at a time
_NOT_ALIKE = (errno.ELOOP, errno.ENOTDIR, errno.EINVAL, errno.ENOENT, errno.EISDIR, errno.ENXIO)


def is_filled(path: Path) -> bool:
    """Whether the directory has contents, and no unfinished pull. Raises: Denied."""
    with translated(path):
        try:
            names = os.listdir(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return bool(names) and STATE_DIR not in names


def first_difference(
    packs: PackReader,
    root: TreeEntry,
    path: Path,
    executor: Executor,
    alike: Callable[[TreeEntry], None],
    may_lack: MayLack = lambda _path, _entry: False,
) -> Difference | None:
    """Returns something in the directory that differs from ``root``, or that only one of them has;
    None if they are equal: names, kinds, contents, executable bits, symlinks.

    It compares names from the top down, so that an unrelated directory is noticed at once.
    ``alike`` is called with each equal entry below ``root``. ``may_lack`` is called once for each
    missing file, and says whether that is right. Raises: Denied.
    """
    with translated(path):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _first_difference(packs, root, fd, executor, alike, may_lack)
        finally:
            os.close(fd)


def _first_difference(
    packs: PackReader,
    root: TreeEntry,
    fd: int,
    executor: Executor,
    alike: Callable[[TreeEntry], None],
    may_lack: MayLack,
) -> Difference | None:
    # A single file lies in the directory, under its own name
    is_one = root.kind is not Kind.DIRECTORY
    place = Place(None, b"", root)
    trees = [Visited(place, [root])] if is_one else walk_trees(packs, [place], executor)
    with DirectoryHandles(fd) as handles:
        for tree in trees:
            path = tree.node.path
            found, same = _of_directory(path, tree.content, fd, handles, executor, may_lack)
            if found is not None:
                return found
            for child in same:
                alike(child)
    return None


def _of_directory(
    path: bytes,
    entries: Sequence[TreeEntry],
    fd: int,
    handles: DirectoryHandles,
    executor: Executor,
    may_lack: MayLack,
) -> tuple[Difference | None, Sequence[TreeEntry]]:
    """Returns a difference, and the existing subdirectories without one."""
    try:
        names = set(map(os.fsencode, os.listdir(handles.directory(path))))
    except OSError as error:
        return _differs(error, path), ()
    children = [
        child
        for child in entries
        if child.name in names
        or child.kind is not Kind.FILE
        or not may_lack(join(path, child.name), child)
    ]
    if other := names ^ {child.name for child in children}:
        name = min(other)
        return (join(path, name), FOREIGN if name in names else MISSING), ()
    shares = [children[at : at + SHARE_FILES] for at in range(0, len(children), SHARE_FILES)]
    for found in executor.map(lambda share: _of_share(path, share, fd), shares):
        if found is not None:
            return found, ()
    return None, children


def _of_share(path: bytes, children: Sequence[TreeEntry], fd: int) -> Difference | None:
    with DirectoryHandles(fd) as handles:
        for child in children:
            place = join(path, child.name)
            try:
                if not _is_alike(place, child, handles):
                    return place, DIFFERS
            except OSError as error:
                return _differs(error, place)
    return None


def _is_alike(place: bytes, entry: TreeEntry, handles: DirectoryHandles) -> bool:
    if entry.kind is Kind.FILE:
        return has_content(place, entry, handles)
    parent, _, name = place.rpartition(b"/")
    if entry.kind is Kind.SYMLINK:
        return os.readlink(name, dir_fd=handles.directory(parent)) == entry.target
    handles.directory(place)
    return True


def _differs(error: OSError, place: bytes) -> Difference:
    """Returns ``place`` if the error means that another kind of file is there; otherwise raises
    it."""
    if error.errno not in _NOT_ALIKE:
        raise error
    return place, DIFFERS
