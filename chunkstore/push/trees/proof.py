"""Compares a tree of another writer with an own one: whether both lead to the same chunks.

A tree's digest covers the digests of its files, and not where they lie: for that, a tree
is a mere claim. Chunk ids are proof, and a pack's index lists the right ones, or its pack has
another id.
"""

from __future__ import annotations

from collections.abc import Sequence

from blake3 import blake3

from lodefs.chunkstore.errors import Changed, Corrupt, NotFound, Purged, UnknownFormat
from lodefs.chunkstore.format.names import ID_BYTES
from lodefs.chunkstore.format.tree import Entry, Kind, Segment
from lodefs.chunkstore.repo.pack_reader import PackReader


def has_same_chunks(packs: PackReader, own: Entry, claimed: Entry) -> bool:
    """Whether the directory ``claimed`` leads to the same chunks as ``own``, all the way down.

    Only trees and indexes of packs that differ are read. False also if those of ``claimed``
    cannot be read, or their bytes are gone. Raises: Unavailable, Denied.
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
                stack += zip(*children, strict=True)  # as many: their digest is the same
            elif _chunks_of(packs, mine.segments) != _chunks_of(packs, theirs.segments):
                return False
    except (Corrupt, NotFound, Purged, UnknownFormat, Changed):
        return False
    return True


def _chunks_of(packs: PackReader, segments: Sequence[Segment]) -> bytes:
    """A digest of the ids and sizes of the chunks in ``segments``. Raises: Corrupt, Purged if a
    pack has not what a segment says, or not its bytes."""
    ids, sizes = blake3(), blake3()
    for pack, first, count, size_bytes in segments:
        index = packs.index(pack)
        index.check_run(first, count, size_bytes)
        index.check_there(first, count)
        ids.update(index.ids[first * ID_BYTES : (first + count) * ID_BYTES])
        sizes.update(index.raw_sizes[first : first + count].tobytes())
    return ids.digest() + sizes.digest()
