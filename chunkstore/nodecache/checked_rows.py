"""When the bytes of a cache file were last known to be right: rows of a node's index.

    v number u32 (big-endian)    -> Unix seconds, u64 (little-endian)

The time is that of the last whole check (proxy/cache/scrub.py), or of the file's creation if there
was none yet. A file without a row was never checked. The other rows are layout.py's.
"""

from __future__ import annotations

import struct
from typing import Final

from lodefs.chunkstore.errors import Corrupt

CHECKED: Final = b"v"

_VALUE = struct.Struct("<Q")


def key(number: int) -> bytes:
    """Key of the row of the cache file with that number."""
    return CHECKED + number.to_bytes(4, "big")


def number_of_key(row_key: bytes) -> int:
    """The number in such a key."""
    return int.from_bytes(row_key[1:5], "big")


def encode(checked_s: int) -> bytes:
    """8 bytes."""
    return _VALUE.pack(checked_s)


def decode(value: bytes) -> int:
    """Unix seconds. Raises: Corrupt."""
    try:
        (checked_s,) = _VALUE.unpack(value)
    except struct.error as error:
        raise Corrupt(
            f"the row of a file's check in the cache index is damaged: {error}"
        ) from error
    return int(checked_s)
