"""Places: the numbers by which a push index knows where chunks lie. See fragmentation.py.

A place is the number of a pack and, below that, the number of the chunk in it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from lodefs.chunkstore.format.names import ID_BYTES

NUMBER_BITS = 20  # of a place: the chunk's number in its pack; the pack's number is above


def pack_number(pack_id: bytes) -> int:
    """A pack's number: bits of its id. Of two packs with one number the second is not
    remembered."""
    return int.from_bytes(pack_id[:8], "little") >> (NUMBER_BITS + 1)


def split(place: int) -> tuple[int, int]:
    """The number of the pack, and of the chunk in it."""
    return place >> NUMBER_BITS, place & ((1 << NUMBER_BITS) - 1)


def begins_pack(place: int) -> bool:
    """Whether a place is that of the first chunk of a pack."""
    return place & ((1 << NUMBER_BITS) - 1) == 0


def chunk_rows(number: int, ids: bytes, first: int = 0) -> Iterator[tuple[bytes, int, int]]:
    """Id, place and checksum of the chunks of the pack ``number``, from chunk ``first`` on."""
    place = (number << NUMBER_BITS) + first
    for at in range(0, len(ids), ID_BYTES):
        chunk_id = ids[at : at + ID_BYTES]
        yield chunk_id, place, chunk_sum(chunk_id, place)
        place += 1


def chunk_sum(chunk_id: bytes, place: int) -> int:
    """The checksum of a chunk's row."""
    return crc32(chunk_id, place & 0xFFFFFFFF) ^ place >> 32
