"""Hooks in the push index: how it finds the chunks of a store that has too many to know them all.

A hook is a chunk that stands for its pack (index_shard.py). A push that cuts a chunk with the same
id reads the index of that pack, whose other chunks are likely to come next (Lillibridge et al.,
"Sparse Indexing", 2009). So a row is only a hint: a wrong one costs a request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from lodefs.chunkstore.format.index_shard import PackChunks, PackHooks, hooks_of
from lodefs.chunkstore.format.names import ID_BYTES, PackId

_TABLE = "CREATE TABLE IF NOT EXISTS hooks (id INTEGER PRIMARY KEY, pack BLOB NOT NULL)"
_FIND_AT_ONCE = 256


class IndexFile(Protocol):
    """The part of a PushIndex that a table in it needs."""

    def select(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]: ...

    def writing(self) -> AbstractContextManager[Any]: ...


class HookRows:
    """The newest pack of each hook, by the first bytes of the chunk's id. Methods raise what those
    of PushIndex raise."""

    def __init__(self, index: IndexFile) -> None:
        self._index = index
        is_there = index.select("SELECT 1 FROM sqlite_master WHERE name = 'hooks'")
        self._has_any = bool(is_there and index.select("SELECT 1 FROM hooks LIMIT 1"))

    def add(self, packs: Iterable[PackHooks]) -> None:
        """Adds the hooks of packs, of which the last are the newest."""
        rows = {key: pack.pack_id for pack in packs for key in _keys(pack.ids)}
        with self._index.writing() as db:
            db.execute(_TABLE)
            # Sorted like the table, which is faster
            db.executemany("INSERT OR REPLACE INTO hooks VALUES (?, ?)", sorted(rows.items()))
        self._has_any = True

    def packs_of(self, chunk_ids: Sequence[bytes]) -> dict[PackId, list[int]]:
        """Returns the packs for which these chunks stand, each with the keys of its rows."""
        found: dict[PackId, list[int]] = {}
        for start in range(0, len(chunk_ids) if self._has_any else 0, _FIND_AT_ONCE):
            part = [*_keys(b"".join(chunk_ids[start : start + _FIND_AT_ONCE]))]
            size = 1 << (len(part) - 1).bit_length()  # few different statements stay prepared
            part += part[-1:] * (size - len(part))
            marks = ",".join("?" * size)
            for key, pack in self._index.select(f"SELECT * FROM hooks WHERE id IN ({marks})", part):
                if isinstance(pack, bytes) and len(pack) == ID_BYTES:  # the file may be damaged
                    found.setdefault(PackId(pack), []).append(key)
        return found

    def settle(self, read: Mapping[PackId, tuple[Sequence[int], PackChunks | None]]) -> None:
        """Removes the rows of packs that were read, or could not be (None): those with the given
        keys, and all that the pack really has."""
        rows = [
            (key, pack_id)
            for pack_id, (keys, pack) in read.items()
            for key in {*keys, *(_keys(hooks_of(pack).ids) if pack is not None else ())}
        ]
        with self._index.writing() as db:
            db.executemany("DELETE FROM hooks WHERE id = ? AND pack = ?", rows)

    def forget(self, packs: Collection[PackId]) -> None:
        """Removes all rows of packs. It looks at every row."""
        some = sorted(packs)
        with self._index.writing() as db:
            for at in range(0, len(some) if self._has_any else 0, _FIND_AT_ONCE):
                part = some[at : at + _FIND_AT_ONCE]
                db.execute(f"DELETE FROM hooks WHERE pack IN ({','.join('?' * len(part))})", part)


def _keys(ids: bytes) -> Iterator[int]:
    """Yields the keys of joined ids. SQLite's integers have 63 bits and a sign."""
    for at in range(0, len(ids), ID_BYTES):
        yield int.from_bytes(ids[at : at + 8], "little") >> 1
