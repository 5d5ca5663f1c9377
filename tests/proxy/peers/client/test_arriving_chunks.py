"""Chunks from a peer are checked as their bytes come."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.format.compression import compress
from lodefs.chunkstore.format.names import ChunkId, digest_of
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.proxy.fetch.cache_write import RawChunks
from lodefs.proxy.fetch.pack_source import FillListener
from lodefs.proxy.peers.client.peer_packs import ArrivingChunks
from tests.support.chunkstore.packs import PackBuilder

RAWS = [bytes([n]) * (10 + 7 * n) for n in range(9)]
FIRST, END = 2, 7
BODY = b"".join(RAWS[FIRST:END])


class Told(FillListener):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[RawChunks] = []

    def arrived(self, chunks: RawChunks) -> None:
        """As of FillListener."""
        self.seen.append(chunks)


def index() -> PackIndex:
    """The index of a pack of RAWS."""
    pack = PackBuilder()
    for raw in RAWS:
        pack.add(ChunkId(digest_of(raw)), *compress(raw), len(raw))
    return pack.finish().index


@given(st.lists(st.integers(0, len(BODY))))
def test_each_chunk_is_told_once_when_all_of_it_has_come(looks: list[int]) -> None:
    """However the body comes in pieces, its chunks are given on in order, and then returned."""
    told = Told()
    check = ArrivingChunks(index(), FIRST, END - FIRST, told)
    ends = list(accumulate(map(len, RAWS[FIRST:END])))
    for size_bytes in sorted(looks):
        check.came(memoryview(BODY)[:size_bytes])
        assert sum(map(len, told.seen)) == sum(end <= size_bytes for end in ends)
    assert check.whole(memoryview(BODY)) == RAWS[FIRST:END]
    items = [item for chunks in told.seen for item in chunks.items()]
    assert items == list(enumerate(RAWS[FIRST:END], FIRST))
    assert all(told.seen)


def test_a_wrong_chunk_is_found_before_the_body_ends() -> None:
    """Nothing from it on is given on."""
    told = Told()
    check = ArrivingChunks(index(), FIRST, END - FIRST, told)
    wrong = bytearray(BODY)
    wrong[len(RAWS[2])] ^= 1
    with pytest.raises(Corrupt, match="chunk 3 does not match its id"):
        check.came(memoryview(wrong)[:-1])
    assert told.seen == []
    with pytest.raises(Corrupt, match="bytes arrived"):
        check.whole(memoryview(BODY)[:-1])
