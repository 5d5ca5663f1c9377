"""Places in the cache for chunks: reserved, written to, then indexed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Self

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.kv import Row
from lodefs.chunkstore.nodecache.layout import FileKind
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.eviction_policy import Use
from lodefs.proxy.metrics.counters import Counter

if TYPE_CHECKING:
    from lodefs.proxy.cache.chunk_cache import Cache


class Chunk(NamedTuple):
    """A chunk to store. ``offset`` is its offset in the dataset file (flat files only)."""

    id: bytes
    size_bytes: int
    offset: int


class ChunkRun(NamedTuple):
    """Consecutive chunks in a file of the cache, from an offset on."""

    file: CacheFile
    offset: int
    chunks: Sequence[Chunk]


class Reservation:
    """Places in a file of the cache for chunks, which are in the cache once their bytes are written
    there and ``commit`` was called. Its with block keeps the file from eviction; at its end, unused
    places become free, unless the reservation ``is_held``."""

    def __init__(
        self,
        cache: Cache,
        file: CacheFile,
        first: int,
        chunks: Sequence[Chunk],
        *,
        places: ExitStack,
    ) -> None:
        """``first`` is the offset of the chunks in a slab; -1: each has its own in a flat file."""
        self.file = file
        self.runs = _by_offset(file, chunks) if first < 0 else [ChunkRun(file, first, chunks)]
        self.is_held = False  # rows name the places, or a process may still write there
        self._cache = cache
        self._size_bytes = sum(chunk.size_bytes for chunk in chunks)
        self._is_slab = first >= 0
        self._places = places

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._places:
            if self._is_slab and not self.is_held:
                with self._cache.lock:
                    self.file.give_back(self.runs[0].offset, self._size_bytes)

    def write(self, raws: Sequence[Buffer]) -> None:
        """Writes the bytes of all chunks, in their order. Raises: OSError; Unavailable if the file
        was damaged meanwhile: then it is dropped."""
        rest = iter(raws)
        for run in self.runs:
            self._cache.step("data")
            self._heed(self.file.write(run.offset, list(islice(rest, len(run.chunks)))))

    def drop(self, why: str) -> None:
        """Drops the file, which was damaged."""
        self._cache.eviction.drop(self.file, why)

    def commit(self, *, are_copies: bool = False) -> Sequence[ChunkRun]:
        """Indexes the chunks, whose bytes are written. Returns where they lie. Raises: OSError,
        LodefsError, also if the file was damaged meanwhile: then it is dropped."""
        self.is_held = True
        self._heed(self.file.damage())
        rows = [row for run in self.runs for row in self._rows(run, are_copies=are_copies)]
        self._cache.touch(self.file, Use.WRITTEN)
        length_bytes = max(run.offset for run in self.runs) + self._size_bytes
        self._cache.add_rows(self.file, rows, self._size_bytes, length_bytes)
        self._cache.counts.add(Counter.FILLED_BYTES, self._size_bytes)
        if are_copies:
            self._cache.touch(self.file, Use.ASKED, self._size_bytes)  # copies cost no fetch
        return self.runs

    def _rows(self, run: ChunkRun, *, are_copies: bool) -> list[Row]:
        """Returns the rows of a run: of its chunks, unless lookups find them elsewhere, and of the
        run itself, unless a longer run has that key: if its row vanished, no check would cover its
        bytes. The same offset of a flat file always has the same chunks."""
        rows = [] if are_copies else list(_chunk_rows(run))
        sizes = [(chunk.id, chunk.size_bytes) for chunk in run.chunks]
        key, value = layout.run_key(run.file.number, run.offset), layout.encode_run_row(sizes)
        known = self._cache.kv.get(key) if run.file.kind is FileKind.FLAT else None
        if known is None or layout.run_size(known) < layout.run_size(value):
            rows.append((key, value))
        return rows

    def _heed(self, damage: str) -> None:
        if damage:
            self.drop(damage)
            raise Unavailable(f"{self.file.path} was damaged while chunks were written: {damage}")


def _by_offset(file: CacheFile, chunks: Sequence[Chunk]) -> list[ChunkRun]:
    """Returns chunks at their own offsets in a file, with neighbours joined."""
    runs: list[list[Chunk]] = []
    end = -1
    for chunk in chunks:
        if chunk.offset != end:
            runs.append([])
        runs[-1].append(chunk)
        end = chunk.offset + chunk.size_bytes
    return [ChunkRun(file, run[0].offset, run) for run in runs]


def _chunk_rows(run: ChunkRun) -> Iterator[Row]:
    """Yields the rows that say where each chunk of a run lies."""
    offset = run.offset
    for chunk in run.chunks:
        place = layout.encode_chunk_row(run.file.number, offset, chunk.size_bytes)
        yield layout.chunk_key(chunk.id), place
        offset += chunk.size_bytes
