"""A machine's record of a store between its pushes: where chunks and trees lie. The same file holds
the stats of the source directories that were pushed (stat_cache.py).

Each store has one SQLite file. All of it can be rebuilt from index shards and by reading files, so
a broken file is renamed and replaced. SQLite does not notice flipped bits, so every row has a
checksum. The only importer of sqlite3.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
import struct
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from lodefs.chunkstore.errors import (
    Changed,
    Corrupt,
    Denied,
    InUse,
    LodefsError,
    NoSpace,
    NotFound,
    UnknownFormat,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.index_shard import PackChunks, ShardPack, push_id_of
from lodefs.chunkstore.format.names import ID_BYTES, PackId
from lodefs.chunkstore.format.pack import pack_id_of_columns
from lodefs.chunkstore.format.tree import Segment
from lodefs.chunkstore.journal.named_packs import add_segments
from lodefs.chunkstore.journal.removed_shards import removed_shards
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.push.fragmentation import Run
from lodefs.chunkstore.repo.shard_reader import has_shard, read_shard

SCHEMA_VERSION = 3
LOCK_TIMEOUT_S = 60.0
SHARDS_AHEAD = 32  # index shards in memory; large ones in part
_SPOILED = (Changed, Corrupt, NotFound, UnknownFormat)
_LEFT_OUT = "skipped a damaged index shard: %s"
CACHE_KIB = 32 * 1024

_SCHEMA = """
CREATE TABLE packs (number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, sum INTEGER NOT NULL);
CREATE TABLE unpublished (pack INTEGER PRIMARY KEY, ids BLOB NOT NULL, sizes BLOB NOT NULL);
CREATE TABLE shards (id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE chunks (id BLOB PRIMARY KEY, place INTEGER NOT NULL, sum INTEGER NOT NULL)
    WITHOUT ROWID;
CREATE TABLE older (id BLOB, place INTEGER, sum INTEGER NOT NULL, PRIMARY KEY (id, place))
    WITHOUT ROWID;  -- other places of chunks that were stored again
CREATE TABLE trees (digest BLOB PRIMARY KEY, place BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE sources (number INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE);
CREATE TABLE directories (source INTEGER, key BLOB, state BLOB NOT NULL, stats BLOB NOT NULL,
    files BLOB NOT NULL, subdirectories BLOB NOT NULL, sum INTEGER NOT NULL,
    PRIMARY KEY (source, key)) WITHOUT ROWID;
"""
_FIND_AT_ONCE = 256
_SEGMENTS_TOGETHER = 4096
_PLACE_HEAD = struct.Struct("<IQ")  # checksum, size of the tree
_PLACE_SEGMENT = struct.Struct("<32sQQQ")

_log = logging.getLogger(__name__)


class IndexBroken(Corrupt):
    """The index file cannot be used. PushIndex.set_aside makes room for a new one."""


class TreePlace(NamedTuple):
    """The place of the stored form of a tree, and its size."""

    size_bytes: int
    segments: tuple[Segment, ...]


class PushIndex:
    """The index of one store. One thread at a time; other processes may use the file meanwhile.

    Methods raise IndexBroken, NoSpace, InUse (locked for too long), Denied.
    """

    def __init__(self, directory: Path, store_id: str) -> None:
        self.path = directory / f"{store_id}.sqlite"
        with _translated(self.path):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._connect()
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise
        self.refused: dict[bytes, str] = {}  # purged chunks, and when; only in memory
        self.purged: dict[PackId, int] = {}  # their places in this index: bits of chunk numbers
        self.purges_seen = -1  # the number of the newest purge that ``refused`` knows
        self._pack_ids: dict[int, PackId] = {}
        self._added: set[PackId] = set()
        self._segments: list[Segment] = []  # returned, and not in ``_named`` yet
        self._named: dict[PackId, int] = {}  # bits of chunk numbers
        self._any_chunks = bool(self.select("SELECT 1 FROM chunks LIMIT 1"))
        self._any_trees = bool(self.select("SELECT 1 FROM trees LIMIT 1"))
        # Whether an earlier push has left files or trees that need not be read or stored now
        self.has_memory = self._any_trees or bool(self.select("SELECT 1 FROM directories LIMIT 1"))

    def _connect(self) -> None:
        self._db = sqlite3.connect(
            self.path, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        self._is_paused = False

    def pause(self) -> None:
        """Closes the file until it is used again. A forked process must not inherit it, since
        SQLite would take the parent's locks for its own."""
        self._db.close()
        self._is_paused = True

    def _opened(self) -> sqlite3.Connection:
        if self._is_paused:
            self._connect()
            self._set_up()
        return self._db

    def _set_up(self) -> None:
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", f"cache_size = -{CACHE_KIB}"):
            self._db.execute(f"PRAGMA {pragma}")

    def _prepare(self) -> None:
        self._set_up()
        execute = self._db.execute
        if _version(self._db) == SCHEMA_VERSION:
            return
        execute("BEGIN IMMEDIATE")
        version = _version(self._db)  # another process may have created it first
        if version == 0:
            for statement in _SCHEMA.split(";"):
                execute(statement)
            execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        execute("COMMIT")
        if version not in (0, SCHEMA_VERSION):
            raise IndexBroken(f"{self.path} is an index of format {version}")

    @staticmethod
    def set_aside(directory: Path, store_id: str, why: IndexBroken) -> None:
        """Renames an index that cannot be used, so that a new one is made. The log says why."""
        path = directory / f"{store_id}.sqlite"
        aside = path.with_suffix(".broken")
        with _translated(path):
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            if path.exists():
                path.replace(aside)
        _log.warning(
            "%s. It was moved to %s, and a new one is built: this push reads all files again",
            why,
            aside,
        )

    def close(self) -> None:
        """Closes the file. May be called twice."""
        self._db.close()

    # chunks

    def find(self, chunk_ids: Sequence[bytes]) -> dict[bytes, int]:
        """Returns the newest places of those chunks that the store has. fragmentation.py explains
        places."""
        return dict(self._places("chunks", chunk_ids))

    def find_all(self, chunk_ids: Sequence[bytes]) -> dict[bytes, set[int]]:
        """Returns all places of those chunks."""
        found: dict[bytes, set[int]] = {}
        for table in ("chunks", "older"):
            for chunk_id, place in self._places(table, chunk_ids):
                found.setdefault(chunk_id, set()).add(place)
        return found

    def _places(self, table: str, chunk_ids: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
        if not self._any_chunks:
            return
        for start in range(0, len(chunk_ids), _FIND_AT_ONCE):
            part = list(chunk_ids[start : start + _FIND_AT_ONCE])
            # Few different statements, so that they stay prepared
            size = 1 << (len(part) - 1).bit_length()
            marks = ",".join("?" * size)
            part += part[-1:] * (size - len(part))
            rows = self.select(f"SELECT id, place, sum FROM {table} WHERE id IN ({marks})", part)
            with checked_row(self.path, "a chunk's place"):
                for chunk_id, place, checksum in rows:
                    if checksum != chunk_sum(chunk_id, place):
                        raise ValueError
                    yield chunk_id, place

    def segment(self, run: Run) -> Segment:
        """Returns the segment of a run of places that ``find`` returned."""
        number, first = split(run.place)
        segment = Segment(self.pack_id(number), first, run.chunks, run.size_bytes)
        self._segments.append(segment)
        if len(self._segments) >= _SEGMENTS_TOGETHER:
            self._name_segments()
        return segment

    def pack_id(self, number: int) -> PackId:
        """Returns the id of the pack with a number, as in places that ``find`` returned."""
        pack_id = self._pack_ids.get(number)
        if pack_id is None:
            rows = self.select("SELECT id, sum FROM packs WHERE number = ?", (number,))
            with checked_row(self.path, "a pack's id"):
                if crc32(rows[0][0], number & 0xFFFFFFFF) != rows[0][1]:
                    raise ValueError
            pack_id = self._pack_ids[number] = PackId(rows[0][0])
        return pack_id

    def add_packs(self, packs: Iterable[PackChunks], *, shard_id: str | None = None) -> None:
        """Adds packs that are in the store, from a shard or just uploaded (in no shard yet)."""
        with self.writing() as db:
            for pack in packs:
                number = pack_number(pack.pack_id)
                checksum = crc32(pack.pack_id, number & 0xFFFFFFFF)
                db.execute(
                    "INSERT OR IGNORE INTO packs VALUES (?, ?, ?)", (number, pack.pack_id, checksum)
                )
                row = db.execute("SELECT id FROM packs WHERE number = ?", (number,)).fetchone()
                if row[0] != pack.pack_id:
                    continue  # pack_number says why
                # Sorted like the table, which is faster
                _add_chunks(db, sorted(chunk_rows(number, pack.ids)))
                if shard_id is None:
                    self._added.add(pack.pack_id)
                    row = (number, pack.ids, pack.raw_sizes.tobytes())
                    db.execute("INSERT OR REPLACE INTO unpublished VALUES (?, ?, ?)", row)
            if shard_id is not None:
                db.execute("INSERT OR IGNORE INTO shards VALUES (?)", (shard_id,))
        self._any_chunks = True

    def add_run(self, pack_id: PackId, first: int, ids: bytes) -> None:
        """Adds consecutive chunks of a pack that is in the store. ``ids`` are joined, in the order
        of the pack's index."""
        number = pack_number(pack_id)
        with self.writing() as db:
            row = (number, pack_id, crc32(pack_id, number & 0xFFFFFFFF))
            db.execute("INSERT OR IGNORE INTO packs VALUES (?, ?, ?)", row)
            row = db.execute("SELECT id FROM packs WHERE number = ?", (number,)).fetchone()
            if row[0] == pack_id:
                _add_chunks(db, sorted(chunk_rows(number, ids, first)))
        self._any_chunks = True

    def added(self) -> set[PackId]:
        """The packs that were uploaded since this index was opened."""
        return self._added

    def reused(self) -> dict[PackId, int]:
        """The chunks of other packs (bits of their numbers) in segments that ``segment`` returned.
        The push relies on them."""
        self._name_segments()
        return {pack: bits for pack, bits in self._named.items() if pack not in self._added}

    def _name_segments(self) -> None:
        add_segments(self._named, self._segments)
        self._segments.clear()

    def forget_packs(self, pack_ids: Collection[PackId]) -> None:
        """Forgets the chunks of packs that the store has lost, and all trees. Some trees lead to
        these packs; the others are found again by their chunks."""
        numbers = [pack_number(pack_id) for pack_id in pack_ids]
        with self.writing() as db:
            for at in range(0, len(numbers), _FIND_AT_ONCE):
                some = numbers[at : at + _FIND_AT_ONCE]
                marks = ",".join("?" * len(some))
                for table in ("chunks", "older"):
                    statement = f"DELETE FROM {table} WHERE place >> {NUMBER_BITS} IN ({marks})"
                    db.execute(statement, some)
                db.execute(f"DELETE FROM packs WHERE number IN ({marks})", some)
                db.execute(f"DELETE FROM unpublished WHERE pack IN ({marks})", some)
            db.execute("DELETE FROM trees")

    def unpublished(self) -> list[ShardPack]:
        """Returns the packs of this machine's pushes, dead ones too, that no shard lists yet."""
        rows = self.select(
            "SELECT id, ids, sizes FROM unpublished JOIN packs ON number = unpublished.pack"
        )
        with checked_row(self.path, "a pack's chunks"):
            found = [ShardPack(PackId(row[0]), row[1], array("I", row[2])) for row in rows]
            if any(pack_id_of_columns(*pack[1:]) != pack.pack_id for pack in found):
                raise ValueError
        return found

    def published(self, shard_id: str, packs: Iterable[PackChunks]) -> None:
        """Notes that the shard that lists these packs is in the store."""
        with self.writing() as db:
            db.execute("INSERT OR IGNORE INTO shards VALUES (?)", (shard_id,))
            rows = [(pack_number(pack.pack_id),) for pack in packs]
            db.executemany("DELETE FROM unpublished WHERE pack = ?", rows)

    def load_shards(self, objects: ObjectStore, *, threads: int = 8) -> None:
        """Reads the store's index shards that are not known yet, several at once.

        It skips a damaged shard, which costs only space: its chunks may be stored again. Raises:
        IndexBroken if the store lacks a known shard. Then it is an older copy of the store that was
        pushed to, and may lack what the index says it has.
        """
        from concurrent.futures import ThreadPoolExecutor

        known = {push_id_of(str(row[0])) for row in self.select("SELECT id FROM shards")}
        names = [info.key[len(keys.INDEX) :] for info in objects.list(keys.INDEX)]
        if lost := known.difference(map(push_id_of, names)):
            # their rows stay, as their chunks do, and reveal an older copy of the store
            lost -= removed_shards(objects)
        if any(not has_shard(objects, push_id) for push_id in lost):  # a listing may miss one
            raise IndexBroken(f"the push index {self.path} has a shard that is gone: {min(lost)}")
        unseen = [name for name in names if push_id_of(name) not in known]
        if not unseen:
            return
        with ThreadPoolExecutor(threads) as executor:
            for start in range(0, len(unseen), SHARDS_AHEAD):
                part = unseen[start : start + SHARDS_AHEAD]
                loaded = executor.map(lambda name: _load_shard(objects, name), part)
                for name, packs in zip(part, loaded, strict=True):
                    if packs is not None:
                        self._learn(packs, name)

    def _learn(self, packs: Iterable[ShardPack], shard_id: str) -> None:
        try:
            self.add_packs(packs, shard_id=shard_id)
        except _SPOILED as error:  # a large shard is read while it is used
            _log.warning(_LEFT_OUT, error)

    # trees

    def find_trees(self, digests: Sequence[bytes]) -> dict[bytes, TreePlace]:
        """Returns the places of those trees that the store is known to have."""
        found: dict[bytes, TreePlace] = {}
        if not self._any_trees:
            return found
        for digest in digests:
            for (place,) in self.select("SELECT place FROM trees WHERE digest = ?", (digest,)):
                found[digest] = self._decode_place(digest, place)
        return found

    def add_trees(self, rows: Iterable[tuple[bytes, TreePlace]]) -> None:
        """Adds trees (by digest) that are in the store. This machine must know that they lead to
        the right chunks, since later pushes rely on that."""
        encoded = sorted([(digest, _encode_place(digest, place)) for digest, place in rows])
        with self.writing() as db:
            db.executemany("INSERT OR REPLACE INTO trees VALUES (?, ?)", encoded)
        self._any_trees = True

    def _decode_place(self, digest: bytes, place: bytes) -> TreePlace:
        with checked_row(self.path, "a tree's place"):
            checksum, size_bytes = _PLACE_HEAD.unpack_from(place)
            if crc32(place[4:], crc32(digest)) != checksum:
                raise ValueError
            segments = _PLACE_SEGMENT.iter_unpack(place[_PLACE_HEAD.size :])
            return TreePlace(
                size_bytes, tuple(Segment(PackId(pack), *numbers) for pack, *numbers in segments)
            )

    def select(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._opened().execute(statement, values).fetchall()
        except (sqlite3.Error, UnicodeError) as error:
            raise _error(error, self.path) from error

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        with _translated(self.path):
            db = self._opened()
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise


def _encode_place(digest: bytes, place: TreePlace) -> bytes:
    packed = b"".join(_PLACE_SEGMENT.pack(*segment) for segment in place.segments)
    body = place.size_bytes.to_bytes(8, "little") + packed
    return crc32(body, crc32(digest)).to_bytes(4, "little") + body


def _add_chunks(db: sqlite3.Connection, rows: list[tuple[bytes, int, int]]) -> None:
    """Adds rows of chunks. If a chunk has a row already, its old place moves to ``older``."""
    added = db.executemany("INSERT OR IGNORE INTO chunks VALUES (?, ?, ?)", rows)
    if added.rowcount == len(rows):
        return
    db.executemany(
        "INSERT OR IGNORE INTO older SELECT * FROM chunks WHERE id = ? AND place != ?",
        [(chunk_id, place) for chunk_id, place, _ in rows],
    )
    in_one_pack = [row for row, after in pairwise(rows) if row[0] == after[0]]
    db.executemany("INSERT OR IGNORE INTO older VALUES (?, ?, ?)", in_one_pack)
    db.executemany("INSERT OR REPLACE INTO chunks VALUES (?, ?, ?)", rows)


def _load_shard(objects: ObjectStore, name: str) -> Iterator[ShardPack] | None:
    """Returns the packs of a shard, or None if it is damaged."""
    try:
        return read_shard(objects, keys.shard(name))
    except _SPOILED as error:
        _log.warning(_LEFT_OUT, error)
        return None


def _version(db: sqlite3.Connection) -> int:
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    return version


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError, UnicodeError) as error:
        raise _error(error, path) from error


@contextmanager
def checked_row(path: Path, what: str) -> Iterator[None]:
    """Raises: IndexBroken for a row that does not match its checksum, or has wrong types."""
    try:
        yield
    except (ValueError, TypeError, IndexError, OverflowError, struct.error) as error:
        raise IndexBroken(f"the push index {path} is broken: {what} is damaged") from error


def _error(error: sqlite3.Error | OSError | UnicodeError, path: Path) -> LodefsError:
    """Maps an error of the file. Except for known errors of disks and locks it counts as a broken
    file, even if SQLite's message quotes damaged text."""
    if isinstance(error, OSError):
        kind = NoSpace if error.errno in (errno.ENOSPC, errno.EDQUOT) else Denied
        return kind(f"the push index {path} cannot be written: {error.strerror}")
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return InUse(f"the push index {path} is locked by another push for too long: try again")
    if name.startswith("SQLITE_FULL"):
        return NoSpace(f"no space for the push index {path}: make room there")
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_IOERR")):
        return Denied(
            f"the push index {path} cannot be used ({error}): its directory must be writable"
        )
    return IndexBroken(f"the push index {path} is broken: {error}")


NUMBER_BITS = 20  # low bits of a place: the chunk's number in its pack; above: the pack's number


def pack_number(pack_id: bytes) -> int:
    """Returns a pack's number: bits of its id. If two packs have the same number, the index skips
    the second."""
    return int.from_bytes(pack_id[:8], "little") >> (NUMBER_BITS + 1)


def split(place: int) -> tuple[int, int]:
    """Returns the number of the pack, and of the chunk in it."""
    return place >> NUMBER_BITS, place & ((1 << NUMBER_BITS) - 1)


def begins_pack(place: int) -> bool:
    """Whether a place is the first chunk of a pack."""
    return place & ((1 << NUMBER_BITS) - 1) == 0


def chunk_rows(number: int, ids: bytes, first: int = 0) -> Iterator[tuple[bytes, int, int]]:
    """Yields id, place and checksum of the chunks of the pack ``number``, from chunk ``first``
    on."""
    place = (number << NUMBER_BITS) + first
    for at in range(0, len(ids), ID_BYTES):
        chunk_id = ids[at : at + ID_BYTES]
        yield chunk_id, place, chunk_sum(chunk_id, place)
        place += 1


def chunk_sum(chunk_id: bytes, place: int) -> int:
    """Returns the checksum of a chunk's row."""
    return crc32(chunk_id, place & 0xFFFFFFFF) ^ place >> 32
