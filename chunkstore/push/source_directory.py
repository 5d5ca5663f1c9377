"""A directory that is pushed: what changed in it is read, and stored with its trees."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from lodefs.chunkstore.errors import InvalidInput, LodefsError
from lodefs.chunkstore.format.names import PULL_STATE_DIR
from lodefs.chunkstore.format.tree import Entry
from lodefs.chunkstore.push.attempts import Desk
from lodefs.chunkstore.push.deduplicator import Deduplicator
from lodefs.chunkstore.push.index.stat_cache import StatCache
from lodefs.chunkstore.push.pack_writer import TREE_PACK_SIZES_BYTES, Placement
from lodefs.chunkstore.push.scanner import Scan, open_root, read_link
from lodefs.chunkstore.push.trees.directories import HashedDirectory, PushTree
from lodefs.chunkstore.push.trees.tree_packer import TreePacker
from lodefs.chunkstore.push.trees.tree_writer import TreeWriter
from lodefs.chunkstore.push.workers.source_files import SourceFile, show_path


class SourceDirectory:
    """One source directory of one push. One thread. Close it in the end."""

    def __init__(self, root: bytes, desk: Desk, scan: Scan) -> None:
        self._root = root
        self._desk = desk
        self._fd = open_root(root)
        self.scan = scan
        # told of the bytes of each file, before it is read; may raise
        self.count: Callable[[int], None] = lambda _more_bytes: None
        placement = Placement(desk.index, desk.uploader)
        self.tree = PushTree(
            memory=StatCache.of(desk.index, root),
            placement=placement,
            read_link=lambda path: read_link(self._fd, path),
            skip_unreadable=scan.skip_unreadable,
            skipped=scan.skipped,
        )
        self.deduplicator = Deduplicator(placement, self.tree, desk.progress)

    def read(self) -> HashedDirectory:
        """Scans the source, reads what changed, and stores what is new of it."""
        from lodefs.chunkstore.push.workers import pool

        files = self._counted(self.tree.files(iter(self.scan)))
        first: list[SourceFile] = []
        size_bytes = 0
        for file in files:
            first.append(file)
            size_bytes += file.size_bytes
            if len(first) > pool.INLINE_FILES_MAX or size_bytes > pool.INLINE_SIZE_BYTES_MAX:
                break
        if first:
            self._desk.learn()
            readers = self._desk.readers(len(first), size_bytes)
            readers.run(self._root, chain(first, files), self.deduplicator, self.tree.work)
            self.deduplicator.seal()
            self.tree.finish()
        assert self.tree.root is not None
        return self.tree.root

    def store_trees(self, root: HashedDirectory) -> Entry:
        """Stores the trees that the store does not have. All packs are in the store then."""
        desk = self._desk
        desk.learn()
        placement = Placement(desk.index, desk.uploader, TREE_PACK_SIZES_BYTES)
        packer = TreePacker(placement, desk.store.settings.chunking)
        writer = TreeWriter(packer, self.tree.memory)
        entry = writer.store(root)
        self.tree.remember()  # what it can, while the last packs are under way
        desk.uploader.finish()
        self.tree.remember()
        if not desk.uploader.is_dry:
            desk.index.add_trees(writer.new_places())
        return entry

    def abandon(self) -> None:
        """After an error: remembers what is in the store already."""
        with contextlib.suppress(LodefsError):  # the first error is the one to report
            self._desk.uploader.stop()
            self.tree.remember()

    def names(self) -> list[bytes]:
        """What is at its top."""
        return [os.fsencode(name) for name in os.listdir(self._fd)]

    def close(self) -> None:
        """Closes the directory."""
        os.close(self._fd)

    def _counted(self, files: Iterable[SourceFile]) -> Iterator[SourceFile]:
        progress = self._desk.progress
        for file in files:
            progress.files_total += 1
            progress.bytes_total += file.size_bytes
            self.count(file.size_bytes)
            yield file


def source_root(source: os.PathLike[str], apart: Iterable[tuple[str, str]]) -> bytes:
    """The real path of a directory to push. ``apart``: places (paths, or URLs of something else)
    that must not lie in it, and what they are.

    Raises: NotFound, NotADirectory, InvalidInput, Denied.
    """
    root = os.path.realpath(os.fsencode(source))
    os.close(open_root(root))
    _check_filled(root)
    for place, what in apart:
        _check_apart(root, place, what)
    return root


def _check_filled(root: bytes) -> None:
    """Raises: InvalidInput if the source is a directory that a pull has not filled to the end."""
    if os.path.lexists(os.path.join(root, os.fsencode(PULL_STATE_DIR))):
        from lodefs.chunkstore.pull.target import command_to_end

        raise InvalidInput(
            f"a pull into {show_path(root)} has not ended, so it is not complete: first repeat "
            f"`{command_to_end(root)}`; or delete {PULL_STATE_DIR} in it"
        )


def _check_apart(root: bytes, place: str, what: str) -> None:
    """Raises: InvalidInput if ``place`` (a path, or the URL of something else) is in the source."""
    place = place.removeprefix("file://")
    if not place.startswith("/"):
        return
    path = os.path.realpath(os.fsencode(place))
    if path == root or path.startswith(root.rstrip(b"/") + b"/"):
        raise InvalidInput(
            f"{what} ({show_path(path)}) lies in the directory that is pushed "
            f"({show_path(root)}), so every push would change it: keep it elsewhere"
        )
