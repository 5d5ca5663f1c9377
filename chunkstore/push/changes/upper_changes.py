"""The changes that an upper directory makes to its base, as a commit takes them and as a list.

Both follow from the entries of the upper directory and the trees of the base. The list reads a file
only if its size does not tell whether it differs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from blake3 import blake3

from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.format.tree import Kind, TreeEntry, symlink
from lodefs.chunkstore.push.changes.change import (
    Change,
    CopyFrom,
    MakeDirectory,
    Put,
    PutLink,
    Remove,
)
from lodefs.chunkstore.push.changes.contents import LocalFile
from lodefs.chunkstore.push.changes.overlay import Names
from lodefs.chunkstore.push.changes.upper_directory import (
    Place,
    UpperBase,
    UpperEntry,
    UpperKind,
    walk_upper,
)
from lodefs.chunkstore.push.scanner import SET_ID, Skipped
from lodefs.chunkstore.push.workers.source_files import Source, source_error
from lodefs.chunkstore.repo.history import Change as Difference
from lodefs.chunkstore.repo.history import ChangeKind
from lodefs.chunkstore.system.safe_open import closing

BLOCK_SIZE_BYTES = 4 << 20  # of a compared file in memory
_KINDS = {
    UpperKind.FILE: Kind.FILE,
    UpperKind.SYMLINK: Kind.SYMLINK,
    UpperKind.DIRECTORY: Kind.DIRECTORY,
}


@dataclass(frozen=True, slots=True)
class Renamed:
    """A directory of the base that was moved. Changes inside it are listed separately."""

    path: bytes
    source: bytes  # its path in the base
    entry: TreeEntry


@dataclass(frozen=True, slots=True)
class UpperChanges:
    """The changes in the upper directory ``upper`` (a path without symlinks) to ``base``."""

    upper: bytes
    base: UpperBase
    entries: list[UpperEntry] = field(default_factory=list)  # each directory before its contents

    @property
    def changes(self) -> list[Change]:
        """Returns the changes that make the mounted directory of the base, in order. They may
        include files that did not change."""
        return [change for entry in self.entries for change in self._changes_of(entry)]

    @property
    def skipped(self) -> list[Skipped]:
        """Returns what no commit can hold."""
        return [
            Skipped.of_kind(one.path, one.mode)
            for one in self.entries
            if one.kind is UpperKind.OTHER
        ]

    @property
    def hard_linked_files(self) -> int:
        """The files with several names. In a commit each name is a file of its own."""
        files = (one for one in self.entries if one.kind is UpperKind.FILE)
        return sum(one.links > 1 for one in files)

    @property
    def set_id_files(self) -> int:
        """The files with a setuid or setgid bit, which no commit keeps."""
        files = (one for one in self.entries if one.kind is UpperKind.FILE)
        return sum(bool(one.mode & SET_ID) for one in files)

    def listed(self) -> Iterator[Difference | Renamed]:
        """Yields the differences from the base, by path. Raises: Denied, NotFound, SourceChanged,
        Unavailable for a file that cannot be read; what reading trees raises."""
        yield from _Listing(self).run()

    def _changes_of(self, entry: UpperEntry) -> Iterator[Change]:
        path = _joined(self.base.spec.path, entry.path)
        if entry.beneath is not None and _is_hidden(entry):
            yield Remove(path)
        if entry.kind is UpperKind.FILE:
            local = os.path.join(self.upper, entry.path)
            yield Put(path, LocalFile(local, entry.size_bytes, entry.mode), entry.executable)
        elif entry.kind is UpperKind.SYMLINK:
            yield PutLink(path, entry.target)
        elif entry.kind is UpperKind.DIRECTORY and entry.shows is None:
            yield MakeDirectory(path)
        elif entry.shows is not None and entry.is_renamed:
            spec = self.base.spec
            source = _joined(spec.path, b"/".join(entry.shows.path))
            yield CopyFrom(Spec(spec.repo, spec.rev, source), path)


def read_upper(
    upper: os.PathLike[str], base: UpperBase, *, xattr_prefix: bytes, without: bytes = b""
) -> UpperChanges:
    """Returns what an upper directory of overlayfs holds, without the path ``without``. The names
    of its attributes begin with ``xattr_prefix``. Reads no file. Raises as ``walk_upper`` does."""
    path = os.path.realpath(os.fsencode(upper))
    return UpperChanges(path, base, list(walk_upper(path, base, xattr_prefix, without)))


def _is_hidden(entry: UpperEntry) -> bool:
    """Whether an entry removes what is beneath it without replacing it."""
    assert entry.beneath is not None
    if entry.kind in (UpperKind.FILE, UpperKind.SYMLINK):
        return entry.beneath.entry.kind is Kind.DIRECTORY
    return entry.shows is None


class _Listing:
    """Finds the differences. For one thread."""

    def __init__(self, found: UpperChanges) -> None:
        self._trees = found.base.trees
        self._upper = found.upper
        self._now = {one.names: one for one in found.entries}
        # A renamed directory does not count as removed from its old path
        self._moved = {one.shows.path for one in found.entries if one.is_renamed and one.shows}
        self._replaced: dict[Names, Place] = {}  # by path: directories that were replaced

    def run(self) -> Iterator[Difference | Renamed]:
        for names in sorted(self._now):
            yield from self._of(self._now[names])

    def _of(self, entry: UpperEntry) -> Iterator[Difference | Renamed]:
        before = entry.beneath or self._replaced.get(entry.names)
        if before is not None and before.path in self._moved:
            before = None
        after = _after(entry)
        if entry.is_renamed and entry.shows is not None:
            yield Renamed(entry.path, b"/".join(entry.shows.path), entry.shows.entry)
            after = None  # the item that it replaced is gone
        if before is None:
            if after is not None:
                yield Difference(ChangeKind.ADDED, entry.path, None, after)
        elif after is None:
            yield Difference(ChangeKind.REMOVED, entry.path, before.entry, None)
            yield from self._gone_below(entry.names, before)
        elif before.entry.kind is not after.kind:
            yield Difference(ChangeKind.TYPE_CHANGED, entry.path, before.entry, after)
            yield from self._gone_below(entry.names, before)
        elif after.kind is Kind.DIRECTORY:
            if entry.shows is None:
                yield from self._gone_below(entry.names, before)
        elif self._differs(entry, before.entry, after):
            yield Difference(ChangeKind.CHANGED, entry.path, before.entry, after)

    def _gone_below(self, names: Names, place: Place) -> Iterator[Difference]:
        """Yields what was in a directory that no longer shows, at any depth. Names that exist again
        are compared later, in their order."""
        stack = [self._children(names, place)]
        while stack:
            found = next(stack[-1], None)
            if found is None:
                stack.pop()
                continue
            below, child = found
            if child.path in self._moved:
                continue
            if below in self._now:
                self._replaced[below] = child
                continue
            yield Difference(ChangeKind.REMOVED, b"/".join(below), child.entry, None)
            stack.append(self._children(below, child))

    def _children(self, names: Names, place: Place) -> Iterator[tuple[Names, Place]]:
        if place.entry.kind is Kind.DIRECTORY:
            for child in self._trees.read_tree(place.entry):
                yield (*names, child.name), Place((*place.path, child.name), child)

    def _differs(self, entry: UpperEntry, before: TreeEntry, after: TreeEntry) -> bool:
        """Whether two files or two symlinks differ."""
        if (before.size_bytes, before.executable) != (after.size_bytes, after.executable):
            return True
        if after.kind is Kind.SYMLINK:
            return before.digest != after.digest
        return self._digest(entry.path) != before.digest

    def _digest(self, path: bytes) -> bytes:
        source = Source(self._upper)
        try:
            with closing(source.open(path)) as fd, open(fd, "rb", 0, closefd=False) as file:
                hasher = blake3(max_threads=blake3.AUTO)
                while block := file.read(BLOCK_SIZE_BYTES):
                    hasher.update(block)
                return hasher.digest()
        except OSError as error:
            raise source_error(error, path) from error
        finally:
            source.close()


def _after(entry: UpperEntry) -> TreeEntry | None:
    """Returns the entry that is there now, without a digest unless it is a symlink."""
    kind = _KINDS.get(entry.kind)
    if kind is None:
        return None
    if kind is Kind.SYMLINK:
        return symlink(entry.names[-1], entry.target)
    size_bytes = entry.size_bytes if kind is Kind.FILE else 0
    return TreeEntry(entry.names[-1], kind, entry.executable, size_bytes)


def _joined(above: bytes, path: bytes) -> bytes:
    return above + b"/" + path if above else path
