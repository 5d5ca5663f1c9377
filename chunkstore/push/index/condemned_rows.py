"""What collections have condemned, in the push index: read once by each machine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from zlib import crc32

from lodefs.chunkstore.format.journal import Fate, JournalEntry
from lodefs.chunkstore.format.names import ID_BYTES
from lodefs.chunkstore.journal.condemned import ids_of
from lodefs.chunkstore.push.index.push_index import IndexBroken, PushIndex

_TABLE = """CREATE TABLE IF NOT EXISTS condemned
    (number INTEGER PRIMARY KEY, ids BLOB NOT NULL, sum INTEGER NOT NULL)"""


class CondemnedRows:
    """CondemnedIds in a push index. Methods raise as those of PushIndex."""

    def __init__(self, index: PushIndex) -> None:
        self._index = index
        with index.writing() as db:
            db.execute(_TABLE)

    @property
    def newest(self) -> int | None:
        rows = self._index.select("SELECT MAX(number) FROM condemned")
        number: int | None = rows[0][0]
        return number

    def add(self, entries: Sequence[JournalEntry]) -> None:
        rows = [_row(entry.number, ids_of(entry.condemned)) for entry in entries]
        with self._index.writing() as db:
            db.executemany("INSERT OR REPLACE INTO condemned VALUES (?, ?, ?)", rows)

    def find(self, ids: Collection[bytes]) -> dict[int, set[bytes]]:
        wanted = set(ids)
        found: dict[int, set[bytes]] = {}
        for number, joined, checksum in self._index.select("SELECT * FROM condemned"):
            if crc32(joined, number & 0xFFFFFFFF) != checksum or len(joined) % ID_BYTES:
                raise IndexBroken(
                    f"the push index {self._index.path} is broken: condemned ids are damaged"
                )
            some = {joined[at : at + ID_BYTES] for at in range(0, len(joined), ID_BYTES)}
            if some := some.intersection(wanted):
                found[number] = some
        return found

    def settle(self, fate: Fate) -> None:
        with self._index.writing() as db:
            db.execute(
                "UPDATE condemned SET ids = ?2, sum = ?3 WHERE number = ?1",
                _row(fate.number, ids_of(fate.deleted)),
            )


def _row(number: int, ids: Sequence[bytes]) -> tuple[int, bytes, int]:
    joined = b"".join(ids)
    return number, joined, crc32(joined, number & 0xFFFFFFFF)
