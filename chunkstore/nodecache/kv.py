"""The interface of a node's index. kv_rocks.py implements it with RocksDB.

One process writes; others read a secondary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

Row = tuple[bytes, bytes | None]  # a None value deletes the key


class KeyValues(Protocol):
    """An ordered map of bytes to bytes. Safe for use by many threads at once."""

    def get(self, key: bytes) -> bytes | None:
        """Returns the value, or None."""
        ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Returns a value or None for each key, in the order of the keys, with one call."""
        ...

    def lacks(self, keys: Sequence[bytes]) -> bool:
        """Whether it has none of the keys, as far as memory tells: it never waits for the disk, so
        that False may be wrong."""
        ...

    def write(self, rows: Sequence[Row], *, durable: bool = False) -> None:
        """Puts and deletes all rows or none; later rows win. ``durable``: they are on disk on
        return.

        Raises: Corrupt, NoSpace, Unavailable.
        """
        ...

    def scan(self, prefix: bytes, *, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yields rows whose key starts with ``prefix`` and is greater than ``after``, in key
        order."""
        ...

    def floor(self, prefix: bytes, key: bytes) -> tuple[bytes, bytes] | None:
        """Returns the last row whose key starts with ``prefix`` and is not greater than ``key``."""
        ...

    def catch_up(self) -> None:
        """Updates a reader's view to what the writer has written so far."""
        ...

    def close(self) -> None:
        """Frees the files. No method may be called afterwards."""
        ...
