"""Changes over the tree of a base: only directories on changed paths are read.

All others, and files, are taken over as they are: by the segments that say where they lie.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from lodefs.chunkstore.errors import InvalidInput, NotADirectory, NotFound
from lodefs.chunkstore.format.tree import Entry, Kind
from lodefs.chunkstore.push.changes.change import shown

Names = tuple[bytes, ...]
ReadTree = Callable[[Entry], list[Entry]]


class ChangedDirectory:
    """A directory that may differ from ``base`` (None: it is new)."""

    __slots__ = ("base", "children")

    def __init__(self, base: Entry | None, children: dict[bytes, Entry | ChangedDirectory]) -> None:
        self.base = base
        self.children = children


Item = Entry | ChangedDirectory


def is_directory(item: Item | None) -> bool:
    """Whether there is something, and it is a directory."""
    return isinstance(item, ChangedDirectory) or (item is not None and item.kind is Kind.DIRECTORY)


class Overlay:
    """A tree in memory over one in a store. One thread.

    Methods raise NotADirectory for a path that leads through a file or symlink, and what
    ``read_tree`` raises.
    """

    def __init__(self, read_tree: ReadTree, root: Entry | None) -> None:
        self._read_tree = read_tree
        self.root: Item = ChangedDirectory(None, {}) if root is None else root

    def get(self, names: Names) -> Item | None:
        """What is at a path; None if nothing is."""
        item: Item | None = self.root
        for depth, name in enumerate(names):
            if item is None:
                return None
            item = self.children(item, names[:depth]).get(name)
        return item

    def children(self, item: Item, names: Names = ()) -> dict[bytes, Item]:
        """What is in a directory (``names``: its path, for the error), not to be changed."""
        if isinstance(item, ChangedDirectory):
            return item.children
        if item.kind is not Kind.DIRECTORY:
            raise NotADirectory(f"{shown(names)} is a {item.kind.name.lower()}, not a directory")
        return {entry.name: entry for entry in self._read_tree(item)}

    def put_file(self, names: Names, entry: Entry) -> None:
        """A file or symlink at a path. Raises: InvalidInput if a directory is there."""
        if is_directory(self.get(names)):
            raise InvalidInput(f"{shown(names)} is a directory: remove it first")
        self.put(names, entry)

    def put(self, names: Names, item: Item) -> None:
        """Anything at a path, in place of whatever is there. Directories above are made."""
        if not names:
            if not is_directory(item):
                raise InvalidInput("the root of a branch is a directory")
            self.root = replace(item, name=b"") if isinstance(item, Entry) else item
            return
        node = self._opened(names[:-1])
        node.children[names[-1]] = (
            replace(item, name=names[-1]) if isinstance(item, Entry) else item
        )

    def remove(self, names: Names) -> Item:
        """Gives what was there. Raises: NotFound."""
        if not names:
            raise InvalidInput("the root of a branch cannot be removed: delete the branch")
        item = self.get(names)
        if item is None:
            raise NotFound(f"{shown(names)} does not exist")
        del self._opened(names[:-1]).children[names[-1]]
        return item

    def rename(self, names: Names, to: Names) -> None:
        """Moves a file or directory. Raises: NotFound; InvalidInput if a directory would replace
        something, be replaced, or come into itself."""
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
        """The directory at a path, as one that is changed. It is made if nothing is there."""
        node = self.root = self._open(self.root, ())
        for depth, name in enumerate(names, start=1):
            below = self._open(node.children.get(name), names[:depth])
            node.children[name] = below
            node = below
        return node

    def _open(self, item: Item | None, names: Names) -> ChangedDirectory:
        if isinstance(item, ChangedDirectory):
            return item
        if item is None:
            return ChangedDirectory(None, {})
        return ChangedDirectory(item, self.children(item, names))
