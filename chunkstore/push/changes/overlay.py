"""Changes over the tree of a base. Only directories on changed paths are read.

All other directories and all files are taken over with their segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from lodefs.chunkstore.errors import (
    Changed,
    Corrupt,
    InvalidInput,
    NotADirectory,
    NotFound,
    UnknownFormat,
)
from lodefs.chunkstore.format.commit import LARGE_SIZE_BYTES_MIN, Commit, Large
from lodefs.chunkstore.format.names import ID_BYTES, Digest, PackId
from lodefs.chunkstore.format.tree import (
    SAME_PACK,
    Kind,
    Segment,
    TreeEntry,
    decode_tree,
    encode_tree,
    tree_digest,
)
from lodefs.chunkstore.push.changes.change import shown
from lodefs.chunkstore.push.index.stat_cache import StatCache
from lodefs.chunkstore.push.limits import Changes
from lodefs.chunkstore.push.trees.directories import (
    HashedDirectory,
    Totals,
    contents_of,
    key_of,
)
from lodefs.chunkstore.push.trees.tree_writer import PlacedTree, TreePacker
from lodefs.chunkstore.repo.pack_reader import PackReader

Names = tuple[bytes, ...]
ReadTree = Callable[[TreeEntry], list[TreeEntry]]


class ChangedDirectory:
    """A directory that may differ from ``base`` (None: it is new)."""

    __slots__ = ("base", "children")

    def __init__(
        self, base: TreeEntry | None, children: dict[bytes, TreeEntry | ChangedDirectory]
    ) -> None:
        self.base = base
        self.children = children

    def read_children(self) -> dict[bytes, TreeEntry | ChangedDirectory]:
        """Returns the children, to be stored; directories that do not hold them read them now."""
        return self.children


Item = TreeEntry | ChangedDirectory


def is_directory(item: Item | None) -> bool:
    """Whether ``item`` is a directory. None is not."""
    return isinstance(item, ChangedDirectory) or (item is not None and item.kind is Kind.DIRECTORY)


class Overlay:
    """A tree in memory over one in a store. One thread.

    Methods raise NotADirectory for a path that leads through a file or symlink, and what
    ``read_tree`` raises.
    """

    def __init__(self, read_tree: ReadTree, root: Item | None) -> None:
        self._read_tree = read_tree
        self.root: Item = ChangedDirectory(None, {}) if root is None else root

    def get(self, names: Names) -> Item | None:
        """Returns the item at a path, or None."""
        item: Item | None = self.root
        for depth, name in enumerate(names):
            if item is None:
                return None
            if isinstance(item, ChangedDirectory):  # no slice: paths may have thousands of names
                item = item.children.get(name)
            else:
                item = self.children(item, names[:depth]).get(name)
        return item

    def children(self, item: Item, names: Names = ()) -> dict[bytes, Item]:
        """Returns the items of a directory, which the caller must not change. ``names`` is its
        path, for the error."""
        if isinstance(item, ChangedDirectory):
            return item.children
        if item.kind is not Kind.DIRECTORY:
            raise NotADirectory(f"{shown(names)} is a {item.kind.name.lower()}, not a directory")
        return {entry.name: entry for entry in self._read_tree(item)}

    def put_file(self, names: Names, entry: TreeEntry) -> None:
        """Puts a file or symlink at a path. Raises: InvalidInput if a directory is there."""
        if is_directory(self.get(names)):
            raise InvalidInput(f"{shown(names)} is a directory: remove it first")
        self.put(names, entry)

    def put(self, names: Names, item: Item) -> None:
        """Puts any item at a path, in place of whatever is there. Makes the directories above."""
        if not names:
            if not is_directory(item):
                raise InvalidInput("the root of a branch is a directory")
            self.root = (
                msgspec.structs.replace(item, name=b"") if isinstance(item, TreeEntry) else item
            )
            return
        node = self._opened(names[:-1])
        node.children[names[-1]] = (
            msgspec.structs.replace(item, name=names[-1]) if isinstance(item, TreeEntry) else item
        )

    def make_directory(self, names: Names) -> None:
        """Makes a directory at a path. Raises: InvalidInput if a file or symlink is there."""
        there = self.get(names)
        if there is None:
            self.put(names, ChangedDirectory(None, {}))
        elif not is_directory(there):
            raise InvalidInput(f"{shown(names)} is not a directory: remove it first")

    def remove(self, names: Names) -> Item:
        """Removes the item at a path and returns it. Raises: NotFound."""
        if not names:
            raise InvalidInput("the root of a branch cannot be removed: delete the branch")
        item = self.get(names)
        if item is None:
            raise NotFound(f"{shown(names)} does not exist")
        del self._opened(names[:-1]).children[names[-1]]
        return item

    def rename(self, names: Names, to: Names) -> None:
        """Moves a file or directory. Raises: NotFound; InvalidInput if a directory would replace
        something, be replaced, or move into itself."""
        item = self.get(names)
        if item is not None and names == to:
            return
        if item is not None and to[: len(names)] == names:
            raise InvalidInput(f"{shown(names)} cannot be moved into itself: {shown(to)}")
        there = self.get(to)
        if there is not None and (is_directory(there) or is_directory(item)):
            raise InvalidInput(f"{shown(to)} exists: remove it first")
        self.put(to, self.remove(names))

    def _opened(self, names: Names) -> ChangedDirectory:
        """Returns the directory at a path, ready to be changed. Makes it if nothing is there."""
        node = self.root = self._open(self.root, ())
        for depth, name in enumerate(names, start=1):
            below = node.children.get(name)
            if not isinstance(below, ChangedDirectory):
                below = node.children[name] = self._open(below, names[:depth])
            node = below
        return node

    def _open(self, item: Item | None, names: Names) -> ChangedDirectory:
        if isinstance(item, ChangedDirectory):
            return item
        if item is None:
            return ChangedDirectory(None, {})
        return ChangedDirectory(item, self.children(item, names))


class TreeReader(Protocol):
    """Reads directories (PackReader, UnstoredTrees)."""

    def read_tree(self, entry: TreeEntry) -> list[TreeEntry]:
        """Returns the entries of a directory. Raises: NotFound, Corrupt, UnknownFormat."""
        ...


class RecentTrees:
    """Keeps the directories that were read last, since a large one takes long to decode. For one
    thread."""

    def __init__(self, trees: TreeReader, trees_max: int = 8) -> None:
        self._trees = trees
        self._trees_max = trees_max
        self._recent: dict[tuple[Digest, tuple[Segment, ...]], list[TreeEntry]] = {}

    def read_tree(self, entry: TreeEntry) -> list[TreeEntry]:
        """Implements TreeReader. The list is shared; callers must not change it."""
        key = entry.digest, entry.segments
        found = self._recent.pop(key, None)
        if found is None:
            found = self._trees.read_tree(entry)
        self._recent[key] = found
        if len(self._recent) > self._trees_max:
            del self._recent[next(iter(self._recent))]
        return found


class UnstoredTrees:
    """Reads source directories that are not stored, by their digests, which it learns when it reads
    the parent. For one thread."""

    def __init__(self, stored: TreeReader) -> None:
        self._stored = stored
        self._known: dict[Digest, tuple[HashedDirectory, bytes, StatCache]] = {}

    def add(self, root: HashedDirectory, memory: StatCache) -> None:
        """Adds a source directory."""
        self._known[root.digest] = root, b"", memory

    def read_tree(self, entry: TreeEntry) -> list[TreeEntry]:
        """Implements TreeReader. The segments of source directories are made up."""
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
                TreeEntry(
                    child.name, Kind.DIRECTORY, size_bytes=1, digest=child.digest, segments=nowhere
                )
            )
        return sorted(entries, key=lambda one: one.name)


@dataclass(slots=True)
class Counts:
    """Entries of all kinds that were added and removed, and files by what happened to them."""

    files: int = 0  # with symlinks
    directories: int = 0
    size_bytes: int = 0
    large_files: int = 0
    large_size_bytes: int = 0
    added_files: int = 0
    added_bytes: int = 0
    changed_files: int = 0
    changed_bytes: int = 0
    removed_files: int = 0
    removed_bytes: int = 0

    @property
    def changes(self) -> Changes:
        """The counts of files alone."""
        return Changes(
            self.added_files,
            self.added_bytes,
            self.changed_files,
            self.changed_bytes,
            self.removed_files,
            self.removed_bytes,
        )

    def applied(self, commit: Commit) -> Commit:
        """Returns the commit with its totals after the change."""
        large = commit.large
        return replace(
            commit,
            files=commit.files + self.files,
            directories=commit.directories + self.directories,
            size_bytes=commit.size_bytes + self.size_bytes,
            large=Large(large.files + self.large_files, large.size_bytes + self.large_size_bytes),
        )

    def _count(self, item: Item | None, sign: int) -> None:
        if isinstance(item, ChangedDirectory) or (item is not None and item.kind is Kind.DIRECTORY):
            self.directories += sign
        elif item is not None:
            self.files += sign
            size_bytes = _size_of(item)
            self.size_bytes += sign * size_bytes
            if size_bytes >= LARGE_SIZE_BYTES_MIN:
                self.large_files += sign
                self.large_size_bytes += sign * size_bytes

    def add(self, before: Item | None, after: Item | None) -> None:
        """Counts one name that is in both trees, or in one of them."""
        self._count(before, -1)
        self._count(after, 1)
        old, new = _file(before), _file(after)
        if old is None and new is not None:
            self.added_files += 1
            self.added_bytes += _size_of(new)
        elif old is not None and new is None:
            self.removed_files += 1
            self.removed_bytes += _size_of(old)
        elif old is not None and new is not None and not is_equal(old, new):
            self.changed_files += 1
            self.changed_bytes += _size_of(new)


def count(
    trees: TreeReader, before: Item | None, after: Item | None, *, removed: bool = True
) -> Counts:
    """Counts what differs between two trees, including their roots. Without ``removed``, names that
    are gone from a directory are not counted. Raises what read_tree raises."""
    counts = Counts()
    stack: list[tuple[Item | None, Item | None]] = [(before, after)]
    while stack:
        old, new = stack.pop()
        counts.add(old, new)
        was, now = children_of(trees, old), children_of(trees, new)
        # A directory may have a million names. Most are the same objects, so pick the others first
        both = [(one, now.get(name)) for name, one in was.items() if now.get(name) is not one]
        stack += [
            (one, other)
            for one, other in both
            if not is_equal(one, other) and (removed or other is not None)
        ]
        stack += [(None, other) for name, other in now.items() if name not in was]
    return counts


def changes_between(
    trees: TreeReader, head: Commit | None, root: TreeEntry, totals: Totals
) -> Changes | None:
    """Returns what pushing the directory ``root`` changes in a branch at ``head``; None if the
    trees of the head cannot be read. Removed directories are not read: their counts follow from the
    totals. Raises: IndexBroken, Unavailable, Denied."""
    files = totals.files + totals.symlinks
    if head is None:
        return Changes(added_files=files, added_bytes=totals.size_bytes)
    try:
        found = count(trees, head.root, root, removed=False)
    except (Corrupt, NotFound, UnknownFormat, Changed):
        return None
    kept_bytes = totals.size_bytes - found.size_bytes
    return replace(
        found.changes,
        removed_files=max(0, head.files - (files - found.changes.added_files)),
        removed_bytes=max(0, head.size_bytes - kept_bytes),
    )


def count_files(trees: TreeReader, item: Item | None, at_most: int) -> int:
    """Counts the files and symlinks in a tree, but stops at ``at_most`` and reads no further."""
    files, stack = 0, [item]
    while stack and files <= at_most:
        one = stack.pop()
        files += _file(one) is not None
        below = children_of(trees, one).values()
        stack += [child for child in below if is_directory(child)]
        files += len(below) - sum(map(is_directory, below))
    return files


def duplicate(item: Item) -> Item:
    """Returns a copy that does not change with the original."""
    if isinstance(item, TreeEntry):
        return item
    copy = ChangedDirectory(item.base, dict(item.children))
    stack = [copy]
    while stack:
        directory = stack.pop()
        for name, child in directory.children.items():
            if isinstance(child, ChangedDirectory):
                below = ChangedDirectory(child.base, dict(child.children))
                directory.children[name] = below
                stack.append(below)
    return copy


def is_equal(a: Item | None, b: Item | None) -> bool:
    """Whether two entries are the same to a reader, wherever their bytes lie."""
    if not isinstance(a, TreeEntry) or not isinstance(b, TreeEntry):
        return a is b
    return (a.kind, a.executable, a.digest) == (b.kind, b.executable, b.digest)


def children_of(trees: TreeReader, item: Item | None) -> dict[bytes, Item]:
    """Returns the items of a directory; none for anything else."""
    if isinstance(item, ChangedDirectory):
        return item.children
    if item is None or item.kind is not Kind.DIRECTORY:
        return {}
    return {entry.name: entry for entry in trees.read_tree(item)}


def _file(item: Item | None) -> TreeEntry | None:
    return item if isinstance(item, TreeEntry) and item.kind is not Kind.DIRECTORY else None


def _size_of(entry: TreeEntry) -> int:
    return entry.size_bytes if entry.kind is Kind.FILE else 0


_ENTRY_SIZE_BYTES = 80  # roughly the size of an entry without its name


@dataclass(slots=True)
class _ChangedFrame:
    """A changed directory, and how far the writer has come with it."""

    name: bytes
    node: ChangedDirectory
    below: Iterator[
        tuple[bytes, ChangedDirectory]
    ]  # its changed directories that are not stored yet
    entries: list[TreeEntry]  # trees stored just now: only name and digest are right
    placed: dict[bytes, PlacedTree] = field(default_factory=dict)  # these trees, by name


class OverlayWriter:
    """Encodes changed directories from the bottom up. One thread."""

    def __init__(self, packer: TreePacker, packs: PackReader, trees: TreeReader) -> None:
        self._packer = packer
        self._packs = packs
        self._trees = trees

    def store(self, root: Item) -> TreeEntry:
        """Stores the tree and returns the root's entry. All packs are sealed then. Raises what the
        store raises."""
        if isinstance(root, TreeEntry):
            return root
        frames = [_frame(b"", root)]
        while True:
            frame = frames[-1]
            if below := next(frame.below, None):
                frames.append(_frame(*below))
                continue
            frames.pop()
            entry, placed = self._store_one(frame)
            if not frames:
                self._packer.placement.packer.seal()
                return entry if placed is None else self._packer.entry(b"", entry.digest, placed)
            frames[-1].entries.append(entry)
            if placed is not None:
                frames[-1].placed[frame.name] = placed

    def _store_one(self, frame: _ChangedFrame) -> tuple[TreeEntry, PlacedTree | None]:
        """Returns the name and digest of a directory, and its tree's new place; None if it did not
        move."""
        node, entries, placed = frame.node, frame.entries, frame.placed
        entries.sort(key=lambda entry: entry.name)
        digest, base = tree_digest(entries), node.base
        is_same = base is not None and digest == base.digest and not placed
        if base is not None and is_same and entries == self._trees.read_tree(base):
            return msgspec.structs.replace(base, name=frame.name), None
        size_bytes = sum(len(entry.name) + _ENTRY_SIZE_BYTES for entry in entries)
        whole = self._packer.make_room(size_bytes, placed.values())
        data = encode_tree([self._placed(entry, placed) for entry in entries])
        if base is not None and base.size_bytes > self._packer.params.size_bytes_min:
            self._learn(base)
        return TreeEntry(frame.name, Kind.DIRECTORY, digest=digest), self._packer.put(
            data, whole=whole
        )

    def _placed(self, entry: TreeEntry, placed: dict[bytes, PlacedTree]) -> TreeEntry:
        tree = placed.get(entry.name)
        return entry if tree is None else self._packer.entry(entry.name, entry.digest, tree)

    def _learn(self, base: TreeEntry) -> None:
        """Adds the chunks of a tree's older form to the index, so that only those that differ are
        stored, even if another machine pushed it."""
        for pack, first, count, _ in base.segments:
            ids = self._packs.index(pack).ids[first * ID_BYTES : (first + count) * ID_BYTES]
            self._packer.placement.index.add_run(pack, first, ids)


def _frame(name: bytes, node: ChangedDirectory) -> _ChangedFrame:
    children = node.read_children()
    below = {name: item for name, item in children.items() if isinstance(item, ChangedDirectory)}
    entries = [item for item in children.values() if isinstance(item, TreeEntry)]
    return _ChangedFrame(name, node, iter(below.items()), entries)
