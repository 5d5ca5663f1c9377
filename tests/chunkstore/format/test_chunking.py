"""Cuts: their sizes, and that a window gives the same ones as the whole."""

from __future__ import annotations

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.chunking import ChunkingParams, cut

SMALL = ChunkingParams(256, 1024, 4096)
NOISE = blake3(b"noise").digest(length=60_000)

streams = st.builds(
    lambda first, size, gap: NOISE[first : first + size] + bytes(gap) + NOISE[:first],
    st.integers(0, 20_000),
    st.integers(0, 40_000),
    st.integers(0, 20_000),
)


@given(streams)
def test_chunks_fill_the_data_within_the_limits(data: bytes) -> None:
    """Chunks follow each other to the end; all but the last have at least the least size."""
    ends = cut(data, SMALL)
    sizes = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    assert sum(sizes) == len(data)
    assert all(size <= SMALL.size_bytes_max for size in sizes)
    assert all(size >= SMALL.size_bytes_min for size in sizes[:-1])


@given(streams, st.integers(SMALL.size_bytes_max + 1, 30_000))
def test_a_caller_can_carry_the_rest(data: bytes, window: int) -> None:
    """Cuts that are not final, each time from the last one on, are those of the whole."""
    ends, begin = [], 0
    while begin + window < len(data):
        found = cut(data[begin : begin + window], SMALL, final=False)
        assert found
        ends += [begin + end for end in found]
        begin = ends[-1]
    ends += [begin + end for end in cut(data[begin:], SMALL)]
    assert ends == cut(data, SMALL)


@given(streams)
def test_cuts_move_with_the_content(data: bytes) -> None:
    """A stream that begins at a cut of another one is cut like the rest of it."""
    ends = cut(data, SMALL)
    for first in ends[:3]:
        assert [first + end for end in cut(data[first:], SMALL)] == [e for e in ends if e > first]


def test_nothing_has_no_chunks() -> None:
    """No bytes, no cuts, in a window or at the end."""
    assert cut(b"", SMALL) == cut(b"", SMALL, final=False) == []


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer(kind: type) -> None:
    """Any buffer can be cut, and is not changed or copied for it."""
    assert cut(kind(NOISE), SMALL) == cut(NOISE, SMALL)


@pytest.mark.parametrize(
    "sizes",
    [(0, 1024, 4096), (2048, 1024, 4096), (256, 8192, 4096), (256, 1024, 2**25), (64, 128, 4096)],
)
def test_sizes_that_make_no_sense(sizes: tuple[int, int, int]) -> None:
    """Sizes that do not grow, or that a reader would not take, are refused."""
    with pytest.raises(InvalidInput, match="do not make sense"):
        ChunkingParams(*sizes)
