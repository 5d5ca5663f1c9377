"""Which chunks a flat file of a cache consists of: asked of the index alone.

A flat file is named by a content id, which says nothing by itself; an entry that has it says which
runs of which packs it means, and the packs' indexes name their chunks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.format.names import ID_BYTES, ChunkId
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.format.tree import Kind, Segment
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache import name_rows
from lodefs.chunkstore.nodecache.kv import KeyValues

Segments = tuple[Segment, ...]


def segments_by_content(kv: KeyValues, contents: Collection[bytes]) -> dict[bytes, Segments]:
    """The segments of files that have a flat file, by content id, as far as they are known."""
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
    """The chunks of a file in their order; None for one whose pack the node has no index of."""
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
