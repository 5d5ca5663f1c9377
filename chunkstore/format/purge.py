"""A purge: chunks that somebody wanted to be gone for good. docs/format.md has the table."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from lodefs.chunkstore.errors import Corrupt, InvalidInput
from lodefs.chunkstore.format.envelope import seal, unseal
from lodefs.chunkstore.format.names import ChunkId, parse_id
from lodefs.chunkstore.types import Buffer

VERSION = 1
CHUNKS_MAX = 8192  # of one document: 540 KB
WHAT_CHARS_MAX = 8192
SIZE_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Purge:
    """``what``: a repository and path, percent-encoded, or "" where chunks were named."""

    number: int
    time_s: int  # Unix
    what: str
    chunks: tuple[ChunkId, ...]


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    number: int
    time_s: int
    what: str
    chunks: list[str]


def encode_purge(purge: Purge) -> bytes:
    """The document. Raises: InvalidInput for too many chunks, or too long a path."""
    if len(purge.chunks) > CHUNKS_MAX or len(purge.what) > WHAT_CHARS_MAX:
        raise InvalidInput(f"a purge has {CHUNKS_MAX} chunks at most, not {len(purge.chunks)}")
    chunks = [chunk.hex() for chunk in purge.chunks]
    return seal("purge", VERSION, _Body(purge.number, purge.time_s, purge.what, chunks))


def decode_purge(data: Buffer, number: int, what: str) -> Purge:
    """The purge of that number. Raises: Corrupt, UnknownFormat; ``what`` names it in these."""
    body = unseal("purge", {VERSION: _Body}, data, what)
    if body.number != number:
        raise Corrupt(f"{what} is purge {body.number}, not {number}")
    try:
        chunks = tuple(ChunkId(parse_id(chunk)) for chunk in body.chunks)
    except InvalidInput as error:
        raise Corrupt(f"{what}: {error}") from error
    return Purge(number, body.time_s, body.what, chunks)
