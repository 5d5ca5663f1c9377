"""Stores the trees of a push: those that the store does not have, the root last.

From the root down it is found which trees are there already: by their digest in the push index, or
where this machine has never seen the branch, in the trees of the branch's head. Below such a tree
nothing is looked at. The others are encoded from the bottom up, because a tree says where the
trees of its directories lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from chunkstore.chunking import ChunkingParams, cut
from chunkstore.compression import RAW, compress
from chunkstore.names import Digest, digest_of
from chunkstore.packing import Packer
from chunkstore.packreader import PackReader
from chunkstore.pushindex import IndexBroken, PushIndex, SourceMemory, TreePlace
from chunkstore.pushtree import Child
from chunkstore.segments import UNKNOWN, Layout, Run, choose, join, place_all
from chunkstore.tree import SAME_PACK, Entry, Kind, Segment, decode_tree, encode_tree

# Larger trees say the pack of everything, so that chunks of them can be used again elsewhere
WHOLE_SIZE_BYTES_MAX = 1 << 20
_ENTRY_SIZE_BYTES = 80  # about what an entry takes, besides its name
COMPRESSED_SIZE_BYTES_MIN = 256  # smaller trees are mostly digests, and do not shrink
MISSING_MAX = 8  # directories that are stored rather than looked for in the head
_FRESH = 1 << 63  # places from here on are serials of the packer: see packing.py


class _Placed(NamedTuple):
    """Where a tree lies: runs of places (serials of new chunks from _FRESH on)."""

    size_bytes: int
    runs: tuple[Run, ...] = ()
    segments: tuple[Segment, ...] = ()  # of a tree that was there already


@dataclass(slots=True)
class _Frame:
    """A directory whose tree has to be stored, and how far that is."""

    name: bytes
    digest: Digest
    files: bytes
    children: list[Child]
    key: bytes
    placed: dict[bytes, _Placed]  # of its directories, by name
    head: dict[bytes, Entry]  # the directories of its counterpart in the head
    next: int = 0  # child


@dataclass(slots=True)
class TreeWriter:
    """Puts trees into the packs of ``packer``, which has nothing but trees.

    ``head``: the root of the branch's head, if there is one.
    """

    packer: Packer
    params: ChunkingParams
    index: PushIndex
    memory: SourceMemory
    packs: PackReader
    head: Entry | None
    stored: int = 0  # trees
    raw_bytes: int = 0  # of new chunks
    _head_is_own: bool = False  # this machine pushed it, and so knows nearly all of its trees
    _new: dict[bytes, _Placed] = field(default_factory=dict)  # trees of this push, by digest

    def store(self, root: Child) -> Entry:
        """Stores what is missing; gives the root's entry. All packs are sealed then.

        Raises what the store does; IndexBroken.
        """
        if self.head is not None:
            self._head_is_own = bool(self.index.find_trees([self.head.digest]))
        placed = self._known([root]).get(root.name) or self._store_below(root)
        self.packer.seal()
        return self._directory(b"", root.digest, placed)

    def new_places(self) -> list[tuple[bytes, TreePlace]]:
        """Digest and place of the trees that were stored; after ``store``."""
        return [
            (digest, TreePlace(placed.size_bytes, self._segments(placed)))
            for digest, placed in self._new.items()
        ]

    def _store_below(self, root: Child) -> _Placed:
        """Stores a tree after all trees below it that are missing. No recursion: trees may be
        deeper than Python's stack."""
        frames = [self._frame(root, b"", self.head)]
        while True:
            frame = frames[-1]
            child = _next_missing(frame, self._new)
            if child is not None and child.node is not None and not child.node.children:
                frame.placed[child.name] = self._keep(child.digest, child.node.files)
                continue
            if child is not None:
                key = frame.key + b"\0" + child.name if frame.key else child.name
                frames.append(self._frame(child, key, frame.head.get(child.name)))
                continue
            placed = self._store_one(frame)
            frames.pop()
            if not frames:
                return placed
            frames[-1].placed[frame.name] = placed

    def _frame(self, child: Child, key: bytes, head: Entry | None) -> _Frame:
        if child.node is not None:
            files, children = child.node.files, child.node.children
        else:
            files, children = self._remembered(key, child.digest)
        placed = self._known(children)
        missing = [other for other in children if other.name not in placed]
        counterparts: dict[bytes, Entry] = {}
        if head is not None and self._worth_reading(missing):
            entries = self.packs.read_tree(head)
            counterparts = {e.name: e for e in entries if e.kind is Kind.DIRECTORY}
            for other in missing:
                entry = counterparts.get(other.name)
                if entry is not None and entry.digest == other.digest:
                    placed[other.name] = _Placed(entry.size_bytes, (), entry.segments)
        return _Frame(child.name, child.digest, files, children, key, placed, counterparts)

    def _worth_reading(self, missing: Sequence[Child]) -> bool:
        """Whether a tree of the head may hold directories that the index does not know. It mostly
        does not when this machine pushed the head, and those that are missing have changed."""
        return bool(missing) and (
            not self._head_is_own
            or len(missing) > MISSING_MAX
            or any(child.node is None for child in missing)
        )

    def _remembered(self, key: bytes, digest: Digest) -> tuple[bytes, list[Child]]:
        """What is in a directory that did not change but whose tree was never stored: the push
        that read it died."""
        state, details = self.memory.lookup(key), self.memory.details(key)
        if state is None or details is None or state.digest != digest:
            raise IndexBroken("the push index has lost a directory that did not change")
        names = details.subdirectories.split(b"\0") if details.subdirectories else []
        size = len(digest)
        return details.files, [
            Child(name, Digest(state.children[n * size : (n + 1) * size]), None)
            for n, name in enumerate(names)
        ]

    def _known(self, children: Sequence[Child]) -> dict[bytes, _Placed]:
        """Those of the directories whose trees the index knows to be in the store, by name."""
        places = self.index.find_trees([child.digest for child in children])
        return {
            child.name: _Placed(place.size_bytes, (), place.segments)
            for child in children
            if (place := places.get(child.digest)) is not None
        }

    def _store_one(self, frame: _Frame) -> _Placed:
        """Encodes and stores the tree of a directory whose directories have places."""
        if frame.digest in self._new:
            return self._new[frame.digest]
        children = frame.children
        if not children:
            data, whole = frame.files, False
        else:
            names = sum(len(child.name) + _ENTRY_SIZE_BYTES for child in children)
            whole = self._make_room(len(frame.files) + names, frame)
            directories = [
                self._directory(child.name, child.digest, frame.placed[child.name])
                for child in children
            ]
            data = encode_tree([*decode_tree(frame.files, SAME_PACK), *directories])
        return self._keep(frame.digest, data, whole=whole)

    def _keep(self, digest: Digest, data: bytes, *, whole: bool = False) -> _Placed:
        self.stored += 1
        placed = self._new[digest] = self._put(data, whole=whole)
        return placed

    def _make_room(self, size_bytes: int, frame: _Frame) -> bool:
        """Sees to it that a tree that may name the pack it lies in lies wholly in that pack.
        Whether it does name it."""
        packer = self.packer
        open_from = _FRESH + packer.sealed
        names_open = any(
            run.place >= open_from for placed in frame.placed.values() for run in placed.runs
        )
        chunks_max = 2 * size_bytes // self.params.size_bytes_min + 1
        roomy = size_bytes <= WHOLE_SIZE_BYTES_MAX and packer.has_room(2 * size_bytes, chunks_max)
        if names_open and not roomy:
            packer.seal()
            return False
        return names_open

    def _put(self, data: bytes, *, whole: bool) -> _Placed:
        """Stores a tree's bytes, cut like a file. Chunks that the store has are used again, unless
        it must lie ``whole`` in the open pack."""
        if len(data) <= self.params.size_bytes_min:  # nearly all are: no need to look
            stored = (RAW, data) if len(data) < COMPRESSED_SIZE_BYTES_MIN else compress(data)
            serial = self.packer.add(digest_of(data), *stored, len(data))
            self.raw_bytes += len(data)
            return _Placed(len(data), (Run(_FRESH + serial, 1, len(data)),))
        ends = cut(data, self.params)
        starts = [0, *ends[:-1]]
        pieces = [memoryview(data)[a:b] for a, b in zip(starts, ends, strict=True)]
        ids = [digest_of(piece) for piece in pieces]
        places = [UNKNOWN] * len(ids)
        if len(ids) > 1 and not whole:
            known = self.index.find(ids)
            places = [known.get(chunk_id, UNKNOWN) for chunk_id in ids]
        fresh = _FRESH + self.packer.serial
        wanted = choose(places, Layout(), fresh)
        for piece, chunk_id, is_wanted in zip(pieces, ids, wanted, strict=True):
            if is_wanted:
                self.packer.add(chunk_id, *compress(piece), len(piece))
                self.raw_bytes += len(piece)
        sizes = [len(piece) for piece in pieces]
        runs, _ = place_all(places, sizes, wanted, fresh, Layout())
        return _Placed(len(data), tuple(runs))

    def _directory(self, name: bytes, digest: Digest, placed: _Placed) -> Entry:
        return Entry(
            name,
            Kind.DIRECTORY,
            size_bytes=placed.size_bytes,
            digest=digest,
            segments=self._segments(placed),
        )

    def _segments(self, placed: _Placed) -> tuple[Segment, ...]:
        if placed.segments:
            return placed.segments
        found: list[Segment] = []
        for run in placed.runs:
            if run.place >= _FRESH:
                found += self.packer.segments(run.place - _FRESH, run.chunks)
            else:
                found.append(self.index.segment(run))
        return join(found)


def _next_missing(frame: _Frame, new: dict[bytes, _Placed]) -> Child | None:
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
