"""The stats of a source's directories and files when they were pushed: rows of a push index."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from zlib import crc32

from lodefs.chunkstore.format.names import Digest, PackId
from lodefs.chunkstore.format.tree import SAME_PACK, Segment, decode_tree
from lodefs.chunkstore.journal.purges import Purge
from lodefs.chunkstore.push.index.push_index import (
    NUMBER_BITS,
    IndexBroken,
    PushIndex,
    checked_row,
    pack_number,
    split,
)

ROWS_AHEAD = 2000  # directories in one read
DETAILS_AHEAD = 100  # directories in one read with their files
DETAILS_SIZE_BYTES_MAX = 900 << 20  # SQLite takes 1 GB; a larger directory is not remembered
_SIGNATURE_BYTES = 16


class DirectoryState(NamedTuple):
    """A directory when it was pushed. ``signature`` is b"" if the directory must be read again.
    ``children`` are the joined digests of its subdirectories, by name."""

    signature: bytes
    digest: Digest
    children: bytes


class DirectoryDetails(NamedTuple):
    """The contents of a directory: columns of the files' stats, the tree of its files alone, and
    the names of the subdirectories joined by NUL."""

    stats: bytes
    files: bytes
    subdirectories: bytes

    def checksum(self, key: bytes) -> int:
        """Returns the CRC-32 of all fields and the directory's key."""
        return crc32(self.subdirectories, crc32(self.files, crc32(self.stats, crc32(key))))

    def size_bytes(self) -> int:
        """Returns the bytes of all columns."""
        return len(self.stats) + len(self.files) + len(self.subdirectories)


class DirectoryRow(NamedTuple):
    """The whole record of one directory. ``key`` is its path with NUL in place of '/'."""

    key: bytes
    state: DirectoryState
    details: DirectoryDetails


class StatCache:
    """The rows of one source directory. ``state`` must be called in the order of a scan."""

    @classmethod
    def of(cls, index: PushIndex, path: bytes) -> StatCache:
        """Returns the record of the directory at the absolute ``path``."""
        with index.writing() as db:
            db.execute("INSERT OR IGNORE INTO sources (path) VALUES (?)", (path,))
        number = index.select("SELECT number FROM sources WHERE path = ?", (path,))[0][0]
        return cls(index, number)

    def __init__(self, index: PushIndex, number: int) -> None:
        self._index = index
        self._number = number
        self._rows: Iterator[tuple[bytes, bytes]] = iter(())
        self._row: tuple[bytes, bytes] | None = (b"", b"")  # the next row; None after the last
        self._gone: list[bytes] = []
        self._fill(">=")

    def state(self, key: bytes) -> DirectoryState | None:
        """Returns the state of a directory. Keys must ascend. Rows in between belong to directories
        that are gone."""
        row = self._row
        try:
            while row is not None and row[0] < key:
                self._gone.append(row[0])
                row = self._step()
        except TypeError as error:
            raise IndexBroken(
                f"the push index {self._index.path} is broken: a directory's key is damaged"
            ) from error
        if row is None or row[0] != key:
            return None
        self._step()
        return self._decode(key, row[1])

    def _decode(self, key: bytes, state: bytes) -> DirectoryState:
        try:  # not checked_row, which is slow for each directory
            is_whole = int.from_bytes(state[:4], "little") == crc32(state[4:], crc32(key))
        except TypeError:
            is_whole = False
        if not is_whole:
            with checked_row(self._index.path, "a directory"):
                raise ValueError
        return DirectoryState(state[4:20], Digest(state[20:52]), state[52:])

    def lookup(self, key: bytes) -> DirectoryState | None:
        """Returns the state of a directory, in any order."""
        rows = self._index.select(
            "SELECT state FROM directories WHERE source = ? AND key = ?", (self._number, key)
        )
        return self._decode(key, rows[0][0]) if rows else None

    def details(self, key: bytes) -> DirectoryDetails | None:
        """Returns the files of a directory that has a known state."""
        rows = self._index.select(
            "SELECT stats, files, subdirectories, sum FROM directories "
            "WHERE source = ? AND key = ?",
            (self._number, key),
        )
        if not rows:
            return None
        with checked_row(self._index.path, "a directory"):
            details = DirectoryDetails(*rows[0][:3])
            if details.checksum(key) != rows[0][3]:
                raise ValueError
        return details

    def remember(self, rows: Sequence[DirectoryRow]) -> None:
        """Writes rows, which replace those of the same directories."""
        number = self._number
        kept = [row for row in rows if row.details.size_bytes() <= DETAILS_SIZE_BYTES_MAX]
        kept.sort()  # the order of the tables, which is faster
        with self._index.writing() as db:
            db.executemany(
                "INSERT OR REPLACE INTO directories VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (number, key, _encode_state(key, state), *details, details.checksum(key))
                    for key, state, details in kept
                ],
            )

    def forget_gone(self) -> None:
        """Removes the rows of directories that a complete scan did not find."""
        while self._row is not None:
            self._gone.append(self._row[0])
            self._step()
        if not self._gone:
            return
        rows = [(self._number, key) for key in self._gone]
        with self._index.writing() as db:
            db.executemany("DELETE FROM directories WHERE source = ? AND key = ?", rows)
        self._gone = []

    def _step(self) -> tuple[bytes, bytes] | None:
        last = self._row
        self._row = next(self._rows, None)
        if self._row is None and last is not None:
            self._row = last
            self._fill(">")
        if last is not None and self._row is not None:
            self._check_order(last[0], self._row[0])
        return self._row

    def _check_order(self, last: bytes, key: bytes) -> None:
        """Raises: IndexBroken for keys out of order, since a damaged table may repeat rows
        forever."""
        try:
            is_ascending = key > last
        except TypeError:
            is_ascending = False
        if not is_ascending:
            raise IndexBroken(
                f"the push index {self._index.path} is broken: its directories are out of order"
            )

    def _fill(self, after: str) -> None:
        """Reads the next rows after the current one. It keeps no cursor open, since SQLite could
        not fold its log during the whole push."""
        assert self._row is not None
        self._rows = iter(
            self._index.select(
                f"SELECT key, state FROM directories WHERE source = ? AND key {after} ? "
                "ORDER BY key LIMIT ?",
                (self._number, self._row[0], ROWS_AHEAD),
            )
        )
        self._row = next(self._rows, None)


class NoStats(StatCache):
    """The record of a source of which nothing is remembered."""

    def __init__(self) -> None:
        pass

    def state(self, key: bytes) -> DirectoryState | None:  # noqa: ARG002
        return None

    def lookup(self, key: bytes) -> DirectoryState | None:  # noqa: ARG002
        return None

    def details(self, key: bytes) -> DirectoryDetails | None:  # noqa: ARG002
        return None

    def remember(self, rows: Sequence[DirectoryRow]) -> None:
        pass

    def forget_gone(self) -> None:
        pass


def forget_files_in(index: PushIndex, pack_ids: Collection[PackId]) -> None:
    """Forgets directories whose files lie in these packs, so that the files are read again."""
    forget_files_where(index, lambda segment: segment.pack in pack_ids)


def forget_files_where(index: PushIndex, is_lost: Callable[[Segment], bool]) -> None:
    """Forgets directories with a file that has a lost segment."""
    for number, key, files in _directories(index):
        segments = (s for entry in decode_tree(files, SAME_PACK) for s in entry.segments)
        if any(map(is_lost, segments)):
            with index.writing() as db:
                row = number, key
                db.execute("DELETE FROM directories WHERE source = ? AND key = ?", row)


def _directories(index: PushIndex) -> Iterator[tuple[int, bytes, bytes]]:
    """Yields source, key and files of all directories in the index."""
    last = (-1, b"")
    while rows := index.select(
        "SELECT source, key, stats, files, subdirectories, sum FROM directories "
        "WHERE (source, key) > (?, ?) ORDER BY source, key LIMIT ?",
        (*last, DETAILS_AHEAD),
    ):
        for source, key, *columns, checksum in rows:
            with checked_row(index.path, "a directory"):
                details = DirectoryDetails(*columns)
                if details.checksum(key) != checksum or (source, key) <= last:
                    raise ValueError
            last = source, key
            yield source, key, details.files


def _encode_state(key: bytes, state: DirectoryState) -> bytes:
    body = b"".join((state.signature or bytes(_SIGNATURE_BYTES), state.digest, state.children))
    return crc32(body, crc32(key)).to_bytes(4, "little") + body


def refuse(index: PushIndex, purges: Iterable[Purge]) -> None:
    """Makes an index refuse purged chunks and forget their places, so that unchanged files with
    these chunks are read again."""
    for purge in purges:
        day = datetime.fromtimestamp(purge.time_s, UTC).date().isoformat()
        why = f"purged on {day}" + (f" with {purge.what}" if purge.what else "")
        index.refused |= dict.fromkeys(purge.chunks, why)
        index.purges_seen = purge.number
    chunks: dict[PackId, int] = {}
    for places in index.find_all(list(index.refused)).values():
        for number, n in map(split, places):
            for (pack,) in index.select("SELECT id FROM packs WHERE number = ?", (number,)):
                chunks[PackId(pack)] = chunks.get(PackId(pack), 0) | 1 << n
    for pack, bits in chunks.items():  # earlier calls have forgotten theirs
        index.purged[pack] = index.purged.get(pack, 0) | bits
    forget_chunks(index, chunks)


def forget_chunks(index: PushIndex, chunks: Mapping[PackId, int]) -> None:
    """Forgets chunks of packs (bits of their numbers), the directories whose files use them, so
    that these files are read again, and all trees. Some trees lead to the chunks; the others are
    found again by their chunks. Raises what the methods of PushIndex raise."""
    places = [
        ((pack_number(pack) << NUMBER_BITS) + n,)
        for pack, bits in chunks.items()
        for n in range(bits.bit_length())
        if bits >> n & 1
    ]
    if not places:
        return
    with index.writing() as db:
        db.execute("CREATE TEMP TABLE gone (place INTEGER PRIMARY KEY)")
        db.executemany("INSERT OR IGNORE INTO gone VALUES (?)", places)
        for table in ("chunks", "older"):
            db.execute(f"DELETE FROM {table} WHERE place IN (SELECT place FROM gone)")
        db.execute("DROP TABLE gone")
        db.execute("DELETE FROM trees")
    index.forget_hooks(chunks.keys())  # else they may be found once more

    def is_lost(segment: Segment) -> bool:
        wanted = ((1 << segment.count) - 1) << segment.first
        return bool(chunks.get(segment.pack, 0) & wanted)

    forget_files_where(index, is_lost)
