"""The trees of a directory, byte for byte as a push of it stored them.

A tree's stored form says where the chunks of its files and the trees below it lie. Index shards
have that information, so the form follows from the directory, from the leaves up. If the store has
a chunk in several places, the longest runs are chosen, as a push does. That may be another form,
whose chunks nobody needs.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from blake3 import blake3

from lodefs.chunkstore.errors import LodefsError, SourceChanged
from lodefs.chunkstore.format.chunking import ChunkingParams, cut
from lodefs.chunkstore.format.index_shard import PackChunks, chunk_ids
from lodefs.chunkstore.format.names import ChunkId, Digest, PackId, digest_of
from lodefs.chunkstore.format.pack import PACK_CHUNKS_LIMIT
from lodefs.chunkstore.format.tree import (
    EMPTY_DIGEST,
    Kind,
    Segment,
    TreeEntry,
    encode_tree,
    symlink,
    tree_digest,
)
from lodefs.chunkstore.push.fragmentation import UNKNOWN, Layout, join, longest_runs
from lodefs.chunkstore.push.scanner import EXECUTABLE, SYMLINK, Scan, ScannedDirectory, read_link
from lodefs.chunkstore.repair.sources.file_chunks import chunks_of_file
from lodefs.chunkstore.types import Buffer

Listed = Callable[[], Iterable[PackChunks]]


@dataclass(frozen=True, slots=True)
class _ReadFile:
    """A file that was read: its entry, and the ids and sizes of its chunks."""

    entry: TreeEntry
    ids: list[ChunkId]
    sizes: list[int]


@dataclass(slots=True)
class _Directory:
    """A directory: its entries, its possible forms, and where its tree lies (None: unknown)."""

    found: ScannedDirectory
    files: list[_ReadFile] = field(default_factory=list)
    forms: list[tuple[PackId | None, list[bytes]]] = field(default_factory=list)  # own pack, pieces
    digest: Digest | None = None
    placed: TreeEntry | None = None


class _ChunkPlaces:
    """The places of chunks by index shards. It holds only those that were asked for."""

    def __init__(self, listed: Listed) -> None:
        self._listed = listed
        self._packs: list[PackId] = []
        self._numbers: dict[PackId, int] = {}
        self._places: dict[ChunkId, set[int]] = {}

    def look(self, ids: Collection[ChunkId]) -> None:
        """Reads all shards once for these chunks."""
        wanted = {chunk_id: set[int]() for chunk_id in ids if chunk_id not in self._places}
        for pack in self._listed() if wanted else ():
            for n, chunk_id in enumerate(chunk_ids(pack)):
                places = wanted.get(chunk_id)
                if places is not None:
                    places.add(self._number(pack.pack_id) * (PACK_CHUNKS_LIMIT + 1) + n)
        self._places.update(wanted)

    def segments(
        self, ids: Sequence[ChunkId], sizes: Sequence[int], pack: PackId | None = None
    ) -> tuple[Segment, ...] | None:
        """Returns the segments of consecutive chunks, all in ``pack`` if one is given; None if the
        store does not have them."""
        options = [self._places[chunk_id] for chunk_id in ids]
        if pack is not None:
            options = [{at for at in some if self._at(at)[0] == pack} for some in options]
        places = longest_runs(options, Layout())
        if UNKNOWN in places:
            return None
        rows = zip(places, sizes, strict=True)
        return join([Segment(*self._at(at), 1, size) for at, size in rows])

    def _number(self, pack: PackId) -> int:
        if pack not in self._numbers:
            self._numbers[pack] = len(self._packs)
            self._packs.append(pack)
        return self._numbers[pack]

    def _at(self, place: int) -> tuple[PackId, int]:
        number, first = divmod(place, PACK_CHUNKS_LIMIT + 1)
        return self._packs[number], first


def tree_chunks(
    root: bytes, params: ChunkingParams, listed: Listed, note: Callable[[str], None]
) -> dict[ChunkId, bytes]:
    """Returns the chunks that the trees of a directory may have. ``listed`` yields all packs of a
    store; it is called once for the files, and once for each level of directories. If the store
    lacks a file, there are no chunks of its directory and of those above. ``note`` is called for
    files that changed while they were read."""
    levels: dict[int, list[_Directory]] = defaultdict(list)
    by_path: dict[bytes, _Directory] = {}
    places = _ChunkPlaces(listed)
    for one in _read(root, params, note):
        levels[one.found.depth].append(one)
        by_path[one.found.path] = one
    places.look({chunk for one in by_path.values() for file in one.files for chunk in file.ids})
    chunks: dict[ChunkId, bytes] = {}
    for depth in sorted(levels, reverse=True):
        for one in levels[depth]:
            _encode(one, by_path, places, params)
            chunks |= {_id_of(piece): piece for _, pieces in one.forms for piece in pieces}
        level = (piece for one in levels[depth] for _, pieces in one.forms for piece in pieces)
        places.look({_id_of(piece) for piece in level})
        for one in levels[depth]:
            _place(one, places)
    return chunks


def _read(root: bytes, params: ChunkingParams, note: Callable[[str], None]) -> Iterator[_Directory]:
    """Yields all directories with their files, as far as they can be read."""
    scan = Scan(root, skip_unreadable=True)
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for found in scan:
            one = _Directory(found)
            for name, mode in zip(found.columns.names, found.columns.modes, strict=True):
                path = found.path + b"/" + name if found.path else name
                try:
                    if mode == SYMLINK:
                        one.files.append(_ReadFile(symlink(name, read_link(fd, path)), [], []))
                    else:
                        where = os.path.join(root, path)
                        one.files.append(_read_file(where, name, params, mode=mode))
                except SourceChanged as error:
                    note(str(error))
                # Gone, or not readable for us: leave it out
                except (OSError, ValueError, LodefsError):
                    continue
            yield one
    finally:
        os.close(fd)


def _read_file(path: bytes, name: bytes, params: ChunkingParams, *, mode: int) -> _ReadFile:
    ids, sizes, hasher = [], [], blake3()
    for _, chunk in chunks_of_file(path, params):
        ids.append(_id_of(chunk))
        sizes.append(len(chunk))
        hasher.update(chunk)
    digest = Digest(hasher.digest()) if sizes else EMPTY_DIGEST
    return _ReadFile(TreeEntry(name, Kind.FILE, mode == EXECUTABLE, sum(sizes), digest), ids, sizes)


def _encode(
    one: _Directory, by_path: dict[bytes, _Directory], places: _ChunkPlaces, params: ChunkingParams
) -> None:
    """Builds the possible forms of the tree: it calls a pack its own if that holds trees below
    it."""
    entries: list[TreeEntry] = []
    for file in one.files:
        segments = places.segments(file.ids, file.sizes)
        if segments is None:
            return
        entries.append(_with(file.entry, file.entry.name, segments))
    packs: dict[PackId | None, None] = {}
    for name in reversed(one.found.subdirectories):
        path = one.found.path + b"/" + name if one.found.path else name
        below = by_path.get(path)
        if below is None or below.placed is None:
            return
        entries.append(_with(below.placed, name, below.placed.segments))
        packs |= dict.fromkeys(segment.pack for segment in below.placed.segments)
    one.digest = tree_digest(entries)
    for pack in (*packs, None):
        data = encode_tree(entries, own_pack=pack)
        ends = [0, *cut(data, params)]
        one.forms.append((pack, [data[a:b] for a, b in pairwise(ends)]))


def _place(one: _Directory, places: _ChunkPlaces) -> None:
    """Sets where the tree lies: the first of its forms that the store has."""
    for pack, pieces in one.forms:
        sizes = [len(piece) for piece in pieces]
        segments = places.segments([_id_of(piece) for piece in pieces], sizes, pack)
        if segments is not None and one.digest is not None:
            one.placed = TreeEntry(
                b"", Kind.DIRECTORY, size_bytes=sum(sizes), digest=one.digest, segments=segments
            )
            return


def _with(entry: TreeEntry, name: bytes, segments: tuple[Segment, ...]) -> TreeEntry:
    return TreeEntry(
        name, entry.kind, entry.executable, entry.size_bytes, entry.digest, segments, entry.target
    )


def _id_of(data: Buffer) -> ChunkId:
    return ChunkId(digest_of(data))
