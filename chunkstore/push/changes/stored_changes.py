"""A list of changes: what they put is stored, then they are applied to an overlay."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import BinaryIO

from lodefs.chunkstore.format.names import Spec, parse_spec
from lodefs.chunkstore.format.tree import Entry, symlink
from lodefs.chunkstore.push.attempts import Desk
from lodefs.chunkstore.push.changes.change import (
    Change,
    CopyFrom,
    Put,
    PutDirectory,
    PutLink,
    Remove,
    Rename,
    names_of,
)
from lodefs.chunkstore.push.changes.contents import Contents, LocalFile, local_file, rewound
from lodefs.chunkstore.push.changes.early_quota import EarlyQuota
from lodefs.chunkstore.push.changes.overlay import Names, Overlay
from lodefs.chunkstore.push.changes.unstored_trees import TreeReader, UnstoredTrees
from lodefs.chunkstore.push.pack_writer import Placement
from lodefs.chunkstore.push.push_options import PushOptions
from lodefs.chunkstore.push.scanner import Private, Skipped, SourceNotes, refuse_private
from lodefs.chunkstore.push.source_directory import SourceDirectory
from lodefs.chunkstore.push.trees.proof import has_same_chunks
from lodefs.chunkstore.repo.history import find

LEARN_SIZE_BYTES_MIN = 8 << 20  # less is not worth to be looked for in the whole store


class StreamStarts:
    """Where the streams of a list of changes began, so that another attempt can read them again."""

    def __init__(self) -> None:
        self._starts: dict[int, int | None] = {}

    def opened(self, number: int, content: bytes | BinaryIO) -> BinaryIO:
        """The content of change ``number`` as a stream. Raises: Unavailable if it was read, and
        cannot be read again."""
        if not isinstance(content, bytes) and number not in self._starts:
            self._starts[number] = content.tell() if content.seekable() else None
            return content
        return rewound(content, self._starts.get(number))


class StoredChanges:
    """The changes of one attempt. One thread."""

    def __init__(
        self, desk: Desk, changes: Sequence[Change], starts: StreamStarts, quota: EarlyQuota
    ) -> None:
        self._desk = desk
        self._quota = quota
        self._changes = changes
        self._starts = starts
        placement = Placement(desk.index, desk.uploader)
        self._contents = Contents(placement, desk.store.settings.chunking, desk.progress)
        self._contents.count = quota.count
        self._local: dict[int, LocalFile] = {}
        self._directories: dict[int, Entry] = {}
        self._unstored = UnstoredTrees(desk.store.packs)
        self.skipped: list[Skipped] = []
        self.notes = SourceNotes()
        self.excluded = 0
        self.files_read = 0
        self.new_bytes = 0

    @property
    def trees(self) -> TreeReader:
        """Reads the trees of what was stored, or would have been, and of the store."""
        return self._unstored if self._desk.uploader.is_dry else self._desk.store.packs

    @property
    def places(self) -> list[Names]:
        """Paths that are replaced by directories, but for the root."""
        puts = (one for one in self._changes if isinstance(one, PutDirectory))
        found = (names_of(one.path, is_root_fine=True) for one in puts)
        return [names for names in found if names]

    def store(self, options: PushOptions) -> None:
        """Stores all contents, and the trees of directories: all are in the store then."""
        puts = {n: one.content for n, one in enumerate(self._changes) if isinstance(one, Put)}
        self._local = {n: local_file(c) for n, c in puts.items() if isinstance(c, os.PathLike)}
        self._note_private(options)
        directories = {n: o for n, o in enumerate(self._changes) if isinstance(o, PutDirectory)}
        if len(directories) + bool(self._local) > 1:
            self._desk.readers(sys.maxsize, 0)  # as many as there may be: threads start soon
        if self._expected_bytes(puts.values()) > LEARN_SIZE_BYTES_MIN:
            self._desk.learn()
        self._contents.read_files(list(self._local.items()), self._desk)
        for n, content in puts.items():
            if not isinstance(content, os.PathLike):
                self._contents.read_stream(n, self._starts.opened(n, content))
        self._contents.seal()
        self.files_read += self._contents.files_read
        self.new_bytes += self._contents.new_bytes
        for n, change in directories.items():
            self._directories[n] = self._store_directory(n, change, options)
        self._desk.uploader.finish()

    def apply(self, overlay: Overlay) -> None:
        """Applies all, in their order. Raises what the methods of Overlay do."""
        for n, change in enumerate(self._changes):
            match change:
                case Put(path, _, executable):
                    self._put(overlay, names_of(path), n, executable=executable)
                case PutLink(path, target):
                    names = names_of(path)
                    overlay.put_file(names, symlink(names[-1], target))
                case PutDirectory(path):
                    self._put_directory(overlay, names_of(path, is_root_fine=True), n)
                case Remove(path):
                    overlay.remove(names_of(path))
                case Rename(path, to):
                    overlay.rename(names_of(path), names_of(to))
                case CopyFrom(source, to):
                    spec = source if isinstance(source, Spec) else parse_spec(source)
                    overlay.put(names_of(to, is_root_fine=True), find(self._desk.store, spec))

    def _note_private(self, options: PushOptions) -> None:
        """Of files that are named one by one. Raises: InvalidInput for one that is refused."""
        for file in self._local.values():
            if file.is_private and options.private is not Private.PUSH:
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

    def _store_directory(self, n: int, change: PutDirectory, options: PushOptions) -> Entry:
        root = os.path.realpath(os.fsencode(change.source))
        source = SourceDirectory(root, self._desk, options.scan(root))
        source.count = partial(self._quota.count, n)
        try:
            hashed = source.read()
            entry = source.store_trees(hashed)
            if self._desk.uploader.is_dry:
                self._unstored.add(hashed, source.tree.memory)
        except BaseException:
            source.abandon()
            raise
        finally:
            source.close()
        self.skipped += source.scan.skipped
        self.notes.add(source.scan.notes)
        self.excluded += source.scan.ignore.excluded
        self.files_read += source.deduplicator.files_read
        self.new_bytes += source.deduplicator.new_bytes
        return entry

    def _put(self, overlay: Overlay, names: Names, n: int, *, executable: bool | None) -> None:
        if executable is None:
            executable = n in self._local and self._local[n].executable
        entry = self._contents.entry(n, names[-1], executable=executable)
        if not self._is_there(overlay, names, entry):
            overlay.put_file(names, entry)

    def _put_directory(self, overlay: Overlay, names: Names, n: int) -> None:
        if not self._is_there(overlay, names, self._directories[n]):
            overlay.put(names, self._directories[n])

    def _is_there(self, overlay: Overlay, names: Names, entry: Entry) -> bool:
        there = overlay.get(names)
        if not isinstance(there, Entry) or there.executable != entry.executable:
            return False
        return self.is_same(entry, there)

    def is_same(self, entry: Entry, there: Entry) -> bool:
        """Whether an entry of another writer leads to the same chunks as an own one: a digest alone
        is a claim."""
        if self._desk.uploader.is_dry:  # nothing new can be read from the store
            return there.kind is entry.kind and there.digest == entry.digest
        return has_same_chunks(self._desk.store.packs, entry, there)
