"""Chunks come back as they were, and hostile frames do no harm."""

from __future__ import annotations

import threading

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.format.compression import RAW, ZSTD, RawStreak, compress, decompress
from tests.support.chunkstore.strategies import chunks

NOISE = blake3(b"noise").digest(length=4096)
TEXT = b"text and more text, " * 200


@given(chunks)
def test_round_trip(raw: bytes) -> None:
    """What was compressed comes back, and is never stored larger than it is."""
    codec, stored = compress(raw)
    assert decompress(codec, stored, len(raw)) == raw
    assert len(stored) <= len(raw)


def test_codecs() -> None:
    """Text is compressed; noise is stored as it is, without a copy."""
    assert compress(TEXT)[0] == ZSTD
    codec, stored = compress(NOISE)
    assert codec == RAW
    assert stored is NOISE


@pytest.mark.parametrize(
    ("codec", "stored", "size"),
    [
        (ZSTD, compress(TEXT)[1], len(TEXT) - 1),
        (ZSTD, compress(TEXT)[1], len(TEXT) + 1),
        (ZSTD, compress(TEXT)[1][:-1], len(TEXT)),
        (ZSTD, b"", 1),
        (ZSTD, b"not a frame", 100),
        (ZSTD, compress(bytes(10_000_000))[1], 100),
        (RAW, b"abc", 2),
        (RAW, b"abc", 4),
        (7, b"abc", 3),
    ],
)
def test_wrong_bytes(codec: int, stored: bytes, size: int) -> None:
    """Frames that are cut off, too long, too short or none, and unknown codecs are Corrupt."""
    with pytest.raises(Corrupt):
        decompress(codec, stored, size)


@given(st.binary(max_size=60), st.integers(1, 1000))
def test_any_bytes(stored: bytes, size: int) -> None:
    """Any bytes are decompressed to the size that was asked for, or Corrupt."""
    try:
        raw = decompress(ZSTD, stored, size)
    except Corrupt:
        return
    assert len(raw) == size


def test_streak_stops_trying() -> None:
    """In a row of noise, fewer and fewer chunks are tried; one that shrinks ends the streak."""
    streak = RawStreak()
    for _ in range(40):
        assert streak.compress(NOISE)[0] == RAW
    tried = [streak.compress(TEXT)[0] == ZSTD for _ in range(40)]
    assert 0 < tried.index(True) <= 15
    assert all(tried[tried.index(True) :])


def test_streak_tries_the_first_chunks() -> None:
    """A few raw chunks at the start of a file do not stop the trying."""
    streak = RawStreak()
    codecs = [streak.compress(raw)[0] for raw in (NOISE, NOISE, NOISE, TEXT, NOISE, TEXT)]
    assert codecs == [RAW, RAW, RAW, ZSTD, RAW, ZSTD]


@given(st.lists(st.sampled_from([NOISE, TEXT]), max_size=60))
def test_streak_depends_on_the_file_alone(file: list[bytes]) -> None:
    """The same chunks in the same order are stored in the same way."""
    one, other = RawStreak(), RawStreak()
    assert [one.compress(raw) for raw in file] == [other.compress(raw) for raw in file]


def test_threads_have_their_own_contexts() -> None:
    """Many threads compress and decompress at once."""
    failed: list[int] = []

    def work(n: int) -> None:
        raw = bytes((n,)) * 5000 + TEXT
        for _ in range(50):
            codec, stored = compress(raw)
            if decompress(codec, stored, len(raw)) != raw:
                failed.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
