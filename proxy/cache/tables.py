"""The tables of an open cache directory: its index and its files.

Pins and eviction decide by these tables; the cache (chunk_cache.py) stores and finds with them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.kv import KeyValues, Row
from lodefs.chunkstore.nodecache.kv_rocks import RocksKeyValues
from lodefs.chunkstore.nodecache.layout import FileKind, FileRow, FileState
from lodefs.chunkstore.system.fd_limit import CACHE_FILES_MAX, INDEX_FILES_MAX
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.directory import CacheDir
from lodefs.proxy.metrics.counters import Counts
from lodefs.proxy.runtime.write_gate import UNWRITTEN_SIZE_BYTES_MAX, WriteGate

SLAB_SIZE_BYTES_MAX = 64 * 1024 * 1024
SLAB_SIZE_BYTES_MIN = 1024 * 1024
FREE_SIZE_BYTES_MIN = 128 * 1024 * 1024
NEXT_NUMBER = layout.figure_key("next_number")

CallSoon = Callable[[Callable[[], None]], object]  # loop.call_soon_threadsafe


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """The directory of the cache, and its limits. Watermarks are fractions of the limit: above the
    high one, files are evicted until the low one is reached. ``free_size_bytes_min`` is kept free
    on the file system, by eviction if necessary, since the index needs it.
    ``unwritten_size_bytes_max`` may wait for the disk. ``open_files_max`` limits the cache's open
    files, ``index_files_max`` those of the index."""

    path: Path
    size_bytes_max: int
    high: float = 0.95
    low: float = 0.90
    free_size_bytes_min: int = FREE_SIZE_BYTES_MIN
    unwritten_size_bytes_max: int = UNWRITTEN_SIZE_BYTES_MAX
    open_files_max: int = CACHE_FILES_MAX
    index_files_max: int = INDEX_FILES_MAX

    @property
    def slab_size_bytes(self) -> int:
        """The size of a slab. Small caches have small slabs, since eviction removes whole ones."""
        return max(SLAB_SIZE_BYTES_MIN, min(self.size_bytes_max // 16, SLAB_SIZE_BYTES_MAX))


def no_step(_name: str) -> None:
    """Does nothing. Tests replace it to inject faults."""


def never(_call: Callable[[], None]) -> None:
    """Does nothing: without an event loop, descriptors stay open until the cache is closed."""


class CacheTables:
    """An open cache directory and its tables. ``files`` maps numbers to files; ``retired`` has
    evicted files with an open descriptor. ``call_soon`` makes the event loop call ``trim``.

    Raises: Denied, NoSpace, InUse, UnknownFormat, Corrupt if the directory cannot be opened.
    """

    def __init__(
        self,
        settings: CacheSettings,
        counts: Counts,
        *,
        now_s: Callable[[], float] = time.time,
        step: Callable[[str], None] = no_step,
        boot: bytes | None = None,
        call_soon: CallSoon = never,
    ) -> None:
        self.settings = settings
        self.counts = counts
        self.now_s = now_s
        self.step = step
        self.boot = layout.boot_id() if boot is None else boot
        self.directory = CacheDir(settings.path)
        try:
            self.kv: KeyValues = RocksKeyValues(
                settings.path / layout.INDEX_DIR,
                self.directory.held / layout.INDEX_DIR,
                space_size_bytes=settings.free_size_bytes_min // 2,
                open_files_max=settings.index_files_max,
            )
        except BaseException:
            self.directory.close()
            raise
        self.gate = WriteGate(settings.unwritten_size_bytes_max)
        self.lock = threading.Lock()  # guards the tables and counters below
        self.files: dict[int, CacheFile] = {}
        self.flats: dict[bytes, CacheFile] = {}
        self.evicted: list[CacheFile] = []  # found half removed at the start
        self.retired: list[CacheFile] = []
        self.used_bytes = 0
        self.reserved_bytes = 0  # bytes being written
        self._call_soon = call_soon
        self._is_ending = False
        self._open_files: dict[int, CacheFile] = {}
        self._slab: CacheFile | None = None
        try:
            self.index = self.directory.index()
            self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        next_number = int.from_bytes(self.kv.get(NEXT_NUMBER) or b"", "little")
        for key, value in self.kv.scan(layout.FILES):
            number = layout.number_of_key(key)
            row = layout.decode_file_row(value)
            file = CacheFile(number, row, self.settings.path, self.directory.held, self._opened)
            next_number = max(next_number, number + 1)
            if not file.is_alive:
                self.evicted.append(file)
                continue
            self.files[number] = file
            self.used_bytes += file.present_bytes
            if file.kind is FileKind.FLAT:
                self.flats[file.content] = file
            elif file.state is FileState.OPEN and file.is_trusted(self.boot):
                self._slab = file
        for key, value in self.kv.scan(layout.CHECKED):
            if (known := self.files.get(layout.number_of_key(key))) is not None:
                known.checked_s = layout.decode_checked(value)
        self._next_number = next_number

    def file(self, number: int) -> CacheFile | None:
        """Returns a file that is not evicted, by its number."""
        return self.files.get(number)

    def all_files(self) -> list[CacheFile]:
        """Returns the files that are not evicted."""
        with self.lock:
            return list(self.files.values())

    def new_file(self, kind: FileKind, content: bytes, size_bytes: int) -> CacheFile:
        """Makes a file without a row: its first store writes one. Raises: OSError, NoSpace."""
        while True:
            number = self._next_number
            self._next_number += 1
            row = FileRow(
                kind, FileState.OPEN, self.boot, content, size_bytes, 0, int(self.now_s())
            )
            file = CacheFile(number, row, self.settings.path, self.directory.held, self._opened)
            self.step("create")
            try:
                file.create()
            except FileExistsError:
                continue  # a killed process has left it, and it is not cleaned up yet
            self.files[number] = file
            return file

    def add_rows(
        self, file: CacheFile, rows: Sequence[Row], size_bytes: int, length_bytes: int
    ) -> None:
        """Writes the rows of new chunks in a file, ``size_bytes`` together, with the file's own. A
        slab has at least ``length_bytes`` then. Raises: OSError, LodefsError."""
        with file.lock:
            if not file.is_alive:
                raise Unavailable(f"{file.path} was dropped while chunks were written to it")
            self._index(file, [*rows], size_bytes, length_bytes)
        with self.lock:
            self.used_bytes += size_bytes
        if file.kind is FileKind.FLAT and file.present_bytes >= file.size_bytes:
            self._complete(file)

    def _index(self, file: CacheFile, rows: list[Row], size_bytes: int, length_bytes: int) -> None:
        before, is_new = file.row, file.generation == 0 and not file.present_bytes
        file.generation += 1
        file.present_bytes += size_bytes
        if file.kind is FileKind.SLAB:
            file.size_bytes = max(file.size_bytes, length_bytes)
        if file.boot == layout.DURABLE:
            file.boot = self.boot
        rows.append((layout.file_key(file.number), layout.encode_file_row(file.row)))
        if is_new:
            if file.kind is FileKind.FLAT:
                number = file.number.to_bytes(4, "little")
                rows.append((layout.flat_key(file.content), number))
            rows.append((NEXT_NUMBER, self._next_number.to_bytes(8, "little")))
        try:
            self.step("rows")
            self.kv.write(rows)
        except BaseException:
            file.generation -= 1
            file.present_bytes, file.size_bytes = before.present_bytes, before.size_bytes
            file.boot = before.boot
            raise

    def _complete(self, file: CacheFile) -> None:
        """Marks a flat file as complete if its runs cover it."""
        with file.lock:
            covered = covered_bytes(
                (layout.run_offset(key), layout.run_size(value))
                for key, value in self.kv.scan(layout.run_prefix(file.number))
            )
            if covered < file.size_bytes or file.state is not FileState.OPEN:
                return
            if file.finish():  # the next look drops it
                return
            file.state = FileState.COMPLETE
            self.step("complete")
            self.kv.write([(layout.file_key(file.number), layout.encode_file_row(file.row))])

    def close(self) -> None:
        """Releases the directory. No other call may run any more. durability.py syncs before."""
        for file in [*self.files.values(), *self.retired, *self.evicted]:
            file.close_if_idle()
        try:
            self.kv.close()
        finally:
            self.directory.close()

    # --- descriptors

    def _opened(self, file: CacheFile) -> None:
        self._open_files[file.number] = file
        if len(self._open_files) > self.settings.open_files_max:
            self.trim_soon()

    def trim(self) -> None:
        """Closes descriptors of evicted files, and of the least recently used files if too many are
        open. Only the event loop calls it: an extent is valid until then."""
        with self.lock:
            retired, self.retired = self.retired, []
        busy = [file for file in retired if not file.close_if_idle()]
        with self.lock:
            self.retired += busy
        for file in retired:
            self._open_files.pop(file.number, None)
        limit = self.settings.open_files_max
        surplus = len(self._open_files) - limit
        if surplus > 0:
            by_use = sorted(self._open_files.copy().values(), key=lambda file: file.last_use_s)
            for file in by_use[: surplus + limit // 4]:
                if file.close_if_idle():
                    self._open_files.pop(file.number, None)

    def trim_soon(self) -> None:
        """Makes the event loop call ``trim``, unless the cache is about to be closed."""
        if not self._is_ending:
            self._call_soon(self.trim)


def covered_bytes(runs: Iterator[tuple[int, int]]) -> int:
    """Returns how many bytes the runs (offset, size), sorted by offset, cover together."""
    covered = end = 0
    for offset, size_bytes in runs:
        covered += max(0, offset + size_bytes - max(end, offset))
        end = max(end, offset + size_bytes)
    return covered
