"""How the directories and files of a source looked when they were pushed: rows of a push index."""

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

ROWS_AHEAD = 2000  # directories that are read at once
DETAILS_AHEAD = 100  # the same with their files
DETAILS_SIZE_BYTES_MAX = 900 << 20  # SQLite takes 1 GB; a larger directory is not remembered
_SIGNATURE_BYTES = 16


class DirectoryState(NamedTuple):
    """How a directory was when it was pushed. ``signature`` is b"" if it is not to be trusted;
    ``children`` are the joined digests of the directories in it, by name."""

    signature: bytes
    digest: Digest
    children: bytes


class DirectoryDetails(NamedTuple):
    """What is in a directory: columns of the files' stats, the tree that holds only files, and the
    names of the directories, joined by NUL."""

    stats: bytes
    files: bytes
    subdirectories: bytes

    def checksum(self, key: bytes) -> int:
        """CRC-32 of all of it, and of the directory's key."""
        return crc32(self.subdirectories, crc32(self.files, crc32(self.stats, crc32(key))))

    def size_bytes(self) -> int:
        """Bytes of all columns."""
        return len(self.stats) + len(self.files) + len(self.subdirectories)


class DirectoryRow(NamedTuple):
    """All that is kept of one directory; ``key`` is its path with NUL for '/'."""

    key: bytes
    state: DirectoryState
    details: DirectoryDetails


class StatCache:
    """The rows of one source directory. ``state`` is asked in the order of a scan."""

    @classmethod
    def of(cls, index: PushIndex, path: bytes) -> StatCache:
        """What an index remembers of the directory at the absolute ``path``."""
        with index.writing() as db:
            db.execute("INSERT OR IGNORE INTO sources (path) VALUES (?)", (path,))
        number = index.select("SELECT number FROM sources WHERE path = ?", (path,))[0][0]
        return cls(index, number)

    def __init__(self, index: PushIndex, number: int) -> None:
        self._index = index
        self._number = number
        self._rows: Iterator[tuple[bytes, bytes]] = iter(())
        self._row: tuple[bytes, bytes] | None = (b"", b"")  # the next one; None behind the last
        self._gone: list[bytes] = []
        self._fill(">=")

    def state(self, key: bytes) -> DirectoryState | None:
        """The state of a directory. Keys must ascend; rows in between are of directories that are
        no longer there."""
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
        try:  # not a context: this is done once for each directory
            is_whole = int.from_bytes(state[:4], "little") == crc32(state[4:], crc32(key))
        except TypeError:
            is_whole = False
        if not is_whole:
            with checked_row(self._index.path, "a directory"):
                raise ValueError
        return DirectoryState(state[4:20], Digest(state[20:52]), state[52:])

    def lookup(self, key: bytes) -> DirectoryState | None:
        """The state of any directory."""
        rows = self._index.select(
            "SELECT state FROM directories WHERE source = ? AND key = ?", (self._number, key)
        )
        return self._decode(key, rows[0][0]) if rows else None

    def details(self, key: bytes) -> DirectoryDetails | None:
        """The files of a directory that have a known state."""
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
        """Writes rows, in place of what was known of these directories."""
        number = self._number
        kept = [row for row in rows if row.details.size_bytes() <= DETAILS_SIZE_BYTES_MAX]
        kept.sort()  # in the order of the tables: faster
        with self._index.writing() as db:
            db.executemany(
                "INSERT OR REPLACE INTO directories VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (number, key, _encode_state(key, state), *details, details.checksum(key))
                    for key, state, details in kept
                ],
            )

    def forget_gone(self) -> None:
        """After a whole scan: removes the rows of directories that were not in it."""
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
        """Of a damaged table the same rows may come again and again."""
        try:
            is_ascending = key > last
        except TypeError:
            is_ascending = False
        if not is_ascending:
            raise IndexBroken(
                f"the push index {self._index.path} is broken: its directories are out of order"
            )

    def _fill(self, after: str) -> None:
        """Reads the next rows behind the current one. No cursor stays open: it would keep SQLite
        from folding its log as long as the push takes."""
        assert self._row is not None
        self._rows = iter(
            self._index.select(
                f"SELECT key, state FROM directories WHERE source = ? AND key {after} ? "
                "ORDER BY key LIMIT ?",
                (self._number, self._row[0], ROWS_AHEAD),
            )
        )
        self._row = next(self._rows, None)


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
    """Source, key and files of all directories that are remembered."""
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
    """Has an index refuse chunks that were purged, and forget where they lay, so that unchanged
    files that have them are read again."""
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
    for pack, bits in chunks.items():  # what earlier calls found is forgotten already
        index.purged[pack] = index.purged.get(pack, 0) | bits
    forget_chunks(index, chunks)


def forget_chunks(index: PushIndex, chunks: Mapping[PackId, int]) -> None:
    """Forgets chunks of packs (the bits of their numbers); the directories with files that lie
    there, so that these files are read again; and all trees, of which some lead there, and the
    others are found again by their chunks. Raises as the methods of PushIndex."""
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

    def is_lost(segment: Segment) -> bool:
        wanted = ((1 << segment.count) - 1) << segment.first
        return bool(chunks.get(segment.pack, 0) & wanted)

    forget_files_where(index, is_lost)
