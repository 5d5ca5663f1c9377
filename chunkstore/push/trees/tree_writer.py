"""Stores the trees of a push: those that the store does not have, the root last.

From the root down it is found which trees this machine knows to be there, by their digest in the
push index. Below such a tree nothing is looked at. The others are encoded from the bottom up,
because a tree says where the trees of its directories lie; one whose chunks the store has, as one
that another machine stored, is used again.

A tree of the store is never used because it claims a digest: the digest does not say where the
files lie, so such a tree could lead to other bytes. That its chunks are the same is a proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lodefs.chunkstore.format.names import Digest, PackId
from lodefs.chunkstore.format.tree import SAME_PACK, Entry, decode_tree, encode_tree
from lodefs.chunkstore.push.index.push_index import TreePlace
from lodefs.chunkstore.push.index.stat_cache import StatCache
from lodefs.chunkstore.push.trees.directories import HashedDirectory, contents_of, key_of
from lodefs.chunkstore.push.trees.tree_packer import PlacedTree, TreePacker

_ENTRY_SIZE_BYTES = 80  # about what an entry takes, besides its name
CANDIDATES_MAX = 8  # packs in which a tree that names its own pack is looked for


@dataclass(slots=True)
class _Frame:
    """A directory whose tree has to be stored, and how far that is."""

    name: bytes
    digest: Digest
    files: bytes
    children: list[HashedDirectory]
    key: bytes
    is_new: bool  # it names chunks that this push stored, so the store cannot have its tree
    placed: dict[bytes, PlacedTree]  # of its directories, by name
    next: int = 0  # child


@dataclass(slots=True)
class TreeWriter:
    """Stores the trees that are missing, the root last."""

    packer: TreePacker
    memory: StatCache
    _new: dict[bytes, PlacedTree] = field(default_factory=dict)  # trees of this push, by digest

    def store(self, root: HashedDirectory) -> Entry:
        """Stores what is missing; gives the root's entry. All packs are sealed then.

        Raises what the store does; IndexBroken.
        """
        placed = self._known([root]).get(root.name) or self._store_below(root)
        self.packer.placement.packer.seal()
        return self.packer.entry(b"", root.digest, placed)

    def new_places(self) -> list[tuple[bytes, TreePlace]]:
        """Digest and place of the trees that were stored; after ``store``."""
        return [
            (digest, TreePlace(placed.size_bytes, self.packer.segments(placed)))
            for digest, placed in self._new.items()
        ]

    def _store_below(self, root: HashedDirectory) -> PlacedTree:
        """Stores a tree after all trees below it that are missing. No recursion: trees may be
        deeper than Python's stack."""
        frames = [self._frame(root, b"")]
        while True:
            frame = frames[-1]
            child = _next_missing(frame, self._new)
            if child is not None and child.node is not None and not child.node.children:
                node = child.node
                frame.placed[child.name] = self._store_files(
                    child.digest, node.files, is_new=node.serial > 0
                )
                continue
            if child is not None:
                frames.append(self._frame(child, key_of(frame.key, child.name)))
                continue
            placed = self._store_one(frame)
            frames.pop()
            if not frames:
                return placed
            frames[-1].placed[frame.name] = placed

    def _frame(self, child: HashedDirectory, key: bytes) -> _Frame:
        files, children = contents_of(child, key, self.memory)
        is_new = child.node is not None and child.node.serial > 0
        known = self._known(children)
        return _Frame(child.name, child.digest, files, children, key, is_new, known)

    def _known(self, children: Sequence[HashedDirectory]) -> dict[bytes, PlacedTree]:
        """Those of the directories whose trees the index knows to be in the store, by name."""
        places = self.packer.placement.index.find_trees([child.digest for child in children])
        return {
            child.name: PlacedTree(place.size_bytes, (), place.segments)
            for child in children
            if (place := places.get(child.digest)) is not None
        }

    def _store_one(self, frame: _Frame) -> PlacedTree:
        """Encodes and stores the tree of a directory whose directories have places."""
        if frame.digest in self._new:
            return self._new[frame.digest]
        if not frame.children:
            return self._store_files(frame.digest, frame.files, is_new=frame.is_new)
        is_new = frame.is_new or any(not placed.segments for placed in frame.placed.values())
        if not is_new and (found := self._find_with_directories(frame)) is not None:
            return self._remember(frame.digest, found)
        names = sum(len(child.name) + _ENTRY_SIZE_BYTES for child in frame.children)
        whole = self.packer.make_room(len(frame.files) + names, frame.placed.values())
        data = encode_tree(self._entries(frame))
        return self._keep(frame.digest, data, whole=whole)

    def _store_files(self, digest: Digest, files: bytes, *, is_new: bool) -> PlacedTree:
        """Stores the tree of a directory without directories, unless the store has it."""
        if not is_new and (found := self.packer.find(files, None)) is not None:
            return self._remember(digest, found)
        return self._keep(digest, files)

    def _entries(self, frame: _Frame) -> list[Entry]:
        directories = [
            self.packer.entry(child.name, child.digest, frame.placed[child.name])
            for child in frame.children
        ]
        return [*decode_tree(frame.files, SAME_PACK), *directories]

    def _find_with_directories(self, frame: _Frame) -> PlacedTree | None:
        """Where the store has the tree of a directory all of which was there already. A tree mostly
        lies behind that of its last directory, and calls that pack its own."""
        entries = self._entries(frame)
        candidates: dict[PackId, None] = {}
        for child in reversed(frame.children):
            candidates |= dict.fromkeys(s.pack for s in frame.placed[child.name].segments)
            if len(candidates) >= CANDIDATES_MAX:
                break
        for pack in [*list(candidates)[:CANDIDATES_MAX], None]:
            found = self.packer.find(encode_tree(entries, own_pack=pack), pack)
            if found is not None:
                return found
        return None

    def _remember(self, digest: Digest, placed: PlacedTree) -> PlacedTree:
        self._new[digest] = placed
        return placed

    def _keep(self, digest: Digest, data: bytes, *, whole: bool = False) -> PlacedTree:
        return self._remember(digest, self.packer.put(data, whole=whole))


def _next_missing(frame: _Frame, new: dict[bytes, PlacedTree]) -> HashedDirectory | None:
    """The next directory in ``frame`` whose tree has no place yet."""
    while frame.next < len(frame.children):
        child = frame.children[frame.next]
        frame.next += 1
        if child.name in frame.placed:
            continue
        if child.digest in new:
            frame.placed[child.name] = new[child.digest]
            continue
        return child
    return None
