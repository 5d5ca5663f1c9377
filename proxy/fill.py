"""Filling the cache: one fetch unit from the store, verified, into the cache. Blocking.

A unit is one look at the index, one ranged read for each run of missing chunks (mostly one), one
write, one batch of rows; never a call for each chunk.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from dataclasses import dataclass, field, replace

from chunkstore import cachelayout as layout
from chunkstore import keys
from chunkstore.cachelayout import FileKind
from chunkstore.errors import Changed, Corrupt, NotFound
from chunkstore.names import PackId
from chunkstore.objects import Buffer, ObjectStore
from chunkstore.pack import unpack
from proxy.cache import Cache, Flat, NewChunk
from proxy.cachefile import CacheFile
from proxy.meter import Counter
from proxy.packindexes import Loaded, PackIndexes
from proxy.policy import missing_runs

log = logging.getLogger("lodefs.cache")


@dataclass(frozen=True, slots=True)
class Unit:
    """Consecutive chunks of a pack to bring. With ``flat`` they belong to that dataset file, the
    first of them at ``offset`` in it."""

    pack: PackId
    first: int
    count: int
    flat: Flat | None = None
    offset: int = 0


Kept = dict[int, Buffer]  # raw bytes by the chunk's number in the pack


@dataclass(frozen=True, slots=True)
class Filled:
    """A unit that has come: chunks that found no space, and runs (offset, size) of a dataset
    file's bytes that lie at their own places in its flat file now."""

    kept: Kept = field(default_factory=dict)
    runs: list[tuple[CacheFile, int, int]] = field(default_factory=list)


class Filler:
    """Brings units from one store into one cache. For any thread."""

    def __init__(self, objects: ObjectStore, cache: Cache, indexes: PackIndexes) -> None:
        self._objects = objects
        self._cache = cache
        self._indexes = indexes
        self._meter = cache.meter

    def fill(self, loaded: Loaded, unit: Unit) -> Filled:
        """Brings what is missing of the unit.

        Corrupt (also where it was read twice), Unavailable, Denied, DeadlineExceeded.
        """
        index = loaded.index
        chunk_keys = layout.chunk_keys(index.ids, unit.first, unit.count)
        present = [place is not None for place in self._cache.find(chunk_keys)]
        sizes = index.stored_sizes[unit.first : unit.first + unit.count]
        filled = Filled()
        for skipped, count in missing_runs(present, sizes):
            first = unit.first + skipped
            raws = self.read(loaded, first, count)
            wanted = present[skipped : skipped + count]
            chunks = _new_chunks(loaded, unit, first, raws, wanted)
            file = self._cache.store(chunks, unit.flat)
            if file is None:
                self._meter.add(Counter.UNCACHED_BYTES, sum(map(len, raws)))
                filled.kept.update(enumerate(raws, first))
            elif file.kind is FileKind.FLAT:
                filled.runs.extend((file, *run) for run in _runs(chunks))
        return filled

    def read(self, loaded: Loaded, first: int, count: int) -> list[Buffer]:
        """Verified raw chunks from the store; what is wrong is read once more, from the pack's
        index on. Corrupt names the pack and the store."""
        pack_id = loaded.index.pack_id
        try:
            return self._read(loaded, first, count)
        except Changed:
            log.info("pack %s was written again: its index is read again", pack_id.hex())
        except Corrupt as error:
            self._meter.add(Counter.STORE_CORRUPT)
            log.warning("%s sent wrong bytes, they are read again: %s", self._objects.url, error)
        try:
            return self._read(self._indexes.reload(pack_id), first, count)
        except Corrupt as error:
            self._meter.add(Counter.STORE_CORRUPT)
            raise Corrupt(f"{self._objects.url} sent wrong bytes twice: {error}") from error

    def _read(self, loaded: Loaded, first: int, count: int) -> list[Buffer]:
        index = loaded.index
        key = keys.pack(index.pack_id)
        start = index.offsets[first]
        size_bytes = index.offsets[first + count] - start
        self._meter.add(Counter.FETCHES)
        try:
            part = self._objects.get(key, offset=start, size=size_bytes, if_match=loaded.etag)
        except NotFound as error:
            raise Corrupt(f"the store lacks a pack that it refers to: {error}") from error
        if len(part.data) != size_bytes:
            raise Corrupt(f"{key} is cut off: {size_bytes} bytes at {start} are not there")
        self._meter.add(Counter.FETCHED_BYTES, size_bytes)
        view = memoryview(part.data)
        try:
            return [
                unpack(place, view[place.offset - start :][: place.stored_size_bytes])
                for place in index.places(first, count)
            ]
        except Corrupt as error:
            raise Corrupt(f"{key}, chunks {first} to {first + count - 1}: {error}") from error


def _new_chunks(
    loaded: Loaded, unit: Unit, first: int, raws: list[Buffer], present: list[bool]
) -> list[NewChunk]:
    """Those of the chunks from ``first`` on that are not in the cache, each once."""
    index = loaded.index
    shift = unit.offset - index.raw_offsets[unit.first]
    chunks: dict[bytes, NewChunk] = {}  # a chunk may stand in a run twice
    for n, raw in enumerate(raws):
        if not present[n]:
            chunk_id = index.chunk_id(first + n)
            chunks.setdefault(
                chunk_id, NewChunk(chunk_id, raw, shift + index.raw_offsets[first + n])
            )
    return list(chunks.values())


def _runs(chunks: list[NewChunk]) -> list[tuple[int, int]]:
    """Offset and size of what lies together."""
    runs: list[tuple[int, int]] = []
    begin = end = -1
    for chunk in chunks:
        if chunk.offset != end:
            if end > begin:
                runs.append((begin, end - begin))
            begin = end = chunk.offset
        end += len(chunk.raw)
    if end > begin:
        runs.append((begin, end - begin))
    return runs


def cut_units(unit: Unit, loaded: Loaded, size_bytes: int) -> list[Unit]:
    """A unit in even parts of about ``size_bytes`` raw bytes (an eighth more at most, and a
    chunk), or one chunk. Even, since a small rest costs a request as dear as the others."""
    raw_offsets = loaded.index.raw_offsets
    first, end = unit.first, unit.first + unit.count
    base = raw_offsets[first]
    total = raw_offsets[end] - base
    parts = max(1, -((size_bytes // 8 - total) // size_bytes))
    units: list[Unit] = []
    for part in range(1, parts + 1):
        cut = bisect_left(raw_offsets, base + total * part // parts, first, end)
        if cut > first:
            offset = unit.offset + raw_offsets[first] - base
            units.append(replace(unit, first=first, count=cut - first, offset=offset))
            first = cut
    return units
