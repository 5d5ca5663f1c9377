"""Policy: recorded patterns of reads, and what they cost: waits for the store, bytes for nothing.

A pattern is a list of reads (offset, size) as a mount sends them. Files are cut into chunks of 64
KiB here; what is read ahead has come when the next read is made, as from a store that is fast
enough.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from lodefs.proxy.read.readahead_policy import (
    KIB,
    MIB,
    UNIT_SIZE_BYTES_MAX,
    WINDOW_SIZE_BYTES_MAX,
    RandomReadWindow,
    ReadAhead,
)

GIB = 1024 * MIB
CHUNK = 64 * KIB
Reads = Iterable[tuple[int, int]]


class Reader:
    """Reads one cold file as proxy/read/file_reader.py does. ``waits``: reads that had to be
    fetched."""

    def __init__(self, size_bytes: int = GIB) -> None:
        self.size_bytes = size_bytes
        self.ahead, self.regions = ReadAhead(size_bytes), RandomReadWindow(size_bytes)
        self.here: set[int] = set()
        self.wanted: set[int] = set()
        self.waits = 0

    def read(self, reads: Reads, *, directly: bool = False) -> Reader:
        """``directly``: whoever reads serves himself with what is here, and says nothing."""
        for first, size in reads:
            chunks = self._chunks(first, first + size)
            self.wanted |= chunks
            if directly and chunks <= self.here:
                continue
            self._step(first, first + size, chunks)
        return self

    @property
    def amplification(self) -> float:
        """Bytes fetched for each byte of the chunks that were wanted."""
        return len(self.here) / len(self.wanted)

    def _step(self, first: int, end: int, chunks: set[int]) -> None:
        wanted, unit = self.ahead.advance(first, end, end)
        if not chunks <= self.here:
            self.waits += 1
            if unit:
                self._fetch(first, max(end, first + unit))
            else:
                self._fetch(*self.regions.miss(first, end))
        if wanted is not None:
            assert wanted.end <= self.size_bytes
            self._fetch(*wanted)

    def _fetch(self, first: int, end: int) -> None:
        self.here |= self._chunks(first, min(end, self.size_bytes))

    def _chunks(self, first: int, end: int) -> set[int]:
        return set(range(first // CHUNK, -(-end // CHUNK)))


def steps(first: int, end: int, size: int, skip: int = 0) -> Iterator[tuple[int, int]]:
    """Pieces one after the other, ``skip`` bytes left out after each."""
    for at in range(first, end, size + skip):
        yield at, min(size, end - at)


def in_turns(patterns: list[Reads]) -> Iterator[tuple[int, int]]:
    """The reads of many readers of one file, one of each at a time."""
    left = [iter(pattern) for pattern in patterns]
    while left:
        for one in list(left):
            found = next(one, None)
            if found is None:
                left.remove(one)
            else:
                yield found


def test_a_shard_read_from_start_to_end() -> None:
    """A tar of samples through the kernel's own reading ahead: a few waits, and nothing twice."""
    for size in (128 * KIB, MIB):
        reader = Reader(256 * MIB).read(steps(0, 256 * MIB, size))
        assert reader.waits <= 3
        assert reader.amplification == 1


def test_a_shard_left_after_its_beginning() -> None:
    """Whoever reads the first MiB of a shard and goes pays for a few times that, not for all."""
    reader = Reader(256 * MIB).read(steps(0, MIB, 128 * KIB))
    assert reader.waits <= 3
    assert len(reader.here) * CHUNK <= 4 * MIB


def test_pieces_that_overtake_each_other() -> None:
    """The kernel's requests reach the proxy by several threads, in nearly the right order."""
    source = random.Random(5)
    reads = list(steps(0, 256 * MIB, 256 * KIB))
    for at in range(0, len(reads) - 4, 4):
        part = reads[at : at + 4]
        source.shuffle(part)
        reads[at : at + 4] = part
    reader = Reader(256 * MIB).read(reads)
    assert reader.waits <= 8
    assert reader.amplification == 1


def test_many_readers_of_one_file() -> None:
    """Forty-eight loaders, each with its own part of a huge file: each waits a few times."""
    part = 64 * MIB
    starts = [number * part for number in range(48)]
    reader = Reader(4 * GIB).read(in_turns([steps(at, at + part, 512 * KIB) for at in starts]))
    assert reader.waits <= 3 * len(starts)
    assert reader.amplification < 1.1


def test_many_readers_of_the_same_place() -> None:
    """Eight processes that load one checkpoint side by side wait no more than one does."""
    alone = Reader(512 * MIB).read(steps(0, 512 * MIB, MIB))
    many = Reader(512 * MIB).read(in_turns([steps(0, 512 * MIB, MIB) for _ in range(8)]))
    assert many.waits <= alone.waits + 1
    assert many.amplification == 1


def test_random_readers_beside_a_sequential_one() -> None:
    """They do not make the file forget who reads on."""
    source = random.Random(6)
    far = [(GIB + source.randrange(GIB // CHUNK) * CHUNK, 4096) for _ in range(1024)]
    reads = [list(far[n : n + 16]) + [piece] for n, piece in enumerate(steps(0, 256 * MIB, MIB))]
    reader = Reader(2 * GIB)
    waits = 0
    for group in reads:
        reader.read(group[:-1])
        before = reader.waits
        reader.read(group[-1:])
        waits += reader.waits - before
    assert waits <= 3


def test_forward_skips() -> None:
    """Samples left out now and then do not end the reading on, nor do regular gaps within it."""
    source = random.Random(7)
    reads = [piece for piece in steps(0, 512 * MIB, 256 * KIB) if source.random() < 0.7]
    reader = Reader(512 * MIB).read(reads)
    assert reader.waits <= 6
    gaps = Reader(512 * MIB).read(steps(0, 512 * MIB, 128 * KIB, skip=128 * KIB))
    assert gaps.waits <= 6


def test_a_long_jump_forward_goes_on_from_there() -> None:
    """To the middle of a shard: a wait or two, as at the beginning."""
    reader = Reader().read(steps(0, 32 * MIB, MIB))
    before = reader.waits
    reader.read(steps(600 * MIB, 700 * MIB, MIB))
    assert reader.waits - before <= 3
    reader.read(steps(32 * MIB, 64 * MIB, MIB))  # and back: that was not forgotten
    assert reader.waits - before <= 4


def test_a_columnar_file() -> None:
    """Footer first, then some columns of each row group: a wait for each beginning of a column at
    most, and little for nothing."""
    reader = Reader(512 * MIB)
    reader.read([(512 * MIB - 8, 8), (512 * MIB - 96 * KIB, 96 * KIB)])
    columns = [
        group + column for group in range(0, 500 * MIB, 64 * MIB) for column in (0, 40 * MIB)
    ]
    for at in columns:
        reader.read(steps(at, at + 4 * MIB, 256 * KIB))
    assert reader.waits <= 3 * len(columns) + 2
    assert reader.amplification < 2.5


def test_rows_of_an_array_in_random_order() -> None:
    """Sparse rows fetch hardly more than themselves; dense ones soon all of it, with far fewer
    waits than rows."""
    source = random.Random(8)
    rows = [(source.randrange(GIB // 6144) * 6144, 6144) for _ in range(1000)]
    sparse = Reader(64 * GIB).read((64 * at, size) for at, size in rows)
    assert sparse.amplification < 1.2
    dense = Reader(64 * MIB).read(
        (source.randrange(64 * MIB // 6144) * 6144, 6144) for _ in range(8000)
    )
    assert dense.waits < 500
    assert dense.amplification == 1


def test_readers_that_serve_themselves() -> None:
    """A mount reads by itself what has come, and is seen again only where that ends. It is known
    there for who it is, and gets a full window each time."""
    reader = Reader(GIB).read(steps(0, GIB, MIB), directly=True)
    assert reader.waits <= 3 + GIB // (WINDOW_SIZE_BYTES_MAX - UNIT_SIZE_BYTES_MAX)
    assert reader.amplification == 1


def test_readers_that_serve_themselves_and_come_by() -> None:
    """One read of each unit that is told is enough to keep what is ahead of it coming."""
    reader = Reader(GIB)
    for at, size in steps(0, GIB, MIB):
        reader.read([(at, size)], directly=(at + size) % UNIT_SIZE_BYTES_MAX != 0)
    assert reader.waits <= 4
    assert reader.amplification == 1


def test_who_is_served_by_others_is_due_before_the_end() -> None:
    """Half a window before what was fetched is used up, and not where the file ends."""
    ahead = ReadAhead(64 * MIB)
    assert not ahead.is_due(MIB)
    for at, size in steps(0, 16 * MIB, MIB):
        wanted, _ = ahead.advance(at, at + size, at + size)
        assert wanted is None or wanted.end <= 64 * MIB
    assert not ahead.is_due(at + size + 4096)
    assert any(ahead.is_due(end) for end in range(17 * MIB, 49 * MIB, MIB))
    for at, size in steps(16 * MIB, 64 * MIB, MIB):
        ahead.advance(at, at + size, at + size)
    assert not any(ahead.is_due(end) for end in range(0, 65 * MIB, MIB))


def test_a_window_that_was_made_longer() -> None:
    """Where a pack's rest comes with it, the next window begins there."""
    ahead = ReadAhead(GIB)
    wanted, _ = ahead.advance(0, MIB, GIB)
    assert wanted == (MIB, 3 * MIB)
    ahead.extended(3 * MIB, 4 * MIB)
    wanted, _ = ahead.advance(MIB, 3 * MIB, GIB)
    assert wanted is not None
    assert wanted.first == 4 * MIB
