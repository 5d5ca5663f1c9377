"""Windows that are cut apart and joined give the cuts of the whole."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.format.chunking import ChunkingParams, cut
from lodefs.chunkstore.push.workers.window_join import join_window

PARAMS = ChunkingParams(64, 256, 1024)


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """Bytes as files have them: noise, zeros, repeated text, one after the other."""
    parts = []
    for _ in range(draw(st.integers(1, 5))):
        size = draw(st.integers(0, 6000))
        kind = draw(st.sampled_from(["noise", "zeros", "text"]))
        seed = draw(st.integers(0, 1 << 16))
        if kind == "noise":
            parts.append(Random(seed).randbytes(size))
        elif kind == "zeros":
            parts.append(bytes(size))
        else:
            line = Random(seed).randbytes(1 + seed % 400)
            parts.append((line * (size // len(line) + 1))[:size])
    return b"".join(parts)


def cut_in_windows(data: bytes, window_bytes: int) -> tuple[list[int], int]:
    """The cuts that joined windows give, and how many of them had to be made anew."""
    ends: list[int] = []
    start = fresh = 0
    for offset in range(0, len(data), window_bytes):
        first = max(0, offset - PARAMS.size_bytes_max) if offset else 0
        window = memoryview(data)[first : offset + window_bytes]
        final = offset + window_bytes >= len(data)
        known = cut(window, PARAMS, final=final)
        joined = join_window(window, known, start - first, PARAMS, final=final)
        found = [first + end for end in (*joined.fresh, *known[joined.reused :])]
        fresh += len(joined.fresh)
        ends += found
        start = found[-1] if found else start
    return ends, fresh


@given(contents(), st.integers(1024, 9000))
def test_windows_give_the_cuts_of_the_whole(data: bytes, window_bytes: int) -> None:
    """Whatever the content and the windows, joined windows give exactly the sequential cuts."""
    ends, _ = cut_in_windows(data, window_bytes)
    assert ends == cut(data, PARAMS)


@given(contents(), st.integers(1, 3000), st.booleans())
def test_join_from_any_start(data: bytes, start: int, final: bool) -> None:
    """From whatever offset the window is joined, the cuts are those of cutting from there."""
    start = min(start, len(data))
    window = memoryview(data)
    known = cut(window, PARAMS, final=final)
    joined = join_window(window, known, start, PARAMS, final=final)
    expected = [start + end for end in cut(window[start:], PARAMS, final=final)]
    assert [*joined.fresh, *known[joined.reused :]] == expected


def test_little_is_cut_anew() -> None:
    """In noise, few of the cuts are made anew: most windows agree from the start on."""
    data = Random(1).randbytes(400_000)
    ends, fresh = cut_in_windows(data, 16 * 1024)
    assert ends == cut(data, PARAMS)
    assert fresh < len(ends) / 10


def test_zeros_need_nothing_anew() -> None:
    """Zeros are cut at the maximum everywhere, so windows of whole maxima agree at once."""
    ends, fresh = cut_in_windows(bytes(64 * 1024), 8 * 1024)
    assert ends == list(range(1024, 64 * 1024 + 1, 1024))
    assert fresh == 0
