"""A machine's record of a store between its pushes: where chunks and trees lie. The same file holds
the stats of the source directories that were pushed (stat_cache.py). Of a store with many chunks it
keeps in full only packs that this machine has put or used, of others their hooks (hook_rows.py).

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
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple
from zlib import crc32

from lodefs.chunkstore.errors import (
    Corrupt,
    Denied,
    InUse,
    LodefsError,
    NoSpace,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.index_shard import (
    ROW_SIZE_BYTES,
    PackChunks,
    PackHooks,
    ShardPack,
    fewer_hooks,
    push_id_of,
)
from lodefs.chunkstore.format.names import ID_BYTES, PackId
from lodefs.chunkstore.format.pack import PackIndex, pack_id_of_columns
from lodefs.chunkstore.format.tree import Segment
from lodefs.chunkstore.journal.named_packs import add_segments
from lodefs.chunkstore.journal.removed_shards import removed_shards
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.push.fragmentation import Run
from lodefs.chunkstore.push.index.hook_rows import HookRows
from lodefs.chunkstore.repo.hook_lists import read_hook_lists
from lodefs.chunkstore.repo.pack_reader import index_or_none
from lodefs.chunkstore.repo.shard_reader import (
    SPOILED,
    has_shard,
    log_left_out,
    read_shard,
    read_shards,
)
from lodefs.chunkstore.system.parallel_map import grouped

SCHEMA_VERSION = 3
LOCK_TIMEOUT_S = 60.0
_VERSION = "PRAGMA user_version"
# Of a store with more, the shards of others are not read in full: these take 480 MB and a minute
CHUNKS_MAX = 1 << 22
FEWER_HOOKS_CHUNKS = 1 << 28  # with more, a fourth of the hooks is kept: 5 million rows, too
SHARD_READERS = 16  # of a plan with 20,000 parts each machine reads 20,000 shards
UNLISTED_MAX = 64  # shards that one of 1,000 machines reads, besides lists, before its next part
HOOKS_TOGETHER = 1 << 18  # in one write: some 50 MiB of memory
PACKS_AHEAD = 16  # indexes of packs that are read at once
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

_ADD_OLDER = """INSERT OR IGNORE INTO older SELECT ?1, ?2, ?3
    WHERE NOT EXISTS (SELECT 1 FROM chunks WHERE id = ?1 AND place = ?2)"""

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
        self._hooks = HookRows(self)
        self._objects: ObjectStore | None = None  # the store, once its shards were read
        self.is_sampled = False  # whether only hooks were read of them
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
        use_wal(self._db)
        for pragma in ("synchronous = NORMAL", f"cache_size = -{CACHE_KIB}"):
            self._db.execute(f"PRAGMA {pragma}")

    def _prepare(self) -> None:
        self._set_up()
        execute = self._db.execute
        if execute(_VERSION).fetchone()[0] == SCHEMA_VERSION:
            return
        execute("BEGIN IMMEDIATE")
        version = execute(_VERSION).fetchone()[0]  # another process may have created it first
        if version == 0:
            for statement in _SCHEMA.split(";"):
                execute(statement)
            execute(f"{_VERSION} = {SCHEMA_VERSION}")
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
        places. A large store may have more of them."""
        found = dict(self._places("chunks", chunk_ids))
        if rest := self._found_by_hooks(found, chunk_ids):
            found |= dict(self._places("chunks", rest))
        return found

    def find_all(
        self, chunk_ids: Sequence[bytes], packs: Collection[PackId] | None = None
    ) -> dict[bytes, set[int]]:
        """Returns all places of those chunks. A large store may have more of them; of ``packs``
        alone, if they are given, more are looked for in the store."""
        found: dict[bytes, set[int]] = {}

        def add(some: Sequence[bytes]) -> None:
            for table in ("chunks", "older"):
                for chunk_id, place in self._places(table, some):
                    found.setdefault(chunk_id, set()).add(place)

        add(chunk_ids)
        add(self._found_by_hooks(found, chunk_ids, packs))
        return found

    def _found_by_hooks(
        self,
        known: Collection[bytes],
        chunk_ids: Sequence[bytes],
        of_packs: Collection[PackId] | None = None,
    ) -> list[bytes]:
        """Adds the packs for which chunks stand that are not ``known``. Returns the chunks that may
        be known now. Raises: Denied, Unavailable if the store cannot be read."""
        if self._objects is None:
            return []
        rest = [chunk_id for chunk_id in chunk_ids if chunk_id not in known]
        hooked = self._hooks.packs_of(rest)
        if of_packs is not None:
            hooked = {pack: found for pack, found in hooked.items() if pack in of_packs}
        if not hooked:
            return []
        from concurrent.futures import ThreadPoolExecutor

        read = partial(index_or_none, self._objects)
        packs = list(hooked)
        with ThreadPoolExecutor(min(len(packs), PACKS_AHEAD)) as executor:
            for start in range(0, len(packs), PACKS_AHEAD):
                part = packs[start : start + PACKS_AHEAD]
                indexes = dict(zip(part, executor.map(read, part), strict=True))
                with self.writing() as db:
                    for index in filter(None, indexes.values()):
                        self._add_read(db, index)
                self._hooks.settle({pack: (hooked[pack], indexes[pack]) for pack in part})
        return rest

    def _add_read(self, db: sqlite3.Connection, index: PackIndex) -> None:
        """Adds the chunks that a stored pack has. Places that are known stay the newest."""
        if (number := _add_pack(db, index.pack_id)) is None:
            return
        for first, count in index.live_runs(0, len(index)):
            ids = index.ids[first * ID_BYTES : (first + count) * ID_BYTES]
            rows = sorted(chunk_rows(number, ids, first))
            added = db.executemany("INSERT OR IGNORE INTO chunks VALUES (?, ?, ?)", rows)
            if added.rowcount < len(rows):
                db.executemany(_ADD_OLDER, rows)
        self._any_chunks = True

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
                if (number := _add_pack(db, pack.pack_id)) is None:
                    continue
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
        with self.writing() as db:
            if (number := _add_pack(db, pack_id)) is not None:
                _add_chunks(db, sorted(chunk_rows(number, ids, first)))
        self._any_chunks = True

    def added(self) -> set[PackId]:
        """Returns the packs that were uploaded since this index was opened."""
        return self._added

    def reused(self) -> dict[PackId, int]:
        """Returns the chunks of other packs (bits of their numbers) in segments that ``segment``
        returned. The push relies on them."""
        self._name_segments()
        return {pack: bits for pack, bits in self._named.items() if pack not in self._added}

    def forget_reused(self) -> None:
        """Forgets the chunks in segments that ``segment`` returned: the store keeps them."""
        self._segments.clear()
        self._named.clear()

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
        self.forget_hooks(pack_ids)

    def forget_hooks(self, pack_ids: Collection[PackId]) -> None:
        """Forgets that chunks stand for these packs, so that no more of their chunks are found."""
        self._hooks.forget(pack_ids)

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

    def load_shards(
        self,
        objects: ObjectStore,
        *,
        threads: int = SHARD_READERS,
        unlisted_max: int | None = None,
    ) -> None:
        """Reads the store's index shards that are not known yet, several at once; of a store with
        more than CHUNKS_MAX chunks only their hooks. If more than ``unlisted_max`` of these are in
        no list yet, it leaves them for the next time.

        It skips a damaged shard, which costs only space: its chunks may be stored again. Raises:
        IndexBroken if the store lacks a known shard. Then it is an older copy of the store that was
        pushed to, and may lack what the index says it has.
        """
        self._objects = objects
        shards = list(objects.list(keys.INDEX))
        unseen = self._unseen(objects, [info.key[len(keys.INDEX) :] for info in shards])
        chunks = sum(info.size_bytes for info in shards) // ROW_SIZE_BYTES
        self.is_sampled = chunks > CHUNKS_MAX
        if self.is_sampled:
            found = read_hook_lists(objects, unseen, threads, unlisted_max)
            self._learn_hooks(_fewer(found) if chunks > FEWER_HOOKS_CHUNKS else found)
            return
        for name, packs in read_shards(objects, unseen, read_shard, threads):
            try:
                self.add_packs(packs, shard_id=name)
            except SPOILED as error:  # a large shard is read while it is used
                log_left_out(error)

    def _unseen(self, objects: ObjectStore, names: Sequence[str]) -> list[str]:
        """Returns the shards that are not known yet. Raises: IndexBroken, as ``load_shards``
        does."""
        known = {push_id_of(str(row[0])) for row in self.select("SELECT id FROM shards")}
        if lost := known.difference(map(push_id_of, names)):
            # their rows stay, as their chunks do, and reveal an older copy of the store
            lost -= removed_shards(objects)
        if any(not has_shard(objects, push_id) for push_id in lost):  # a listing may miss one
            raise IndexBroken(f"the push index {self.path} has a shard that is gone: {min(lost)}")
        return [name for name in names if push_id_of(name) not in known]

    def _learn_hooks(self, shards: Iterator[tuple[str, list[PackHooks]]]) -> None:
        """Adds the hooks of shards, many together: they lie all over the table."""

        def hooks(shard: tuple[str, list[PackHooks]]) -> int:
            return sum(len(pack.numbers) for pack in shard[1])

        for some in grouped(shards, hooks, HOOKS_TOGETHER, HOOKS_TOGETHER):
            self._hooks.add(pack for _, packs in some for pack in packs)
            with self.writing() as db:
                rows = [(name,) for name, _ in some]
                db.executemany("INSERT OR IGNORE INTO shards VALUES (?)", rows)

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


def _fewer(shards: Iterator[tuple[str, list[PackHooks]]]) -> Iterator[tuple[str, list[PackHooks]]]:
    """Yields shards with a fourth of their hooks."""
    return ((name, [fewer_hooks(one) for one in hooks]) for name, hooks in shards)


def _encode_place(digest: bytes, place: TreePlace) -> bytes:
    packed = b"".join(_PLACE_SEGMENT.pack(*segment) for segment in place.segments)
    body = place.size_bytes.to_bytes(8, "little") + packed
    return crc32(body, crc32(digest)).to_bytes(4, "little") + body


def _add_pack(db: sqlite3.Connection, pack_id: PackId) -> int | None:
    """Adds the row of a pack. Returns the pack's number, or None if another pack has that."""
    number = pack_number(pack_id)
    row = number, pack_id, crc32(pack_id, number & 0xFFFFFFFF)
    db.execute("INSERT OR IGNORE INTO packs VALUES (?, ?, ?)", row)
    (found,) = db.execute("SELECT id FROM packs WHERE number = ?", (number,)).fetchone()
    return number if found == pack_id else None


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


def use_wal(db: sqlite3.Connection) -> None:
    """Gives a file a write-ahead log. SQLite refuses it at once to one of two processes that do so
    together, since each might wait for the other. Raises: sqlite3.Error."""
    until_s = monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY" or monotonic() > until_s:
                raise
        sleep(0.01)


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
