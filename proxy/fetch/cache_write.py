"""The places in the cache for the chunks of one read: reserved, written to, then indexed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.protocol.wire import Origin
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.cache.chunk_cache import Cache, Flat
from lodefs.proxy.cache.extents import Run
from lodefs.proxy.cache.reservation import Chunk, ChunkRun, Reservation
from lodefs.proxy.metrics.counters import Counter

RawChunks = dict[int, Buffer]  # raw bytes by the chunk's number in the pack


class Refusal(Enum):
    """Why the cache did not take chunks."""

    NO_SPACE = Counter.UNCACHED_BYTES
    SLOW_DISK = Counter.LEFT_OUT_BYTES


@dataclass(frozen=True, slots=True)
class CacheTarget:
    """The place in the cache for those of the chunks [first, end) of a pack that are in a unit: in
    the flat file ``flat``, or in slabs. ``shift`` leads from raw offsets in the pack to offsets in
    that file."""

    first: int
    end: int
    flat: Flat | None = None
    shift: int = 0


class WritePart(NamedTuple):
    """Chunks [first, end) of a pack, for one file. Of these, the cache lacks those with the
    ``numbers``: ``chunks``, each once."""

    first: int
    end: int
    target: CacheTarget
    numbers: Sequence[int]
    chunks: Sequence[Chunk]


@dataclass(slots=True)
class FetchResult:
    """Chunks of a pack that were fetched. ``extents`` are those of the pack's raw bytes that are
    new in the cache. ``memory`` has chunks that are not written yet, those that the cache did not
    take, for the reason ``refusal``, and copies of those that the first reader wants at once.
    ``origin`` is None if nothing was missing."""

    extents: list[Run] = field(default_factory=list)
    memory: RawChunks = field(default_factory=dict)
    refusal: Refusal | None = None
    origin: Origin | None = None

    @property
    def fetched_bytes(self) -> int:
        """The number of raw bytes that are new in the cache."""
        return sum(run.end - run.start for run in self.extents)


class CacheWrite:
    """Writes the chunks of one read to the cache: this process does so itself, or a data process
    writes to the places that were reserved. For any thread."""

    def __init__(self, cache: Cache, parts: Sequence[WritePart]) -> None:
        self.parts = parts
        self.gate = cache.gate
        self._cache = cache

    @contextmanager
    def reserved(self) -> Iterator[list[Reservation] | None]:
        """Reserves places for all parts for a block; yields None if there is no space for all.
        Raises: OSError, NoSpace."""
        with ExitStack() as stack:
            found: list[Reservation] = []
            for part in self.parts:
                reservation = self._cache.reserve(part.chunks, part.target.flat)
                if reservation is None:
                    yield None
                    return
                found.append(stack.enter_context(reservation))
            yield found

    def commit(self, reservations: Sequence[Reservation]) -> list[Run]:
        """Indexes all chunks, whose bytes are written. Raises: OSError, LodefsError."""
        extents: list[Run] = []
        for part, reservation in zip(self.parts, reservations, strict=True):
            extents += _pack_runs(reservation.commit(), part.target.shift)
        return extents

    def write(self, raws: RawChunks) -> FetchResult:
        """Writes chunks from memory, as far as there is space and the disk is fast enough."""
        written = FetchResult()
        for part in self.parts:
            numbered = zip(part.numbers, part.chunks, strict=True)
            chunks = [(chunk, raws[n]) for n, chunk in numbered if n in raws]  # others are gone
            if not chunks:
                continue
            size_bytes = sum(chunk.size_bytes for chunk, _ in chunks)
            with self.gate.turn(size_bytes) as may_write:
                stored = self._cache.store(chunks, part.target.flat) if may_write else []
            written.extents += _pack_runs(stored, part.target.shift)
            if not stored:
                written.refusal = Refusal.NO_SPACE if may_write else Refusal.SLOW_DISK
                refused = {n: raws[n] for n in range(part.first, part.end) if n in raws}
                self._cache.counts.add(written.refusal.value, sum(map(len, refused.values())))
                written.memory |= refused
        return written


def parts_to_write(
    index: PackIndex, targets: Sequence[CacheTarget], chunks: range, are_here: Sequence[bool]
) -> list[WritePart]:
    """Returns the parts of a run of chunks, without those that are in the cache already. A chunk
    goes to the first of its targets."""
    left = {n for n, is_here in zip(chunks, are_here, strict=True) if not is_here}
    parts: list[WritePart] = []
    for target in targets:
        first, end = max(target.first, chunks.start), min(target.end, chunks.stop)
        numbers: list[int] = []
        coming: dict[bytes, Chunk] = {}  # a run may contain a chunk twice
        for n in range(first, end):
            chunk_id = index.chunk_id(n)
            if n in left and chunk_id not in coming:
                numbers.append(n)
                offset = target.shift + index.raw_offsets[n]
                coming[chunk_id] = Chunk(chunk_id, index.raw_sizes[n], offset)
        left.difference_update(range(first, end))
        if coming:
            parts.append(WritePart(first, end, target, numbers, list(coming.values())))
    return parts


def _pack_runs(stored: Iterable[ChunkRun], shift: int) -> list[Run]:
    """Returns where raw bytes of the pack lie, with neighbours joined."""
    runs: list[Run] = []
    for file, offset, chunks in stored:
        begin = end = -1
        at = offset  # the offset of the pack's byte ``begin``
        for chunk in chunks:
            start = chunk.offset - shift
            if start != end:
                if end > begin:
                    runs.append(Run(begin, end, file, at))
                    at += end - begin
                begin = end = start
            end += chunk.size_bytes
        runs.append(Run(begin, end, file, at))
    return runs
