"""A set of very many short keys that takes little memory: a temporary SQLite table on disk."""

from __future__ import annotations

import sqlite3
import tempfile

from lodefs.chunkstore.errors import NoSpace, Unavailable
from lodefs.chunkstore.system.os_errors import kind_of

KEY_BYTES = 16
CACHE_KIB = 16 * 1024


class DiskKeySet:
    """Keys of KEY_BYTES random bytes, such as digests. For one thread; closed at the end of its
    block. The table lies in the directory for temporary files (TMPDIR)."""

    def __init__(self) -> None:
        self._db: sqlite3.Connection | None = None

    def __enter__(self) -> DiskKeySet:
        return self

    def __exit__(self, *_: object) -> None:
        if self._db is not None:
            self._db.close()

    def add(self, key: bytes) -> bool:
        """Adds a key. Returns whether it is new. Raises: NoSpace, Denied, Unavailable."""
        try:
            self._db = self._db or _new_table()
            return self._db.execute("INSERT OR IGNORE INTO keys VALUES (?)", (key,)).rowcount == 1
        except (OSError, sqlite3.Error) as error:
            is_full = getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"
            other = NoSpace if is_full else Unavailable
            kind = kind_of(error) if isinstance(error, OSError) else other
            raise kind(
                f"a temporary file in {tempfile.gettempdir()} cannot be written ({error}): set "
                "TMPDIR to a directory with more room"
            ) from error


def _new_table() -> sqlite3.Connection:
    """An empty table in a file without a name, which goes with the connection."""
    with tempfile.NamedTemporaryFile(prefix="lodefs-") as file:
        db = sqlite3.connect(file.name, isolation_level=None)
        db.execute("PRAGMA journal_mode=OFF")
        db.execute("PRAGMA synchronous=OFF")
        db.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        db.execute("CREATE TABLE keys (key BLOB PRIMARY KEY) WITHOUT ROWID")
    db.execute("BEGIN")
    return db
