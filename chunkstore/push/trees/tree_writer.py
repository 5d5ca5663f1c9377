"""Stores the trees of a push that the store does not have, the root last.

From the root down, it finds which trees this machine knows to be stored, by their digests in the
push index. It looks at nothing below such a tree. The others are encoded from the bottom up,
because a tree says where the trees of its subdirectories lie. A tree whose chunks are in the store,
for example from another machine, is used again.

It never uses a tree of the store because that claims a digest: the digest does not say where the
files lie, so such a tree could lead to other bytes. Equal chunks are a proof: a pack's index lists
the right chunk ids, or its pack has another id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from blake3 import blake3

from lodefs.chunkstore.errors import Changed, Corrupt, NotFound, Purged, UnknownFormat
from lodefs.chunkstore.format.chunking import ChunkingParams, cut
from lodefs.chunkstore.format.compression import RAW, compress
from lodefs.chunkstore.format.names import ID_BYTES, Digest, PackId, digest_of
from lodefs.chunkstore.format.tree import (
    SAME_PACK,
    Kind,
    Segment,
    TreeEntry,
    decode_tree,
    encode_tree,
)
from lodefs.chunkstore.push.fragmentation import (
    UNKNOWN,
    Layout,
    Run,
    chunks_to_store,
    join,
    longest_runs,
    place_all,
)
from lodefs.chunkstore.push.index.push_index import TreePlace
from lodefs.chunkstore.push.index.stat_cache import StatCache
from lodefs.chunkstore.push.pack_writer import FRESH, Placement
from lodefs.chunkstore.push.trees.directories import HashedDirectory, contents_of, key_of
from lodefs.chunkstore.repo.pack_reader import PackReader
from lodefs.chunkstore.types import Buffer

_ENTRY_SIZE_BYTES = 80  # roughly the size of an entry without its name
CANDIDATES_MAX = 8  # packs that are searched for a tree that names its own pack


@dataclass(slots=True)
class _Frame:
    """A directory whose tree must be stored, and how far the writer has come with it."""

    name: bytes
    digest: Digest
    files: bytes
    children: list[HashedDirectory]
    key: bytes
    is_new: bool  # it names chunks that this push stored, so the store cannot have its tree
    placed: dict[bytes, PlacedTree]  # its subdirectories, by name
    next: int = 0  # the next child


@dataclass(slots=True)
class TreeWriter:
    """Stores the missing trees, the root last."""

    packer: TreePacker
    memory: StatCache
    _new: dict[bytes, PlacedTree] = field(default_factory=dict)  # new trees, by digest

    def store(self, root: HashedDirectory) -> TreeEntry:
        """Stores what is missing and returns the root's entry. All packs are sealed then.

        Raises: IndexBroken; what the store raises.
        """
        placed = self._known([root]).get(root.name) or self._store_below(root)
        self.packer.placement.packer.seal()
        return self.packer.entry(b"", root.digest, placed)

    def new_places(self) -> list[tuple[bytes, TreePlace]]:
        """Returns digest and place of the stored trees. Call it after ``store``."""
        return [
            (digest, TreePlace(placed.size_bytes, self.packer.segments(placed)))
            for digest, placed in self._new.items()
        ]

    def _store_below(self, root: HashedDirectory) -> PlacedTree:
        """Stores a tree after all missing trees below it. It does not recurse, since trees may be
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
        """Returns those directories whose trees are in the store by the index, by name."""
        places = self.packer.placement.index.find_trees([child.digest for child in children])
        return {
            child.name: PlacedTree(place.size_bytes, (), place.segments)
            for child in children
            if (place := places.get(child.digest)) is not None
        }

    def _store_one(self, frame: _Frame) -> PlacedTree:
        """Encodes and stores the tree of a directory whose subdirectories have places."""
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
        """Stores the tree of a directory without subdirectories, unless the store has it."""
        if not is_new and (found := self.packer.find(files, None)) is not None:
            return self._remember(digest, found)
        return self._keep(digest, files)

    def _entries(self, frame: _Frame) -> list[TreeEntry]:
        directories = [
            self.packer.entry(child.name, child.digest, frame.placed[child.name])
            for child in frame.children
        ]
        return [*decode_tree(frame.files, SAME_PACK), *directories]

    def _find_with_directories(self, frame: _Frame) -> PlacedTree | None:
        """Finds the stored tree of a directory whose contents were all stored before. A tree mostly
        lies right after that of its last subdirectory, and calls that pack its own."""
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
    """Returns the next directory in ``frame`` whose tree has no place yet."""
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


# Larger trees name all packs, so that their chunks can be used again elsewhere
WHOLE_SIZE_BYTES_MAX = 1 << 20
COMPRESSED_SIZE_BYTES_MIN = 256  # smaller trees are mostly digests, and do not shrink


class PlacedTree(NamedTuple):
    """The places of a tree's chunks, as runs (serials of new chunks from FRESH on)."""

    size_bytes: int
    runs: tuple[Run, ...] = ()
    segments: tuple[Segment, ...] = ()  # set for a tree that was stored before


@dataclass(slots=True)
class TreePacker:
    """Stores trees as bytes. For one thread."""

    placement: Placement
    params: ChunkingParams
    stored: int = 0  # number of trees
    raw_bytes: int = 0  # bytes of new chunks

    def find(self, data: bytes, pack: PackId | None) -> PlacedTree | None:
        """Finds a tree's bytes in the store by their chunks: all in ``pack`` if one is given,
        otherwise in any pack. Returns None if the store lacks some, or if there would be too many
        runs."""
        ids, pieces = self._cut(data)
        known = self.placement.index.find_all(ids)
        if len(known) < len(set(ids)):
            return None
        options = [known[chunk_id] for chunk_id in ids]
        if pack is not None:
            segment = self.placement.index.segment
            options = [{p for p in few if segment(Run(p, 1, 1)).pack == pack} for few in options]
        places = longest_runs(options, Layout())
        if UNKNOWN in places or any(chunks_to_store(places, Layout(), FRESH)):
            return None
        sizes, none = [len(piece) for piece in pieces], [False] * len(pieces)
        runs, _ = place_all(places, sizes, none, FRESH, Layout())
        return PlacedTree(len(data), (), join([self.placement.index.segment(run) for run in runs]))

    def make_room(self, size_bytes: int, children: Iterable[PlacedTree]) -> bool:
        """Makes room for a tree of about ``size_bytes`` that names trees in the open pack: the pack
        has room for it, or is sealed and gets an id. Returns whether the tree names the open pack;
        then ``put`` it ``whole``."""
        packer = self.placement.packer
        open_from = FRESH + packer.sealed
        names_open = any(run.place >= open_from for placed in children for run in placed.runs)
        chunks_max = 2 * size_bytes // self.params.size_bytes_min + 1
        roomy = size_bytes <= WHOLE_SIZE_BYTES_MAX and packer.has_room(2 * size_bytes, chunks_max)
        if names_open and not roomy:
            packer.seal()
            return False
        return names_open

    def put(self, data: bytes, *, whole: bool = False) -> PlacedTree:
        """Stores a tree's bytes, cut like a file. It uses stored chunks again, unless the tree must
        lie ``whole`` in the open pack."""
        self.stored += 1
        if len(data) <= self.params.size_bytes_min:  # nearly all are this small and have one chunk
            stored = (RAW, data) if len(data) < COMPRESSED_SIZE_BYTES_MIN else compress(data)
            serial = self.placement.packer.add(digest_of(data), *stored, len(data))
            self.raw_bytes += len(data)
            return PlacedTree(len(data), (Run(FRESH + serial, 1, len(data)),))
        ids, pieces = self._cut(data)
        places = [UNKNOWN] * len(ids)
        if len(ids) > 1 and not whole:
            known = self.placement.index.find(ids)
            places = [known.get(chunk_id, UNKNOWN) for chunk_id in ids]
        fresh = FRESH + self.placement.packer.serial
        wanted = chunks_to_store(places, Layout(), fresh)
        for piece, chunk_id, is_wanted in zip(pieces, ids, wanted, strict=True):
            if is_wanted:
                self.placement.packer.add(chunk_id, *compress(piece), len(piece))
                self.raw_bytes += len(piece)
        sizes = [len(piece) for piece in pieces]
        runs, _ = place_all(places, sizes, wanted, fresh, Layout())
        return PlacedTree(len(data), tuple(runs))

    def _cut(self, data: bytes) -> tuple[list[Digest], list[Buffer]]:
        """Returns the ids and bytes of a tree's chunks."""
        if len(data) <= self.params.size_bytes_min:
            return [digest_of(data)], [data]
        ends = cut(data, self.params)
        pieces = [memoryview(data)[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        return [digest_of(piece) for piece in pieces], list(pieces)

    def entry(self, name: bytes, digest: Digest, placed: PlacedTree) -> TreeEntry:
        return TreeEntry(
            name,
            Kind.DIRECTORY,
            size_bytes=placed.size_bytes,
            digest=digest,
            segments=self.segments(placed),
        )

    def segments(self, placed: PlacedTree) -> tuple[Segment, ...]:
        if placed.segments:
            return placed.segments
        return join([found for run in placed.runs for found in self.placement.segments(run)])


def has_same_chunks(packs: PackReader, own: TreeEntry, claimed: TreeEntry) -> bool:
    """Whether the directory ``claimed`` leads to the same chunks as ``own``, at every depth.

    It reads only trees and pack indexes that differ. It returns False, too, if those of ``claimed``
    cannot be read or their bytes are gone. Raises: Unavailable, Denied.
    """
    stack = [(own, claimed)]
    try:
        while stack:
            mine, theirs = stack.pop()
            if mine.digest != theirs.digest or mine.kind is not theirs.kind:
                return False
            if (mine.size_bytes, mine.segments) == (theirs.size_bytes, theirs.segments):
                continue
            if mine.kind is Kind.DIRECTORY:
                children = packs.read_tree(mine), packs.read_tree(theirs)
                stack += zip(*children, strict=True)  # equally many, since their digests are equal
            elif _chunks_of(packs, mine.segments) != _chunks_of(packs, theirs.segments):
                return False
    except (Corrupt, NotFound, Purged, UnknownFormat, Changed):
        return False
    return True


def _chunks_of(packs: PackReader, segments: Sequence[Segment]) -> bytes:
    """Returns a digest of the ids and sizes of the chunks in ``segments``. Raises: Corrupt, Purged
    if a pack lacks the chunks of a segment, or their bytes."""
    ids, sizes = blake3(), blake3()
    for pack, first, count, size_bytes in segments:
        index = packs.index(pack)
        index.check_run(first, count, size_bytes)
        index.check_there(first, count)
        ids.update(index.ids[first * ID_BYTES : (first + count) * ID_BYTES])
        sizes.update(index.raw_sizes[first : first + count].tobytes())
    return ids.digest() + sizes.digest()
