"""The tombstones of gc runs in the push index, so that each machine reads them once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from zlib import crc32

from lodefs.chunkstore.format.journal import DeletionOutcome, Garbage, JournalEntry
from lodefs.chunkstore.format.names import ID_BYTES, PackId
from lodefs.chunkstore.journal.journal import OlderJournal
from lodefs.chunkstore.journal.ref_write import RefWrite
from lodefs.chunkstore.journal.tombstoned import NamedChunks, chunks_of, ids_of
from lodefs.chunkstore.push.index.push_index import IndexBroken, PushIndex

_TABLE = """CREATE TABLE IF NOT EXISTS condemned
    (number INTEGER PRIMARY KEY, ids BLOB NOT NULL, sum INTEGER NOT NULL)"""
_CHUNKS_TABLE = """CREATE TABLE IF NOT EXISTS condemned_chunks
    (pack BLOB, number INTEGER, bits BLOB NOT NULL, sum INTEGER NOT NULL,
    PRIMARY KEY (pack, number)) WITHOUT ROWID"""
_NEWEST_TABLE = """CREATE TABLE IF NOT EXISTS condemned_newest
    (number INTEGER PRIMARY KEY, token TEXT NOT NULL)"""
_FIND_AT_ONCE = 256

_ADD_CHUNKS = "INSERT OR REPLACE INTO condemned_chunks VALUES (?, ?, ?, ?)"


class CondemnedRows:
    """CondemnedIds in a push index. Its methods raise what those of PushIndex raise."""

    def __init__(self, index: PushIndex) -> None:
        self._index = index
        with index.writing() as db:
            db.execute(_TABLE)
            db.execute(_CHUNKS_TABLE)
            db.execute(_NEWEST_TABLE)

    @property
    def newest(self) -> int | None:
        rows = self._index.select("SELECT MAX(number) FROM condemned")
        number: int | None = rows[0][0]
        return number

    @property
    def newest_token(self) -> str | None:
        rows = self._index.select(
            "SELECT token FROM condemned_newest WHERE number = ?", (self.newest,)
        )
        return str(rows[0][0]) if rows else None

    def add(self, entries: Sequence[JournalEntry]) -> None:
        rows = [_row(entry.number, ids_of(entry.tombstoned)) for entry in entries]
        with self._index.writing() as db:
            db.executemany("INSERT OR REPLACE INTO condemned VALUES (?, ?, ?)", rows)
            for entry in entries:
                db.executemany(_ADD_CHUNKS, _chunk_rows(entry.number, entry.tombstoned))
            if entries:
                newest = entries[-1].number, entries[-1].token
                db.execute("DELETE FROM condemned_newest WHERE number < ?", newest[:1])
                db.execute("INSERT OR REPLACE INTO condemned_newest VALUES (?, ?)", newest)

    def find(self, ids: Collection[bytes]) -> dict[int, set[bytes]]:
        wanted = set(ids)
        found: dict[int, set[bytes]] = {}
        for number, joined, checksum in self._index.select("SELECT * FROM condemned"):
            if crc32(joined, number & 0xFFFFFFFF) != checksum or len(joined) % ID_BYTES:
                raise IndexBroken(
                    f"the push index {self._index.path} is broken: tombstoned ids are damaged"
                )
            some = {joined[at : at + ID_BYTES] for at in range(0, len(joined), ID_BYTES)}
            if some := some.intersection(wanted):
                found[number] = some
        return found

    def find_chunks(self, named: NamedChunks) -> dict[int, dict[PackId, int]]:
        found: dict[int, dict[PackId, int]] = {}
        packs = list(named)
        for at in range(0, len(packs), _FIND_AT_ONCE):
            some = packs[at : at + _FIND_AT_ONCE]
            marks = ",".join("?" * len(some))
            statement = f"SELECT * FROM condemned_chunks WHERE pack IN ({marks})"
            for pack, number, bits, checksum in self._index.select(statement, some):
                if crc32(bits, crc32(pack, number & 0xFFFFFFFF)) != checksum:
                    raise IndexBroken(
                        f"the push index {self._index.path} is broken: tombstones are damaged"
                    )
                if both := int.from_bytes(bits, "little") & named[pack]:
                    found.setdefault(number, {})[pack] = both
        return found

    def settle(self, outcome: DeletionOutcome) -> None:
        with self._index.writing() as db:
            db.execute(
                "UPDATE condemned SET ids = ?2, sum = ?3 WHERE number = ?1",
                _row(outcome.number, ids_of(outcome.deleted)),
            )
            db.execute("DELETE FROM condemned_chunks WHERE number = ?", (outcome.number,))
            db.executemany(_ADD_CHUNKS, _chunk_rows(outcome.number, outcome.deleted))


def _chunk_rows(number: int, garbage: Garbage | None) -> list[tuple[bytes, int, bytes, int]]:
    rows: list[tuple[bytes, int, bytes, int]] = []
    for pack, chunks in chunks_of(garbage).items():
        bits = chunks.to_bytes((chunks.bit_length() + 7) // 8, "little")
        rows.append((pack, number, bits, crc32(bits, crc32(pack, number & 0xFFFFFFFF))))
    return rows


def _row(number: int, ids: Sequence[bytes]) -> tuple[int, bytes, int]:
    joined = b"".join(ids)
    return number, joined, crc32(joined, number & 0xFFFFFFFF)


def learn(write: RefWrite, tombstoned: CondemnedRows, index: PushIndex) -> None:
    """Adds the tombstones from before the writer began. Raises: IndexBroken if the index is of a
    newer store."""
    try:
        write.learn(tombstoned)
    except OlderJournal as error:
        raise IndexBroken(f"the push index {index.path} is of a newer store: {error}") from error
