"""The interface of a node's index, and its in-memory implementation.

The real one is kv_rocks.py (RocksDB). One process writes; others read a secondary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

Row = tuple[bytes, bytes | None]  # a None value deletes the key


class KeyValues(Protocol):
    """An ordered map of bytes to bytes. Safe for use by many threads at once."""

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """One value or None for each key, in the order of the keys; one call for all of them."""
        ...

    def write(self, rows: Sequence[Row], *, durable: bool = False) -> None:
        """Puts and deletes all rows or none; later rows win. ``durable``: on disk on return.

        Raises: Corrupt, NoSpace, Unavailable.
        """
        ...

    def scan(self, prefix: bytes, *, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Rows whose key starts with ``prefix`` and is greater than ``after``, in key order."""
        ...

    def floor(self, prefix: bytes, key: bytes) -> tuple[bytes, bytes] | None:
        """The last row whose key starts with ``prefix`` and is not greater than ``key``."""
        ...

    def catch_up(self) -> None:
        """A reader's view moves on to what the writer has written by now."""
        ...

    def close(self) -> None:
        """Frees the files. Nothing is called afterwards."""
        ...


class MemoryKeyValues:
    """KeyValues in a dictionary: the reference implementation, for tests."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.rows.get(key) for key in keys]

    def write(self, rows: Sequence[Row], *, durable: bool = False) -> None:  # noqa: ARG002
        for key, value in rows:
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def scan(self, prefix: bytes, *, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        keys = sorted(key for key in list(self.rows) if key.startswith(prefix) and key > after)
        return ((key, self.rows[key]) for key in keys)

    def floor(self, prefix: bytes, key: bytes) -> tuple[bytes, bytes] | None:
        found = max((k for k in list(self.rows) if k.startswith(prefix) and k <= key), default=None)
        return None if found is None else (found, self.rows[found])

    def catch_up(self) -> None:
        """Always there."""

    def close(self) -> None:
        """Nothing to free."""
