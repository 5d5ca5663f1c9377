"""Stores a chunk's bytes as they are, or as one zstd frame (RFC 8878).

The only importer of zstandard. A frame has neither size nor checksum: the pack's index has the raw
size, and the chunk's id is the checksum.
"""

from __future__ import annotations

import io
import threading
from typing import BinaryIO, cast

import zstandard

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.types import Buffer

RAW = 0
ZSTD = 1
CODECS = bytes((RAW, ZSTD))
LEVEL = 3
_GAIN_DIVISOR = 32  # a chunk that shrinks by less than 1/32 is stored raw: reading it is cheaper
_SIZE_BYTES_LEAST = 32  # below this, a frame's header outweighs the gain
_STREAK_CHUNKS = 4  # raw chunks in a row after which fewer are tried
_STEP_CHUNKS_MAX = 16

_contexts = threading.local()  # zstd contexts are expensive, and not for two threads at once


def compress(raw: Buffer, level: int = LEVEL) -> tuple[int, Buffer]:
    """Returns the codec and the bytes to store: the same object if zstd does not shrink them."""
    size_bytes = len(raw)
    if size_bytes < _SIZE_BYTES_LEAST:
        return RAW, raw
    stored = _compressor(level).compress(raw)
    if len(stored) > size_bytes - size_bytes // _GAIN_DIVISOR - 1:
        return RAW, raw
    return ZSTD, stored


def decompress(codec: int, stored: Buffer, raw_size_bytes: int) -> Buffer:
    """Returns the raw bytes, exactly ``raw_size_bytes`` of them; it allocates no more. Raises:
    Corrupt."""
    if codec == ZSTD:
        try:
            raw: Buffer = _decompressor().decompress(stored, max_output_size=raw_size_bytes)
        except zstandard.ZstdError as error:
            raise Corrupt(f"bytes are not a zstd frame: {error}") from error
    elif codec == RAW:
        raw = stored
    else:
        raise Corrupt(f"codec {codec} is unknown")
    if len(raw) != raw_size_bytes:
        raise Corrupt(f"decompression gave {len(raw)} bytes for a chunk of {raw_size_bytes} bytes")
    return raw


class _ZstdReader(io.RawIOBase):
    def __init__(self, stream: BinaryIO) -> None:
        self._reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            return self._reader.read(size)
        except zstandard.ZstdError as error:
            raise OSError(f"bytes are not a zstd frame: {error}") from error


def zstd_reader(stream: BinaryIO) -> BinaryIO:
    """Returns the raw bytes of a file that zstd has written, as a stream; its memory is bounded.
    Reading it raises OSError for bytes that are no frames, as the readers of gzip and bzip2 do."""
    return cast("BinaryIO", _ZstdReader(stream))


class RawStreak:
    """Compresses the chunks of one file in order, and mostly stops if nothing is gained.

    After some raw chunks in a row, it tries only every 2nd, 4th, ... 16th chunk until one shrinks.
    The result depends only on the chunks before. For one thread.
    """

    def __init__(self, level: int = LEVEL) -> None:
        self._level = level
        self._failed = 0  # failed tries since the last successful one
        self._skip = 0  # chunks still to skip

    def compress(self, raw: Buffer) -> tuple[int, Buffer]:
        """Does what the function compress does."""
        if self._skip:
            self._skip -= 1
            return RAW, raw
        codec, stored = compress(raw, self._level)
        if codec == RAW:
            self._failed += 1
            doublings = max(0, self._failed - _STREAK_CHUNKS + 1)
            self._skip = min(2**doublings, _STEP_CHUNKS_MAX) - 1
        else:
            self._failed = 0
        return codec, stored


def _compressor(level: int) -> zstandard.ZstdCompressor:
    by_level: dict[int, zstandard.ZstdCompressor] = _contexts.__dict__.setdefault("by_level", {})
    found = by_level.get(level)
    if found is None:
        found = by_level[level] = zstandard.ZstdCompressor(
            level=level, write_content_size=False, write_checksum=False, write_dict_id=False
        )
    return found


def _decompressor() -> zstandard.ZstdDecompressor:
    found: zstandard.ZstdDecompressor | None = getattr(_contexts, "decompressor", None)
    if found is None:
        found = _contexts.decompressor = zstandard.ZstdDecompressor()
    return found
