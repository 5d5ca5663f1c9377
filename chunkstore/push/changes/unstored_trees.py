"""Trees of a dry run: those of source directories, which no store has, and all others."""

from __future__ import annotations

from typing import Protocol

from lodefs.chunkstore.format.names import Digest, PackId
from lodefs.chunkstore.format.tree import SAME_PACK, Entry, Kind, Segment, decode_tree
from lodefs.chunkstore.push.index.stat_cache import StatCache
from lodefs.chunkstore.push.trees.directories import HashedDirectory, contents_of, key_of


class TreeReader(Protocol):
    """Reads directories (PackReader, UnstoredTrees)."""

    def read_tree(self, entry: Entry) -> list[Entry]:
        """The entries of a directory. Raises: NotFound, Corrupt, UnknownFormat."""
        ...


class RecentTrees:
    """Keeps the directories that were read last: a large one takes long to decode. One thread."""

    def __init__(self, trees: TreeReader, trees_max: int = 8) -> None:
        self._trees = trees
        self._trees_max = trees_max
        self._recent: dict[tuple[Digest, tuple[Segment, ...]], list[Entry]] = {}

    def read_tree(self, entry: Entry) -> list[Entry]:
        """As TreeReader; the list is shared, and not to be changed."""
        key = entry.digest, entry.segments
        found = self._recent.pop(key, None)
        if found is None:
            found = self._trees.read_tree(entry)
        self._recent[key] = found
        if len(self._recent) > self._trees_max:
            del self._recent[next(iter(self._recent))]
        return found


class UnstoredTrees:
    """Directories are known by their digest from when the one above them was read. One thread."""

    def __init__(self, stored: TreeReader) -> None:
        self._stored = stored
        self._known: dict[Digest, tuple[HashedDirectory, bytes, StatCache]] = {}

    def add(self, root: HashedDirectory, memory: StatCache) -> None:
        """Makes a source directory known."""
        self._known[root.digest] = root, b"", memory

    def read_tree(self, entry: Entry) -> list[Entry]:
        """As TreeReader. Where directories of sources lie is made up."""
        known = self._known.get(entry.digest)
        if known is None:
            return self._stored.read_tree(entry)
        directory, key, memory = known
        files, children = contents_of(directory, key, memory)
        entries = decode_tree(files, SAME_PACK)
        for child in children:
            self._known.setdefault(child.digest, (child, key_of(key, child.name), memory))
            nowhere = (Segment(PackId(child.digest), 0, 1, 1),)
            entries.append(
                Entry(
                    child.name,
                    Kind.DIRECTORY,
                    size_bytes=1,
                    digest=child.digest,
                    segments=nowhere,
                )
            )
        return sorted(entries, key=lambda one: one.name)
