"""Objects of Git LFS in pieces: the bytes on the wire, and bytes that are wrong."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.protocol.lfs_recipe import (
    KNOWN,
    MAGIC,
    Decoder,
    Hole,
    Piece,
    decode_holes,
    encode,
    encode_holes,
)

ID = bytes(range(32))
PIECES = [Piece(0, 3, b"new"), Piece(KNOWN, 300, ID), Piece(1, 9, b"zstd")]
GOLDEN = (
    b"LFSR\x01"
    b"\x00\x03\x00\x00\x00\x03\x00\x00\x00new"
    b"\x02\x2c\x01\x00\x00\x20\x00\x00\x00" + ID + b"\x01\x09\x00\x00\x00\x04\x00\x00\x00zstd"
)


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_golden_bytes(step: int) -> None:
    """Version 1 is these bytes, in whatever parts they come."""
    assert MAGIC + b"".join(map(encode, PIECES)) == GOLDEN
    decoder, found = Decoder(), list[Piece]()
    for start in range(0, len(GOLDEN), step):
        found += decoder.feed(GOLDEN[start : start + step])
    decoder.end()
    assert found == PIECES


@pytest.mark.parametrize(
    "data",
    [
        b"LFSR\x02",
        b"other bytes",
        MAGIC + b"\x03\x01\x00\x00\x00\x01\x00\x00\x00x",  # an unknown kind
        MAGIC + b"\x00\x02\x00\x00\x00\x01\x00\x00\x00x",  # raw bytes of another size
        MAGIC + b"\x00\x00\x00\x00\x00\x00\x00\x00\x00",  # nothing
        MAGIC + b"\x01\x01\x00\x00\x00\xff\xff\xff\xff",  # more than it unpacks to
        MAGIC + b"\x01\xff\xff\xff\xff\x01\x00\x00\x00",  # larger than any chunk
        MAGIC + b"\x02\x01\x00\x00\x00\x03\x00\x00\x00abc",  # a short id
    ],
)
def test_bad_bytes(data: bytes) -> None:
    """Another version, and pieces that cannot be, are refused before they are waited for."""
    with pytest.raises(InvalidInput):
        list(Decoder().feed(data))


@pytest.mark.parametrize("data", [b"", b"LF", GOLDEN[:-1]])
def test_incomplete_bytes(data: bytes) -> None:
    """What ends within a piece is incomplete."""
    decoder = Decoder()
    list(decoder.feed(data))
    with pytest.raises(InvalidInput, match="incomplete"):
        decoder.end()


def test_holes() -> None:
    """Places of chunks are packed and unpacked."""
    holes = [Hole(ID, 1 << 40, 65536), Hole(ID[::-1], 0, 1)]
    assert decode_holes(encode_holes(holes)) == holes
