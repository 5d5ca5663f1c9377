"""Finds the dataset files that have bytes in a damaged part of the cache, and the chunks of a flat
file, from the index alone.

The index has the snapshots that were used on this node, and those of their directories that were
read. It has no names for anything else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import NamedTuple

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.format.inodes import ROOT_INO
from lodefs.chunkstore.format.names import ID_BYTES, ChunkId, CommitId, PackId, Spec
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.format.tree import Kind, Segment
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache import name_rows
from lodefs.chunkstore.nodecache.kv import KeyValues
from lodefs.chunkstore.nodecache.name_rows import EntryRow

NAMES_MAX = 8  # for one chunk or content id: a chunk may be in every version of a file
DEPTH_MAX = 4096
_INO_BYTES = 8


class AffectedFile(NamedTuple):
    """A dataset file: repository, commit (64 hex digits), path."""

    repo: str
    commit: str
    path: bytes

    def __str__(self) -> str:
        return str(Spec(self.repo, self.commit, self.path))


def dataset_files(
    kv: KeyValues, chunks: Collection[bytes], contents: Collection[bytes]
) -> dict[bytes, list[AffectedFile]]:
    """Returns the dataset files that hold a chunk or have a content id, by that id, as far as the
    index has them."""
    wanted = frozenset(contents)
    places = _places(kv, frozenset(chunks))
    repos = _repositories(kv)
    found: dict[bytes, list[AffectedFile]] = defaultdict(list)
    for key, value in kv.scan(layout.ENTRIES):
        row = name_rows.decode_entry_row(value)
        if row.kind != Kind.FILE:
            continue
        hits = {name_rows.content_id(row)} & wanted | set(_chunks_of(row, places))
        for hit in hits:
            if len(found[hit]) < NAMES_MAX:
                snapshot = key[1:-_INO_BYTES]
                repo, commit = repos.get(snapshot, ("?", snapshot.hex()))
                found[hit].append(AffectedFile(repo, commit, _path(kv, snapshot, row)))
    return found


def _places(kv: KeyValues, chunks: frozenset[bytes]) -> dict[PackId, list[tuple[int, bytes]]]:
    """Returns number and id of chunks, by pack, in the packs whose indexes the node has."""
    places: dict[PackId, list[tuple[int, bytes]]] = {}
    if not chunks:
        return places
    for key, value in kv.scan(layout.PACKS):
        pack = PackId(key[1:])
        try:
            ids = PackIndex.decode(pack, layout.decode_pack_row(value)[1]).ids
        except LodefsError:
            continue  # the proxy reads it anew
        here = [
            (n, ids[cut : cut + ID_BYTES])
            for n, cut in enumerate(range(0, len(ids), ID_BYTES))
            if ids[cut : cut + ID_BYTES] in chunks
        ]
        if here:
            places[pack] = here
    return places


def _chunks_of(row: EntryRow, places: dict[PackId, list[tuple[int, bytes]]]) -> Iterator[bytes]:
    """Yields those of the chunks at ``places`` that are in a file."""
    if not places:
        return
    for segment in name_rows.segments_of(row):
        for n, chunk in places.get(segment.pack, ()):
            if segment.first <= n < segment.first + segment.count:
                yield chunk


def _repositories(kv: KeyValues) -> dict[bytes, tuple[str, str]]:
    """Returns repository and commit by snapshot key. Of several repositories the last one
    counts."""
    found = {}
    for key, _ in kv.scan(layout.SNAPSHOTS):
        commit, repo = CommitId(key[1 : 1 + ID_BYTES]), key[1 + ID_BYTES :]
        found[name_rows.snapshot_key(commit)] = (repo.decode("utf-8", "replace"), commit.hex())
    return found


def _path(kv: KeyValues, snapshot: bytes, row: EntryRow) -> bytes:
    """Returns the path of an entry, as far as the index has it."""
    names = [row.name]
    while row.parent != ROOT_INO and len(names) < DEPTH_MAX:
        value = kv.get(name_rows.entry_key(snapshot, row.parent))
        if value is None:
            names.append(b"...")
            break
        row = name_rows.decode_entry_row(value)
        names.append(row.name)
    return b"/".join(reversed(names))


Segments = tuple[Segment, ...]


def segments_by_content(kv: KeyValues, contents: Collection[bytes]) -> dict[bytes, Segments]:
    """Returns the segments of files that have a flat file, by content id, as far as they are known.
    The id is only a hash; an entry with it says which runs of which packs it stands for."""
    found: dict[bytes, Segments] = {}
    for _, value in kv.scan(layout.ENTRIES):
        row = name_rows.decode_entry_row(value)
        if row.kind != Kind.FILE or row.size_bytes < layout.FLAT_SIZE_BYTES_MIN:
            continue
        content = name_rows.content_id(row)
        if content in contents:
            found[content] = name_rows.segments_of(row)
    return found


def chunks_of(kv: KeyValues, segments: Segments) -> Iterator[ChunkId | None]:
    """Yields the chunks of a file; None for a chunk in a pack whose index the node does not
    have."""
    for segment in segments:
        value = kv.get(layout.pack_key(segment.pack))
        ids = b""
        if value is not None:
            try:
                ids = PackIndex.decode(segment.pack, layout.decode_pack_row(value)[1]).ids
            except LodefsError:
                ids = b""  # the proxy reads it anew
        for n in range(segment.first, segment.first + segment.count):
            yield ChunkId(ids[n * ID_BYTES : (n + 1) * ID_BYTES]) if ids else None
