"""An object of Git LFS as its pieces: new bytes, and chunks that its repository has already.

A client sends ``MAGIC``, then pieces in the order of the object. Each has a head (_HEAD): how its
bytes are written, or KNOWN; its size; the size of what follows. What follows is the chunk's id for
KNOWN, else the bytes. The receiver checks the SHA-256 of the whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.chunking import CHUNK_SIZE_BYTES_LIMIT
from lodefs.chunkstore.format.compression import RAW, ZSTD
from lodefs.chunkstore.format.names import ID_BYTES
from lodefs.chunkstore.types import Buffer

MAGIC = b"LFSR\x01"  # the last byte is the version
KNOWN = 2
_HEAD = struct.Struct("<BII")
_PLACE = struct.Struct(f"<{ID_BYTES}sQI")


class Piece(NamedTuple):
    """A run of bytes of an object. ``data`` has them as ``codec`` says, or is a chunk's id."""

    codec: int
    size_bytes: int
    data: Buffer


class Hole(NamedTuple):
    """A place in a file which the bytes of a chunk belong to."""

    chunk_id: bytes
    offset: int
    size_bytes: int


def encode(piece: Piece) -> bytes:
    return _HEAD.pack(piece.codec, piece.size_bytes, len(piece.data)) + piece.data


def encode_holes(holes: Sequence[Hole]) -> bytes:
    return b"".join(_PLACE.pack(*hole) for hole in holes)


def decode_holes(data: bytes) -> list[Hole]:
    return [Hole(*found) for found in _PLACE.iter_unpack(data)]


class Decoder:
    """Takes the bytes of a recipe as they come."""

    def __init__(self) -> None:
        self._left = bytearray()
        self._has_begun = False

    def feed(self, data: bytes) -> Iterator[Piece]:
        """Yields the pieces that are complete. Raises: InvalidInput, also for another version."""
        self._left += data
        at = 0
        if not self._has_begun:
            if len(self._left) < len(MAGIC):
                return
            at = len(MAGIC)
            if self._left[:at] != MAGIC:
                raise InvalidInput(
                    "these bytes are not the pieces of an object, or a later lodefs sent them"
                )
            self._has_begun = True
        while at + _HEAD.size <= len(self._left):
            codec, size_bytes, sent_bytes = _HEAD.unpack_from(self._left, at)
            _check(codec, size_bytes, sent_bytes)
            end = at + _HEAD.size + sent_bytes
            if end > len(self._left):
                break
            yield Piece(codec, size_bytes, bytes(self._left[at + _HEAD.size : end]))
            at = end
        del self._left[:at]

    def end(self) -> None:
        """Raises: InvalidInput if a piece is incomplete."""
        if self._left or not self._has_begun:
            raise InvalidInput("the pieces of the object are incomplete")


def _check(codec: int, size_bytes: int, sent_bytes: int) -> None:
    fits = {
        RAW: sent_bytes == size_bytes,
        ZSTD: sent_bytes < size_bytes,
        KNOWN: sent_bytes == ID_BYTES,
    }
    if not fits.get(codec, False) or not 0 < size_bytes <= CHUNK_SIZE_BYTES_LIMIT:
        raise InvalidInput(f"no piece of an object is of kind {codec} with {size_bytes} bytes")
