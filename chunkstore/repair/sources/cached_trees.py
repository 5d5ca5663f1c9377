"""The trees of the directories that a node has listed, rebuilt from the rows of its index.

The rows have everything that a tree says, and where the tree itself lies, so its stored form
follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from lodefs.chunkstore.errors import LodefsError, NotFound
from lodefs.chunkstore.format.chunking import ChunkingParams, cut
from lodefs.chunkstore.format.names import ChunkId, digest_of
from lodefs.chunkstore.format.tree import TreeEntry, encode_tree, tree_digest
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache import name_rows
from lodefs.chunkstore.nodecache.kv import KeyValues

_HEAD = len(layout.ENTRIES)  # prefix of a key; snapshot and inode number follow: a place


class CachedTrees:
    """Finds chunks of trees. It keeps some 100 bytes for each tree of the cache: its chunk ids. It
    builds the stored form of a wanted tree again."""

    def __init__(self, params: ChunkingParams) -> None:
        self._params = params
        self._trees: dict[ChunkId, bytes] | None = None

    def chunks(
        self, kv: KeyValues, wanted: Mapping[ChunkId, int]
    ) -> Iterator[tuple[ChunkId, bytes]]:
        """Yields those of the wanted chunks that belong to trees. Each matches its id."""
        if self._trees is None:
            self._trees = dict(self._all(kv))
        left = set(wanted)
        for chunk_id in wanted:
            place = self._trees.get(chunk_id)
            if chunk_id not in left or place is None:
                continue
            for found, piece in self._pieces(kv, place):
                if found in left:
                    left.discard(found)
                    yield found, piece

    def _all(self, kv: KeyValues) -> Iterator[tuple[ChunkId, bytes]]:
        seen: set[tuple[bytes, bytes]] = set()  # many snapshots have the same directories
        for key, _ in kv.scan(layout.LOADED):
            row = kv.get(layout.ENTRIES + key[_HEAD:])
            if row is None:
                continue
            tree = name_rows.decode_entry_row(row)
            if (tree.digest, tree.segments) not in seen:
                seen.add((tree.digest, tree.segments))
                for chunk_id, _ in self._pieces(kv, key[_HEAD:]):
                    yield chunk_id, key[_HEAD:]

    def _pieces(self, kv: KeyValues, place: bytes) -> list[tuple[ChunkId, bytes]]:
        """Returns the chunks of a directory's tree; none if the index does not have all of it."""
        try:
            tree, entries = _read(kv, place)
        except LodefsError:
            return []
        packs = {segment.pack for segment in tree.segments}
        if not packs or tree_digest(entries) != tree.digest:
            return []
        data = encode_tree(entries, own_pack=packs.pop() if len(packs) == 1 else None)
        ends = [0, *cut(data, self._params)]
        return [(ChunkId(digest_of(data[a:b])), data[a:b]) for a, b in pairwise(ends)]


def _read(kv: KeyValues, place: bytes) -> tuple[TreeEntry, list[TreeEntry]]:
    """Returns a directory and its entries. Raises: NotFound for rows that are gone; Corrupt."""
    snapshot, ino = place[: name_rows.SNAPSHOT_KEY_BYTES], place[name_rows.SNAPSHOT_KEY_BYTES :]
    tree = _entry(kv.get(layout.ENTRIES + place))
    pages = kv.scan(name_rows.children_prefix(snapshot, int.from_bytes(ino, "big")))
    inos = [node.ino for _, page in pages for node in name_rows.decode_page(page)]
    values = kv.get_many(name_rows.entry_keys(snapshot, inos))
    return tree, [_entry(value) for value in values]


def _entry(value: bytes | None) -> TreeEntry:
    if value is None:
        raise NotFound("a directory is being dropped from the cache")
    return name_rows.entry_of(name_rows.decode_entry_row(value))
