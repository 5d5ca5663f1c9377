"""The names of snapshots in the index of a node's cache: entries, and the children of directories.

layout.py lists their keys with all others. A snapshot's rows never change, so what a reader finds
is right.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.format.decoding import msgpack_decoder
from lodefs.chunkstore.format.names import CommitId, Digest, PackId, digest_of
from lodefs.chunkstore.format.tree import Kind, Segment, TreeEntry, fill
from lodefs.chunkstore.nodecache.layout import (
    CHILDREN,
    ENTRIES,
    FLAT_SIZE_BYTES_MIN,
    LOADED,
    SNAPSHOTS,
)
from lodefs.chunkstore.protocol.wire import PAGE_BYTES_MAX, Entry, Page, Snapshot

PAGE_NODES = 256  # entries in one row of children
SNAPSHOT_KEY_BYTES = 16

_SEGMENT = struct.Struct("<32sIIQ")
_SIZE_BYTES = 8  # size of the last field
_LAST_SEGMENT = struct.Struct("<32sII")
_CONTENT_HEAD = struct.Struct("<17sQ")
_CONTENT_MAGIC = b"lodefs content 1\0"


class EntryRow(msgspec.Struct, array_like=True, frozen=True):
    """An entry of a snapshot. Its inode number is in the key."""

    parent: int
    name: bytes
    kind: int
    executable: bool
    size_bytes: int
    digest: bytes
    target: bytes
    segments: bytes  # (pack id, first u32, count u32, size u64) each; the last has no size


_encoder = msgspec.msgpack.Encoder()
_entry_decoder = msgpack_decoder(EntryRow)
_snapshot_decoder = msgpack_decoder(Snapshot)
_nodes_decoder = msgpack_decoder(list[Entry])
_T = TypeVar("_T")


def _decoded(decoder: msgspec.msgpack.Decoder[_T], value: bytes, what: str) -> _T:
    try:
        return decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{what} in the cache index is damaged: {error}") from error


def snapshot_row_key(commit: CommitId, repo: str) -> bytes:
    """Returns the key of a snapshot's row."""
    return SNAPSHOTS + commit + repo.encode()


def snapshot_key(commit: bytes) -> bytes:
    """Returns what stands for a commit in the keys of entries and children."""
    return commit[:SNAPSHOT_KEY_BYTES]


def entry_key(snapshot: bytes, ino: int) -> bytes:
    """Returns the key of an EntryRow."""
    return ENTRIES + snapshot + ino.to_bytes(8, "big")


def entry_keys(snapshot: bytes, inos: Iterable[int]) -> list[bytes]:
    """Returns the keys of EntryRows."""
    prefix = ENTRIES + snapshot
    return [prefix + ino.to_bytes(8, "big") for ino in inos]


def children_prefix(snapshot: bytes, ino: int) -> bytes:
    """Returns the prefix of the keys of a directory's pages; the last name of the page follows."""
    return CHILDREN + snapshot + ino.to_bytes(8, "big")


def loaded_key(snapshot: bytes, ino: int) -> bytes:
    """Returns the key of the mark that a directory's children have rows."""
    return LOADED + snapshot + ino.to_bytes(8, "big")


def encode_entry_row(parent: int, entry: TreeEntry) -> bytes:
    """Returns the EntryRow of a tree's entry."""
    row = EntryRow(
        parent,
        entry.name,
        int(entry.kind),
        entry.executable,
        entry.size_bytes,
        entry.digest,
        entry.target,
        _encoded(entry.segments),
    )
    return _encoder.encode(row)


def _encoded(segments: tuple[Segment, ...]) -> bytes:
    if len(segments) == 1:  # most files
        pack, first, count, _ = segments[0]
        return _LAST_SEGMENT.pack(pack, first, count)
    return b"".join([_SEGMENT.pack(*segment) for segment in segments])[:-_SIZE_BYTES]


def content_id(entry: TreeEntry | EntryRow) -> bytes:
    """Returns an id of a file's bytes that rests on verified data: BLAKE3 of its size and segments.

    A pack's id names its chunks, and a chunk's id its bytes: two files with one content id have the
    same bytes, in any repository. A digest proves that only if its pusher was honest.
    """
    segments = entry.segments
    if not isinstance(segments, bytes):
        segments = _encoded(segments)
    return digest_of(_CONTENT_HEAD.pack(_CONTENT_MAGIC, entry.size_bytes) + segments)


def decode_entry_row(value: bytes) -> EntryRow:
    """Raises: Corrupt."""
    return _decoded(_entry_decoder, value, "an entry's row")


def node_of(ino: int, parent: int, entry: TreeEntry | EntryRow) -> Entry:
    """Returns an entry as mounts see it, from a tree or from its row."""
    content = b""
    if entry.size_bytes >= FLAT_SIZE_BYTES_MIN and entry.kind == Kind.FILE:
        content = content_id(entry)
    return Entry(
        ino,
        parent,
        entry.name,
        int(entry.kind),
        entry.executable,
        entry.size_bytes,
        entry.digest,
        entry.target,
        content,
    )


def entry_of(row: EntryRow) -> TreeEntry:
    """Returns the entry of the tree that a row was made from."""
    return TreeEntry(
        row.name,
        Kind(row.kind),
        row.executable,
        row.size_bytes,
        Digest(row.digest),
        () if row.kind == Kind.SYMLINK else segments_of(row),
        row.target,
    )


def segments_of(row: EntryRow) -> tuple[Segment, ...]:
    """Returns the segments of the content, with ``size_bytes`` of the row together. Raises:
    Corrupt."""
    data = row.segments
    if not data and not row.size_bytes:
        return ()
    if (len(data) + _SIZE_BYTES) % _SEGMENT.size:
        raise Corrupt("an entry's row in the cache index is damaged: half a segment")
    rows = _SEGMENT.iter_unpack(data + bytes(_SIZE_BYTES))
    *found, last = (Segment(PackId(pack), *numbers) for pack, *numbers in rows)
    left_bytes = row.size_bytes - sum(segment.size_bytes for segment in found)
    segments = (*found, last._replace(size_bytes=left_bytes))
    if not fill(segments, row.size_bytes):
        raise Corrupt("an entry's row in the cache index is damaged: its segments do not fit it")
    return segments


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Returns the value of a snapshot's row."""
    return _encoder.encode(snapshot)


def decode_snapshot(value: bytes) -> Snapshot:
    """Raises: Corrupt."""
    return _decoded(_snapshot_decoder, value, "a snapshot's row")


def encode_page(nodes: Iterable[Entry]) -> bytes:
    """Returns one row of children."""
    return _encoder.encode(list(nodes))


def decode_page(value: bytes) -> list[Entry]:
    """Raises: Corrupt."""
    return _decoded(_nodes_decoder, value, "a page of children")


def page_of(values: Iterable[bytes], after: bytes, limit: int) -> Page:
    """Returns the children after a name, from a directory's rows in their order: at most ``limit``,
    with names and targets of at most PAGE_BYTES_MAX, or a single child. Raises: Corrupt.

    A row's key ends in its last name, so the first row after ``after`` may hold names up to it.
    """
    nodes: list[Entry] = []
    text_bytes = 0
    for value in values:
        page = decode_page(value)
        if after and not nodes:
            page = [node for node in page if node.name > after]
        for node in page:
            text_bytes += len(node.name) + len(node.target)
            if len(nodes) == limit or (nodes and text_bytes > PAGE_BYTES_MAX):
                return Page(nodes, more=True)
            nodes.append(node)
    return Page(nodes, more=False)
