"""A node's index in RocksDB: one process writes, others read a secondary of it.

The only importer of rocksdict. Keys sort by their bytes (raw mode). Writes go to RocksDB's log
without waiting for the disk: they survive the end of the process, and a power cut may lose the last
of them, but never out of order.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from lodefs.chunkstore.errors import Corrupt, Denied, InUse, LodefsError, NoSpace, Unavailable
from lodefs.chunkstore.nodecache.kv import Row
from lodefs.chunkstore.system.fd_limit import INDEX_FILES_MAX

BLOCK_CACHE_SIZE_BYTES = 32 * 1024 * 1024
# Each restart, and each worker of a new mount, reads the rows again that are in no table yet: 16
# MiB of them took 150 ms each, too long for many mounts at once. More than 8 small tables slow
# reads down.
WRITE_BUFFER_SIZE_BYTES = 4 * 1024 * 1024
LOG_SIZE_BYTES_MAX = 4 * 1024 * 1024  # a restart reads it again
TABLES_MERGED_AT = 8
TABLES_SLOW_AT, TABLES_STOP_AT = 32, 48
SPACE_SIZE_BYTES = 64 * 1024 * 1024  # opening may need it, since logs become tables
# The text of PyO3's error for calls of an object while another thread closes it
_BEING_CLOSED = "Already mutably borrowed"
_HELD = re.compile(r"/[a-z]+/self/fd/\d+/[^/\s]+")  # a directory by a descriptor
SCAN_ROWS_MIN, SCAN_ROWS_MAX = 8, 512  # rows that a scan holds at once; longer scans hold more


class RocksKeyValues:
    """KeyValues in a RocksDB directory, which it makes if it is missing. One process at a time.

    RocksDB opens, makes and removes files by their paths as long as it is open, and on closing.
    ``held`` is another path of the directory, which stays its own if another directory is put at
    ``path``: otherwise RocksDB would spoil the files of that one. Errors name ``path``.

    RocksDB takes no more writes once its disk was full. The next write that finds
    ``space_size_bytes`` free opens it anew. Raises: Denied, NoSpace, InUse, Corrupt, Unavailable.
    """

    def __init__(
        self,
        path: Path,
        held: Path | None = None,
        *,
        space_size_bytes: int = SPACE_SIZE_BYTES,
        open_files_max: int = INDEX_FILES_MAX,
    ) -> None:
        self._path = path
        self._held = held or path
        self._open_files_max = open_files_max
        self._space_size_bytes = space_size_bytes
        self._lock = threading.Lock()  # held while the database is reopened
        self._is_stuck = False
        self._open()
        self._durable = WriteOptions()
        self._durable.sync = True

    def _open(self) -> None:
        with _translated(self._path):
            options = _options(open_files_max=self._open_files_max)
            self._db = _opened(self._held, options, AccessType.read_write())

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._read(lambda db: db.get(key))
        return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        wanted: Any = list(keys)  # rocksdict's lists are invariant
        found: list[bytes | None] = self._read(lambda db: db.get(wanted))
        return found

    def lacks(self, keys: Sequence[bytes]) -> bool:
        try:
            return not any(map(self._db.key_may_exist, keys))
        except Exception:  # noqa: BLE001 - ``get`` says what is wrong
            return False

    def _read(self, call: Callable[[Rdict], Any]) -> Any:
        """Returns the result of a call of the database, which is repeated if another thread is
        opening that anew."""
        db = self._db
        try:
            return call(db)
        except Exception as error:
            if isinstance(error, DbClosedError) or str(error) == _BEING_CLOSED:
                with self._lock:
                    is_new = self._db is not db
                if is_new:
                    return self._read(call)
            raise _error_of(self._path, error) from error

    def write(self, rows: Sequence[Row], *, durable: bool = False) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in rows:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        if self._is_stuck:
            self._open_anew()
        try:
            with _translated(self._path):
                if durable:
                    self._db.write(batch, self._durable)
                else:
                    self._db.write(batch)
        except NoSpace:
            self._is_stuck = True
            raise

    def _open_anew(self) -> None:
        with self._lock:
            if not self._is_stuck:
                return
            if shutil.disk_usage(self._held).free < self._space_size_bytes:
                raise NoSpace(f"no space for the index {self._path}")
            self._close_db()
            try:
                self._open()
                self._is_stuck = False
            except LodefsError:
                with _translated(self._path):  # reads continue meanwhile
                    options = _options(open_files_max=self._open_files_max)
                    self._db = _opened(self._held, options, _read_only())
                raise

    def scan(self, prefix: bytes, *, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        start = max(prefix, after + b"\0" if after else b"")
        cursor = self._read(lambda db: _cursor_at(db, start))
        count = SCAN_ROWS_MIN
        while True:
            with _translated(self._path):
                rows = _next_rows(cursor, prefix, count)
            yield from rows
            if len(rows) < count:
                return
            count = min(4 * count, SCAN_ROWS_MAX)

    def floor(self, prefix: bytes, key: bytes) -> tuple[bytes, bytes] | None:
        found: tuple[bytes, bytes] | None = self._read(lambda db: _last_row(db, key))
        return found if found is not None and found[0].startswith(prefix) else None

    def catch_up(self) -> None:
        """Does nothing: the writer sees its own writes."""

    def close(self) -> None:
        with _translated(self._path):
            self._close_db()

    def _close_db(self) -> None:
        try:
            self._db.close()
        except Exception:
            # Closing repeats the error of an earlier write; all other writes are in the log
            if not self._is_stuck:
                raise


class RocksSecondary(RocksKeyValues):
    """A reader's view of another process's RocksDB directory, which ``catch_up`` updates.

    ``secondary_path`` is a directory for the reader's own log, which may be removed once this is
    constructed. Writing is refused.
    """

    def __init__(
        self,
        path: Path,
        secondary_path: Path,
        *,
        block_cache_size_bytes: int = BLOCK_CACHE_SIZE_BYTES,
    ) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._is_stuck = False
        options = _options(block_cache_size_bytes)
        options.create_if_missing(False)  # noqa: FBT003
        options.set_max_open_files(-1)  # a secondary must keep files open that the writer deletes
        # Otherwise each catch_up starts 16 threads to open new files, of which there are mostly
        # none.
        options.set_max_file_opening_threads(1)
        with _translated(path):
            self._db = _opened(path, options, _secondary(secondary_path))
        self._durable = WriteOptions()

    def catch_up(self) -> None:
        with _translated(self._path):
            self._db.try_catch_up_with_primary()


def _read_only() -> AccessType:
    return AccessType.read_only(error_if_log_file_exist=False)


def _secondary(path: Path) -> AccessType:
    return AccessType.secondary(str(path))


def _cursor_at(db: Rdict, key: bytes) -> Any:
    cursor = db.iter()
    cursor.seek(key)
    return cursor


def _last_row(db: Rdict, key: bytes) -> tuple[bytes, bytes] | None:
    """Returns the last row up to a key."""
    cursor: Any = db.iter()
    cursor.seek_for_prev(key)
    if cursor.valid():
        return cursor.key(), cursor.value()
    cursor.status()
    return None


def _next_rows(cursor: Any, prefix: bytes, count: int) -> list[tuple[bytes, bytes]]:
    rows: list[tuple[bytes, bytes]] = []
    while len(rows) < count and cursor.valid():
        key = cursor.key()
        if not key.startswith(prefix):
            break
        rows.append((key, cursor.value()))
        cursor.next()
    cursor.status()
    return rows


def _opened(path: Path, options: Options, access_type: AccessType) -> Rdict:
    """Opens RocksDB; its errors are not translated. The options are passed twice: without those for
    the only column family, a reader uses the options stored in the database, and not our block
    cache."""
    families = {"default": options}
    return Rdict(str(path), options, column_families=families, access_type=access_type)


def _options(
    block_cache_size_bytes: int = BLOCK_CACHE_SIZE_BYTES, open_files_max: int = INDEX_FILES_MAX
) -> Options:
    table = BlockBasedOptions()
    # The other kind of cache consists of many caches of 512 KiB. The index of a large table does
    # not fit into one, so it would be read and decompressed for each row (0.2 ms).
    table.set_block_cache(Cache.new_hyper_clock_cache(block_cache_size_bytes, 0))
    table.set_bloom_filter(10, False)  # noqa: FBT003 - rocksdict takes no keywords here
    # Large tables have large indexes and filters: split them into blocks and cache those in use.
    table.set_cache_index_and_filter_blocks(True)
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_pin_top_level_index_and_filter(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)  # noqa: FBT003
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(WRITE_BUFFER_SIZE_BYTES)
    options.set_max_total_wal_size(LOG_SIZE_BYTES_MAX)
    options.set_level_zero_file_num_compaction_trigger(TABLES_MERGED_AT)
    options.set_level_zero_slowdown_writes_trigger(TABLES_SLOW_AT)
    options.set_level_zero_stop_writes_trigger(TABLES_STOP_AT)
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_max_open_files(open_files_max)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(4 * 1024 * 1024)
    options.set_level_compaction_dynamic_level_bytes(True)
    return options


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _error_of(path, error) from error


def _error_of(path: Path, error: Exception) -> LodefsError:
    """Translates RocksDB's errors, which are bare Exceptions whose text begins with a status."""
    text = _HELD.sub(lambda _: str(path), str(error))
    if isinstance(error, DbClosedError):
        return Unavailable(f"the index {path} is closed")
    if "lock hold by" in text or "While lock file" in text:
        return InUse(f"the index {path} is open in another process: {text}")
    if "No space left" in text or "NoSpace" in text or "quota" in text.lower():
        return NoSpace(f"no space for the index {path}: {text}")
    if "Permission denied" in text or "Read-only file system" in text:
        return Denied(f"the index {path} cannot be written: {text}")
    if text.startswith("Corruption"):
        return Corrupt(f"the index {path} is damaged: stop the proxy and remove the cache: {text}")
    return Unavailable(f"the index {path} failed: {text}")
