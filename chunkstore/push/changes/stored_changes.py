"""Stores the contents of a list of changes, then applies the changes to an overlay."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count as numbers_from
from typing import BinaryIO

from lodefs.chunkstore.errors import NotADirectory, NotFound
from lodefs.chunkstore.format.names import Spec, parse_spec
from lodefs.chunkstore.format.tree import TreeEntry, symlink
from lodefs.chunkstore.push.archives.unpacking import Unpacking, based
from lodefs.chunkstore.push.changes.branch_commits import ChangesResult
from lodefs.chunkstore.push.changes.change import (
    Change,
    CopyFrom,
    MakeDirectory,
    Put,
    PutArchive,
    PutDirectory,
    PutLink,
    Remove,
    Rename,
    names_of,
)
from lodefs.chunkstore.push.changes.contents import LocalFile, local_file, rewound
from lodefs.chunkstore.push.changes.overlay import (
    ChangedDirectory,
    Names,
    Overlay,
    TreeReader,
    count,
)
from lodefs.chunkstore.push.changes.staging import LEARN_SIZE_BYTES_MIN, Staging
from lodefs.chunkstore.push.ignore_rules import IgnoreRules
from lodefs.chunkstore.push.limits import Quota
from lodefs.chunkstore.push.scanner import Private, Skipped, SourceNotes, refuse_private
from lodefs.chunkstore.push.session import PushSession
from lodefs.chunkstore.push.source_directory import SourceDirectory, real_root
from lodefs.chunkstore.repo.history import find

_WHOLE = (PutDirectory, PutArchive, CopyFrom)  # they replace what is at their path as a whole


class StreamStarts:
    """The starts of the streams in a list of changes, so that another attempt can read them
    again."""

    def __init__(self) -> None:
        self._starts: dict[tuple[int, int], int | None] = {}

    def opened(self, number: tuple[int, int], content: bytes | BinaryIO) -> BinaryIO:
        """Returns a content as a stream; ``number`` is that of its change, and within it. Raises:
        Unavailable if it was read and cannot be read again."""
        if not isinstance(content, bytes) and number not in self._starts:
            self._starts[number] = content.tell() if content.seekable() else None
            return content
        return rewound(content, self._starts.get(number))


class StoredChanges:
    """The changes of one attempt. One thread."""

    def __init__(
        self,
        session: PushSession,
        changes: Sequence[Change],
        starts: StreamStarts,
        quota: EarlyQuota,
        staging: Staging,
    ) -> None:
        self._session = session
        self._quota = quota
        self._changes = changes
        self._starts = starts
        self._staging = staging
        self._contents = staging.contents
        self._local: dict[int, LocalFile] = {}
        self._directories: dict[int, TreeEntry] = {}
        self._archives: dict[int, ChangedDirectory] = {}
        self._numbers = numbers_from(len(changes))  # of the contents of archives
        self.skipped: list[Skipped] = []
        self.notes = SourceNotes()
        self.excluded = 0
        self.files_read = 0
        self.new_bytes = 0

    @property
    def places(self) -> list[Names]:
        """The paths that are replaced as a whole, except the root."""
        puts = (one for one in self._changes if isinstance(one, _WHOLE))
        found = (names for one in puts for names in _places(one))
        return [names for names in found if names]

    def store(self) -> None:
        """Stores all contents and the trees of directories. All are in the store afterwards."""
        puts = {n: one.content for n, one in enumerate(self._changes) if isinstance(one, Put)}
        self._local = {n: local_file(c) for n, c in puts.items() if isinstance(c, os.PathLike)}
        self._note_private()
        self._quota.check_files({n: file.size_bytes for n, file in self._local.items()})
        directories = {n: o for n, o in enumerate(self._changes) if isinstance(o, PutDirectory)}
        if len(directories) + bool(self._local) > 1:
            self._session.readers(sys.maxsize, 0)  # as many as possible, before threads start
        archives = {n: one for n, one in enumerate(self._changes) if isinstance(one, PutArchive)}
        if archives or self._expected_bytes(puts.values()) > LEARN_SIZE_BYTES_MIN:
            self._session.learn()
        self._contents.read_files(list(self._local.items()))
        for n, content in puts.items():
            if not isinstance(content, os.PathLike):
                self._contents.read_stream(n, self._starts.opened((n, 0), content))
        for n, archive in archives.items():
            self._archives[n] = self._unpacked(n, archive)
        self._contents.seal()
        for n, change in directories.items():
            self._directories[n] = self._store_directory(n, change)
        self._session.uploader.finish()

    def apply(self) -> None:
        """Applies all changes in their order. Raises what the methods of Overlay raise."""
        overlay = self._staging.overlay
        for n, change in enumerate(self._changes):
            match change:
                case Put(path, _, executable):
                    self._put(overlay, names_of(path), n, executable=executable)
                case PutLink(path, target):
                    names = names_of(path)
                    overlay.put_file(names, symlink(names[-1], target))
                case PutDirectory(path):
                    self._put_directory(overlay, names_of(path, is_root_fine=True), n)
                case PutArchive(path):
                    self._put_archive(overlay, names_of(path, is_root_fine=True), n)
                case MakeDirectory(path):
                    overlay.make_directory(names_of(path))
                case Remove(path):
                    overlay.remove(names_of(path))
                case Rename(path, to):
                    overlay.rename(names_of(path), names_of(to))
                case CopyFrom(source, to):
                    spec = source if isinstance(source, Spec) else parse_spec(source)
                    overlay.put(names_of(to, is_root_fine=True), find(self._session.store, spec))

    def add_to(self, result: ChangesResult) -> None:
        """Adds the counts of local files to the result."""
        result.files_read += self.files_read
        result.new_bytes += self.new_bytes
        result.skipped, result.excluded = self.skipped, self.excluded
        result.notes = self.notes

    def _note_private(self) -> None:
        """Notes private files that are named one by one. Raises: InvalidInput if they are
        refused."""
        for file in self._local.values():
            if file.is_private and self._session.options.private is not Private.PUSH:
                raise refuse_private(file.path, file.mode)
            if file.is_private:
                self.notes.private(file.path)

    def _expected_bytes(self, contents: Iterable[object]) -> int:
        size_bytes = sum(file.size_bytes for file in self._local.values())
        for content in contents:
            if isinstance(content, bytes):
                size_bytes += len(content)
            elif not isinstance(content, os.PathLike):
                return sys.maxsize  # a stream may be of any length
        return size_bytes

    def _store_directory(self, n: int, change: PutDirectory) -> TreeEntry:
        root = real_root(change.source)
        with SourceDirectory(root, self._session, partial(self._quota.count, n)) as source:
            hashed = source.read()
            entry = source.store_trees(hashed)
            if self._session.uploader.is_dry:
                self._staging.unstored.add(hashed, source.tree.memory)
        self.skipped += source.scan.skipped
        self.notes.add(source.scan.notes)
        self.excluded += source.scan.ignore.excluded
        self.files_read += source.deduplicator.files_read
        self.new_bytes += source.deduplicator.new_bytes
        return entry

    def _unpacked(self, n: int, change: PutArchive) -> ChangedDirectory:
        options = self._session.options
        unpacking = Unpacking(
            self._contents,
            self._numbers,
            partial(self._quota.count, n),
            IgnoreRules(options.exclude),
            skip_unreadable=options.skip_unreadable,
        )
        for number, (name, stream) in enumerate(change.archives):
            opened = self._starts.opened((n, number), stream)
            unpacking.add(name, opened, change.size_bytes_max)
        self.skipped += unpacking.skipped
        self.excluded += unpacking.excluded
        return unpacking.root

    def _put_archive(self, overlay: Overlay, names: Names, n: int) -> None:
        item, there = self._archives[n], overlay.get(names)
        if isinstance(there, TreeEntry):
            based(item, there, self._staging.trees)
        overlay.put(names, item)

    def _put(self, overlay: Overlay, names: Names, n: int, *, executable: bool | None) -> None:
        if executable is None:
            executable = n in self._local and self._local[n].executable
        overlay.put_file(names, self._contents.staged(n, names[-1], executable=executable))

    def _put_directory(self, overlay: Overlay, names: Names, n: int) -> None:
        entry, there = self._directories[n], overlay.get(names)
        if not isinstance(there, TreeEntry) or not self._staging.is_same(entry, there):
            overlay.put(names, entry)


class EarlyQuota:
    """Checks the quota early: adds up what a list of changes brings to the tree ``root`` (None:
    there is none) of ``size_bytes``. It counts rather too little than too much; the commit checks
    the exact size. For one thread. Raises: InvalidInput for an invalid path of a change."""

    def __init__(
        self,
        quota: Quota,
        trees: TreeReader,
        root: TreeEntry | None,
        size_bytes: int,
        changes: Sequence[Change],
    ) -> None:
        self._quota = quota
        self._trees = trees
        self._root = root
        self._size_bytes = size_bytes
        self._changes = changes
        self._staying = _staying(changes)
        self._put_bytes = 0

    def check_files(self, sizes_bytes: Mapping[int, int]) -> None:
        """Checks the contents of changes whose sizes are known before they are read. Raises:
        OverQuota."""
        put_bytes = sum(sizes_bytes[number] for number in self._staying & sizes_bytes.keys())
        self._quota.check_put(put_bytes, lambda: self._kept_bytes)

    def count(self, number: int, more_bytes: int) -> None:
        """Counts more bytes of the content of change ``number``. Raises: OverQuota."""
        if number in self._staying:
            self._put_bytes += more_bytes
            self._quota.check_put(self._put_bytes, lambda: self._kept_bytes)

    @cached_property
    def _kept_bytes(self) -> int:
        """The bytes that no change replaces or moves."""
        if self._root is None:
            return 0
        overlay = Overlay(self._trees.read_tree, self._root)
        for names in (names for change in self._changes for names in _places(change)):
            if not names:
                return 0
            with suppress(NotFound, NotADirectory):
                overlay.remove(names)
        return self._size_bytes + count(self._trees, self._root, overlay.root).size_bytes


def _places(change: Change) -> Iterator[Names]:
    """Returns the paths that a change replaces, removes or moves."""
    match change:
        case Rename(path, to):
            yield names_of(path)
            yield names_of(to)
        case CopyFrom(_, to):
            yield names_of(to, is_root_fine=True)
        case _:
            yield names_of(change.path, is_root_fine=isinstance(change, _WHOLE))


def _staying(changes: Sequence[Change]) -> set[int]:
    """Returns the changes whose content no later change touches, not even in part."""
    later = _Touched()
    staying = set()
    for number in reversed(range(len(changes))):
        for names in _places(changes[number]):
            is_free = later.add(names)
            if is_free and isinstance(changes[number], Put | PutDirectory | PutArchive):
                staying.add(number)
    return staying


@dataclass(slots=True)
class _Touched:
    """A path, and the paths below it, that changes touch or that lie above those."""

    is_touched: bool = False
    below: dict[bytes, _Touched] = field(default_factory=dict)

    def add(self, names: Names) -> bool:
        """Adds a path. Returns whether neither it, nor a path above or below it, was touched."""
        node, is_free = self, not self.is_touched
        is_new = not names and not self.below
        for name in names:
            below = node.below.get(name)
            is_new = below is None
            if below is None:
                below = node.below[name] = _Touched()
            node = below
            is_free = is_free and not node.is_touched
        node.is_touched = True
        return is_free and is_new
