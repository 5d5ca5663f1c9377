"""What an overlay changes: files by what became of them, and the totals of the commit.

Only directories that differ are read; one that was added or removed with all below it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lodefs.chunkstore.format.commit import LARGE_SIZE_BYTES_MIN, Commit, Large
from lodefs.chunkstore.format.tree import Entry, Kind
from lodefs.chunkstore.push.change_counts import Changes
from lodefs.chunkstore.push.changes.overlay import ChangedDirectory, Item, is_directory
from lodefs.chunkstore.push.changes.unstored_trees import TreeReader


@dataclass(slots=True)
class Counts:
    """What came (+) and went (-), of all kinds; and files by what became of them."""

    files: int = 0  # symlinks too
    directories: int = 0
    size_bytes: int = 0
    large_files: int = 0
    large_size_bytes: int = 0
    changes: Changes = field(default_factory=Changes)

    def applied(self, commit: Commit) -> Commit:
        """A commit with the totals that it has after the change."""
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
        """Counts one name in both trees."""
        self._count(before, -1)
        self._count(after, 1)
        old, new, now = _file(before), _file(after), self.changes
        if old is None and new is not None:
            self.changes = replace(
                now, added_files=now.added_files + 1, added_bytes=now.added_bytes + _size_of(new)
            )
        elif old is not None and new is None:
            self.changes = replace(
                now,
                removed_files=now.removed_files + 1,
                removed_bytes=now.removed_bytes + _size_of(old),
            )
        elif old is not None and new is not None and not is_equal(old, new):
            self.changes = replace(
                now,
                changed_files=now.changed_files + 1,
                changed_bytes=now.changed_bytes + _size_of(new),
            )


def count(trees: TreeReader, before: Item | None, after: Item | None) -> Counts:
    """What differs between two trees, their roots included. Raises what read_tree raises."""
    counts = Counts()
    stack: list[tuple[Item | None, Item | None]] = [(before, after)]
    while stack:
        old, new = stack.pop()
        counts.add(old, new)
        was, now = children_of(trees, old), children_of(trees, new)
        # Most are the same objects, in directories of a million maybe: the others are picked first
        both = [(one, now.get(name)) for name, one in was.items() if now.get(name) is not one]
        stack += [(one, other) for one, other in both if not is_equal(one, other)]
        stack += [(None, other) for name, other in now.items() if name not in was]
    return counts


def count_files(trees: TreeReader, item: Item | None, at_most: int) -> int:
    """How many files and symlinks there are in a tree; of more than ``at_most`` only that, as
    not all of it is read then."""
    files, stack = 0, [item]
    while stack and files <= at_most:
        one = stack.pop()
        files += _file(one) is not None
        below = children_of(trees, one).values()
        stack += [child for child in below if is_directory(child)]
        files += len(below) - sum(map(is_directory, below))
    return files


def is_equal(a: Item | None, b: Item | None) -> bool:
    """Whether two entries are the same to a reader; where their bytes lie does not count."""
    if not isinstance(a, Entry) or not isinstance(b, Entry):
        return a is b
    return (a.kind, a.executable, a.digest) == (b.kind, b.executable, b.digest)


def children_of(trees: TreeReader, item: Item | None) -> dict[bytes, Item]:
    """What is in a directory; nothing is in anything else."""
    if isinstance(item, ChangedDirectory):
        return item.children
    if item is None or item.kind is not Kind.DIRECTORY:
        return {}
    return {entry.name: entry for entry in trees.read_tree(item)}


def _file(item: Item | None) -> Entry | None:
    return item if isinstance(item, Entry) and item.kind is not Kind.DIRECTORY else None


def _size_of(entry: Entry) -> int:
    return entry.size_bytes if entry.kind is Kind.FILE else 0
