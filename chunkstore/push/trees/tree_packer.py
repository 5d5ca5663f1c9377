"""Puts the stored forms of trees into packs of trees alone, children before parents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from lodefs.chunkstore.format.chunking import ChunkingParams, cut
from lodefs.chunkstore.format.compression import RAW, compress
from lodefs.chunkstore.format.names import Digest, PackId, digest_of
from lodefs.chunkstore.format.tree import Entry, Kind, Segment
from lodefs.chunkstore.push.fragmentation import (
    UNKNOWN,
    Layout,
    Run,
    chunks_to_store,
    join,
    longest_runs,
    place_all,
)
from lodefs.chunkstore.push.pack_writer import FRESH, Placement
from lodefs.chunkstore.types import Buffer

# Larger trees name all packs, so that chunks of them can be used again elsewhere
WHOLE_SIZE_BYTES_MAX = 1 << 20
COMPRESSED_SIZE_BYTES_MIN = 256  # smaller trees are mostly digests, and do not shrink


class PlacedTree(NamedTuple):
    """Where a tree lies: runs of places (serials of new chunks from FRESH on)."""

    size_bytes: int
    runs: tuple[Run, ...] = ()
    segments: tuple[Segment, ...] = ()  # of a tree that was there already


@dataclass(slots=True)
class TreePacker:
    """Stores trees as bytes. One thread."""

    placement: Placement
    params: ChunkingParams
    stored: int = 0  # trees
    raw_bytes: int = 0  # of new chunks

    def find(self, data: bytes, pack: PackId | None) -> PlacedTree | None:
        """Where the store has a tree's bytes, by their chunks: wholly in ``pack``, if one is given,
        else in any. None also if they would lie in too many runs."""
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
        """Sees to it that a tree of about ``size_bytes`` that names trees in the open pack lies
        wholly in that pack, or that these have a pack with an id. Whether it does name it: then
        ``put`` it ``whole``."""
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
        """Stores a tree's bytes, cut like a file. Chunks that the store has are used again, unless
        it must lie ``whole`` in the open pack."""
        self.stored += 1
        if len(data) <= self.params.size_bytes_min:  # nearly all are: no need to look
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
        """The ids and bytes of a tree's chunks."""
        if len(data) <= self.params.size_bytes_min:
            return [digest_of(data)], [data]
        ends = cut(data, self.params)
        pieces = [memoryview(data)[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        return [digest_of(piece) for piece in pieces], list(pieces)

    def entry(self, name: bytes, digest: Digest, placed: PlacedTree) -> Entry:
        return Entry(
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
