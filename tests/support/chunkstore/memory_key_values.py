"""KeyValues in memory: the reference implementation of kv.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lodefs.chunkstore.nodecache.kv import Row


class MemoryKeyValues:
    """KeyValues in a dictionary: the reference implementation."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.rows.get(key) for key in keys]

    def lacks(self, keys: Sequence[bytes]) -> bool:
        return self.rows.keys().isdisjoint(keys)

    def write(self, rows: Sequence[Row], *, durable: bool = False) -> None:
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
