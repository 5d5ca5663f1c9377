"""Stores the trees of an overlay: those of directories that changed, the root last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from lodefs.chunkstore.format.names import ID_BYTES
from lodefs.chunkstore.format.tree import Entry, Kind, encode_tree, tree_digest
from lodefs.chunkstore.push.changes.overlay import ChangedDirectory, Item
from lodefs.chunkstore.push.changes.unstored_trees import TreeReader
from lodefs.chunkstore.push.trees.tree_packer import PlacedTree, TreePacker
from lodefs.chunkstore.repo.pack_reader import PackReader

_ENTRY_SIZE_BYTES = 80  # about what an entry takes, besides its name


@dataclass(slots=True)
class _ChangedFrame:
    """A changed directory, and how far it is."""

    name: bytes
    node: ChangedDirectory
    below: Iterator[
        tuple[bytes, ChangedDirectory]
    ]  # changed directories in it that are still to be stored
    entries: list[Entry]  # of a tree that was just stored only name and digest are right
    placed: dict[bytes, PlacedTree] = field(default_factory=dict)  # these trees, by name


class OverlayWriter:
    """Encodes changed directories from the bottom up. One thread."""

    def __init__(self, packer: TreePacker, packs: PackReader, trees: TreeReader) -> None:
        self._packer = packer
        self._packs = packs
        self._trees = trees

    def store(self, root: Item) -> Entry:
        """The root's entry. All packs are sealed then. Raises what the store does."""
        if isinstance(root, Entry):
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

    def _store_one(self, frame: _ChangedFrame) -> tuple[Entry, PlacedTree | None]:
        """Name and digest of a directory, and where its tree is now; None: where it was."""
        node, entries, placed = frame.node, frame.entries, frame.placed
        entries.sort(key=lambda entry: entry.name)
        digest, base = tree_digest(entries), node.base
        is_same = base is not None and digest == base.digest and not placed
        if base is not None and is_same and entries == self._trees.read_tree(base):
            return replace(base, name=frame.name), None
        size_bytes = sum(len(entry.name) + _ENTRY_SIZE_BYTES for entry in entries)
        whole = self._packer.make_room(size_bytes, placed.values())
        data = encode_tree([self._placed(entry, placed) for entry in entries])
        if base is not None and base.size_bytes > self._packer.params.size_bytes_min:
            self._learn(base)
        return Entry(frame.name, Kind.DIRECTORY, digest=digest), self._packer.put(data, whole=whole)

    def _placed(self, entry: Entry, placed: dict[bytes, PlacedTree]) -> Entry:
        tree = placed.get(entry.name)
        return entry if tree is None else self._packer.entry(entry.name, entry.digest, tree)

    def _learn(self, base: Entry) -> None:
        """Has the index know the chunks of a tree's older form, whatever this machine pushed: then
        only those that differ are stored."""
        for pack, first, count, _ in base.segments:
            ids = self._packs.index(pack).ids[first * ID_BYTES : (first + count) * ID_BYTES]
            self._packer.placement.index.add_run(pack, first, ids)


def _frame(name: bytes, node: ChangedDirectory) -> _ChangedFrame:
    below = {
        name: item for name, item in node.children.items() if isinstance(item, ChangedDirectory)
    }
    entries = [item for item in node.children.values() if isinstance(item, Entry)]
    return _ChangedFrame(name, node, iter(below.items()), entries)
