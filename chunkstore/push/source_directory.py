"""One source directory of a push: reads what changed in it, and stores it with its trees."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain
from typing import NamedTuple, Self

from lodefs.chunkstore.errors import InvalidInput, LodefsError
from lodefs.chunkstore.format.names import PULL_STATE_DIR
from lodefs.chunkstore.format.tree import TreeEntry
from lodefs.chunkstore.push.deduplicator import Deduplicator
from lodefs.chunkstore.push.ignore_rules import IgnoreRules
from lodefs.chunkstore.push.index.stat_cache import NoStats, StatCache
from lodefs.chunkstore.push.pack_writer import TREE_PACK_SIZES_BYTES, Placement
from lodefs.chunkstore.push.parts.part_scan import PartScan
from lodefs.chunkstore.push.remote.remote_files import (
    RemoteFiles,
    is_url,
    open_remote,
    remembered_root,
)
from lodefs.chunkstore.push.remote.remote_scan import RemoteScan
from lodefs.chunkstore.push.scanner import Scan, open_root, read_link
from lodefs.chunkstore.push.session import PushOptions, PushSession
from lodefs.chunkstore.push.trees.directories import HashedDirectory, PushTree
from lodefs.chunkstore.push.trees.tree_writer import TreePacker, TreeWriter
from lodefs.chunkstore.push.workers.source_files import SourceFile, show_path
from lodefs.chunkstore.repo.store import Store

# No URL has this: what an import knows to be unchanged says nothing to a push of the same objects
_IN_PLACE = b"#in-place"


class SourceDirectory:
    """One source directory of one attempt, used as a context. After an error it records what is in
    the store already. For one thread."""

    def __init__(
        self,
        root: bytes,
        session: PushSession,
        count: Callable[[int], None],
        part: PartScan | None = None,
        placement: Placement | None = None,
    ) -> None:
        """``count`` is called with the bytes of each file before the file is read; it may raise.
        ``part`` is what is read if it is not all. Nothing is remembered of it, and its chunks go
        into the packs of ``placement``, which goes on after it, also after an error."""
        self._session = session
        self._count = count
        self._opened = ExitStack()
        source = self._opened.enter_context(opened_source(root, session.options, session.store))
        self._source = source
        self.scan = part or source.scan
        self._is_part = part is not None
        placement, in_place = placement or session.placement(), session.options.in_place
        remembered = remembered_root(root) + (_IN_PLACE if in_place else b"")
        self.tree = PushTree(
            memory=NoStats() if self._is_part else StatCache.of(session.index, remembered),
            placement=placement,
            read_link=source.read_link,
            skip_unreadable=self.scan.skip_unreadable,
            skipped=self.scan.skipped,
            is_planned=self._is_part,
            stretch=None if part is None else part.stretch,
        )
        self.deduplicator = Deduplicator(
            placement, self.tree, session.progress, in_place, session.sound_places()
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is not None and not self._is_part:
                with contextlib.suppress(LodefsError):  # the first error is the one to report
                    self._session.uploader.stop()
                    self.tree.remember()
        finally:
            self._opened.close()

    def read(self) -> HashedDirectory:
        """Scans the source, reads what changed, and stores what is new."""
        from lodefs.chunkstore.push.workers import pool

        files = self._counted(self.tree.files(iter(self.scan)))
        first: list[SourceFile] = []
        size_bytes = 0
        for file in files:
            first.append(file)
            size_bytes += file.read_bytes
            if len(first) > pool.INLINE_FILES_MAX or size_bytes > pool.INLINE_SIZE_BYTES_MAX:
                break
        if first:
            self._session.learn()
            # Few files are read in this process
            found = (len(first), size_bytes) if self._source.survives_fork else (0, 0)
            readers = self._session.readers(*found)
            all_files, rate = chain(first, files), self._session.rate
            readers.run(self._source.root, all_files, self.deduplicator, self.tree.work, rate)
            self.deduplicator.seal()
            self.tree.finish()
        assert self.tree.root is not None
        return self.tree.root

    def top_names(self) -> list[bytes]:
        """Returns the names in the source, also of what is left out. Raises: OSError."""
        return self._source.top_names()

    def store_trees(self, root: HashedDirectory) -> TreeEntry:
        """Stores the trees that the store lacks. All packs are in the store afterwards."""
        session = self._session
        session.learn()
        writer = tree_writer(session, self.tree.memory)
        entry = writer.store(root)
        self.tree.remember()  # as much as possible while the last packs are under way
        session.uploader.finish()
        self.tree.remember()
        if not session.uploader.is_dry:
            session.index.add_trees(writer.new_places())
        return entry

    def _counted(self, files: Iterable[SourceFile]) -> Iterator[SourceFile]:
        progress = self._session.progress
        for file in files:
            progress.files_total += 1
            progress.bytes_total += file.read_bytes
            self._count(file.read_bytes)
            yield file


def tree_writer(session: PushSession, memory: StatCache) -> TreeWriter:
    """Returns a writer of trees into new packs."""
    placement = session.placement(TREE_PACK_SIZES_BYTES)
    return TreeWriter(TreePacker(placement, session.store.settings.chunking), memory)


class OpenedSource(NamedTuple):
    """A scan of a source, the function that reads the symlinks that it finds, and the name by which
    other processes open the source in the same state. Forked ones can if it ``survives_fork``."""

    scan: Scan | RemoteScan
    read_link: Callable[[bytes], bytes]
    root: bytes
    survives_fork: bool = True

    def top_names(self) -> list[bytes]:
        """Returns the names in the source, also of what is left out. Raises: OSError."""
        if isinstance(self.scan, RemoteScan):
            return self.scan.top_names
        return [os.fsencode(name) for name in os.listdir(self.root)]


@contextlib.contextmanager
def opened_source(root: bytes, options: PushOptions, store: Store) -> Iterator[OpenedSource]:
    """Opens a directory or a URL for a block. Raises: NotFound, NotADirectory, Denied,
    InvalidInput."""
    if is_url(root):
        with closing(open_remote(os.fsdecode(root))) as remote:
            _check_remote(remote, options.places_apart(store))
            scan = RemoteScan(remote, options.skip_unreadable, IgnoreRules(options.exclude))
            yield OpenedSource(scan, _no_link, remote.location.encode(), remote.survives_fork)
        return
    fd = open_root(root)
    try:
        yield OpenedSource(options.scan(root), partial(read_link, fd), root)
    finally:
        os.close(fd)


def _no_link(path: bytes) -> bytes:
    raise InvalidInput(f"{show_path(path)} is no symlink")


def real_root(source: str | os.PathLike[str]) -> bytes:
    """Returns the real path of a directory, or the URL of another source."""
    raw = os.fsencode(source)
    return raw.rstrip(b"/") if is_url(raw) else os.path.realpath(raw)


def source_root(source: str | os.PathLike[str], apart: Iterable[tuple[str, str]]) -> bytes:
    """Returns the real path of a directory to push, or the URL of another source, which is checked
    when it is opened. ``apart`` lists places that must not lie in it (paths, or URLs of other
    things), and what they are.

    Raises: NotFound, NotADirectory, InvalidInput, Denied.
    """
    root = real_root(source)
    if is_url(root):
        return root
    os.close(open_root(root))
    _check_filled(root)
    for place, what in apart:
        _check_apart(root, place, what)
    return root


def _check_remote(remote: RemoteFiles, apart: Iterable[tuple[str, str]]) -> None:
    """Raises: InvalidInput if a store lies in a source, or the source in it."""
    for place, what in apart:
        if remote.holds(place):
            raise InvalidInput(
                f"{what} ({place}) and the source {remote.url} lie in one another, so every push "
                "would change what is pushed: push a prefix that has nothing of the store"
            )


def _check_filled(root: bytes) -> None:
    """Raises: InvalidInput if the source is a directory whose pull has not finished."""
    if os.path.lexists(os.path.join(root, os.fsencode(PULL_STATE_DIR))):
        from lodefs.chunkstore.pull.target import command_to_end

        raise InvalidInput(
            f"a pull into {show_path(root)} has not finished, so it is incomplete: first repeat "
            f"`{command_to_end(root)}`, or delete {PULL_STATE_DIR} in it"
        )


def _check_apart(root: bytes, place: str, what: str) -> None:
    """Raises: InvalidInput if ``place`` (a path, or a URL of another thing) lies in the source."""
    place = place.removeprefix("file://")
    if not place.startswith("/"):
        return
    path = os.path.realpath(os.fsencode(place))
    if path == root or path.startswith(root.rstrip(b"/") + b"/"):
        raise InvalidInput(
            f"{what} ({show_path(path)}) lies in the directory that is pushed "
            f"({show_path(root)}), so every push would change it: keep it elsewhere"
        )
