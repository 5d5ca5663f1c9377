"""Checks a node's cache: every chunk in its slabs and flat files against the chunk's id.

It only reads, even while a proxy writes: it uses a secondary of the index, and bypasses the
kernel's page cache if the file system supports that (O_DIRECT). So it checks the disk itself, and
leaves in the page cache what readers need. It repairs nothing; see damage_reports.py.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from lodefs.chunkstore.errors import Denied, NotFound
from lodefs.chunkstore.format.names import ChunkId, digest_of
from lodefs.chunkstore.nodecache import index_logs
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.affected_files import (
    AffectedFile,
    Segments,
    chunks_of,
    dataset_files,
    segments_by_content,
)
from lodefs.chunkstore.nodecache.kv import KeyValues
from lodefs.chunkstore.nodecache.kv_rocks import RocksSecondary
from lodefs.chunkstore.nodecache.layout import FileKind, FileRow, FileState
from lodefs.chunkstore.system.os_errors import DAMAGED, kind_of
from lodefs.chunkstore.system.progress import Progress

WINDOW_SIZE_BYTES = 4 * 1024 * 1024  # each worker's buffer
BLOCK_SIZE_BYTES = 4096  # alignment of direct reads
DAMAGES_MAX = 100  # reported for one file


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a cache file that differ from the index.

    ``chunk`` is None if the whole file is damaged. ``names`` are dataset files with these bytes, as
    far as the node knows them.
    """

    path: Path
    number: int
    offset: int
    size_bytes: int
    chunk: ChunkId | None
    what: str
    names: tuple[AffectedFile, ...] = ()


@dataclass(slots=True)
class CacheCheck:
    """Counts of the checked parts, and the damage that was found."""

    files: int = 0
    chunks: int = 0
    size_bytes: int = 0
    damages: list[Damage] = field(default_factory=list)

    @property
    def numbers(self) -> list[int]:
        """The damaged files."""
        return sorted({damage.number for damage in self.damages})


def verify_cache(cache_dir: Path, *, workers: int, progress: Progress | None = None) -> CacheCheck:
    """Checks all files of a cache directory, ``workers`` at a time.

    Raises: NotFound if there is no cache, UnknownFormat, Denied, Corrupt (the index is damaged).
    """
    progress = progress or Progress()
    with opened_index(cache_dir) as kv:
        result = CacheCheck()
        files = [(n, row) for n, row in _files(kv) if row.state is not FileState.EVICTED]
        progress.phase = "checking the cache"
        progress.files_total = len(files)
        progress.bytes_total = sum(row.present_bytes for _, row in files)
        turns = iter(files)
        segments = segments_of_files(kv, [row for _, row in files])
        lock = threading.Lock()

        def work() -> None:
            window = mmap.mmap(-1, WINDOW_SIZE_BYTES)
            while True:
                with lock:
                    turn = next(turns, None)
                if turn is None:
                    return
                checked = check_file(kv, cache_dir, *turn, segments, window=window)
                with lock:
                    _add(result, checked, progress)

        with ThreadPoolExecutor(workers, "verify") as pool:
            for done in [pool.submit(work) for _ in range(workers)]:
                done.result()
        kv.catch_up()
        there = [damage for damage in result.damages if _is_there(kv, damage.number)]
        result.damages = _named(kv, sorted(there, key=lambda damage: (damage.path, damage.offset)))
    return result


def segments_of_files(kv: KeyValues, rows: Sequence[FileRow]) -> dict[bytes, Segments]:
    """Returns the segments that complete flat files must hold, by content id, as far as known."""
    return segments_by_content(kv, {row.content for row in rows if _is_whole(row)})


def _is_whole(row: FileRow) -> bool:
    return row.kind is FileKind.FLAT and row.state is FileState.COMPLETE


def check_file(
    kv: KeyValues,
    cache_dir: Path,
    number: int,
    row: FileRow,
    segments: Mapping[bytes, Segments],
    *,
    window: mmap.mmap | None = None,
    pace: Callable[[int], None] = lambda _size_bytes: None,
) -> CacheCheck:
    """Checks one file against the index. A missing file counts as damage.

    ``segments`` come from ``segments_of_files``. ``window`` is WINDOW_SIZE_BYTES of memory to read
    into, which the caller may reuse. ``pace`` is called with each checked chunk's size; it may
    wait, or raise to end the check. Raises: Denied, Unavailable if the file cannot be read, which
    says nothing about its bytes.
    """
    place = layout.file_path(Path(), number, row)
    path = cache_dir / place
    result = CacheCheck(files=1)
    try:
        with _Reader(cache_dir, place, window or mmap.mmap(-1, WINDOW_SIZE_BYTES)) as reader:
            order = chunks_of(kv, segments.get(row.content, ()))
            _check_chunks(kv, number, row, path, reader, order, result, pace)
    except OSError as error:
        if error.errno not in DAMAGED:
            raise kind_of(error)(f"{path} cannot be read: {error.strerror}") from error
        what = f"the file cannot be read: {error.strerror}"
        result.damages.append(Damage(path, number, 0, row.present_bytes, None, what))
    return result


def _check_chunks(
    kv: KeyValues,
    number: int,
    row: FileRow,
    path: Path,
    reader: _Reader,
    order: Iterator[ChunkId | None],
    result: CacheCheck,
    pace: Callable[[int], None],
) -> None:
    end, is_right = 0, True  # the end of the part without holes; whether the chunks are in order
    for key, value in kv.scan(layout.run_prefix(number)):
        offset = layout.run_offset(key)
        for chunk, size_bytes in layout.decode_run_row(value).chunks:
            what = ""
            try:
                data = reader.read(offset, size_bytes)
            except OSError as error:
                if error.errno not in DAMAGED:
                    raise
                data, what = memoryview(b""), f"it cannot be read: {error.strerror}"
            if not what and len(data) < size_bytes:
                what = f"the file ends after {len(data)} of its bytes"
            if not what and ChunkId(digest_of(data)) != chunk:
                what = "its bytes are wrong"
            if what and len(result.damages) < DAMAGES_MAX:
                result.damages.append(Damage(path, number, offset, size_bytes, chunk, what))
            if offset == end:
                end += size_bytes
                is_right &= next(order, None) in (chunk, None)
            result.chunks += 1
            result.size_bytes += size_bytes
            offset += size_bytes
            pace(size_bytes)
    if _is_whole(row) and not result.damages and not (is_right and end == row.size_bytes):
        what = "its chunks are right, but they do not match the dataset file"
        result.damages.append(Damage(path, number, 0, row.size_bytes, None, what))


class _Reader:
    """Reads one file from its beginning on, through a window in memory."""

    def __init__(self, cache_dir: Path, path: Path, window: mmap.mmap) -> None:
        self._fd = layout.open_file(cache_dir, path)
        with suppress(OSError):  # the file system does not support direct reads
            flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        self._window = window
        self._start = self._end = 0  # the range that the window holds

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, offset: int, size_bytes: int) -> memoryview:
        """Returns the bytes, fewer at the file's end; valid until the next call. Raises:
        OSError."""
        if not self._start <= offset <= offset + size_bytes <= self._end:
            self._start = offset - offset % BLOCK_SIZE_BYTES
            if offset + size_bytes - self._start > len(self._window):
                return self._read_large(offset, size_bytes)
            self._end = self._start + self._fill(memoryview(self._window), self._start)
        place = offset - self._start
        return memoryview(self._window)[place : min(place + size_bytes, self._end - self._start)]

    def _read_large(self, offset: int, size_bytes: int) -> memoryview:
        """Reads a chunk that does not fit into the window. No store of lodefs has such chunks."""
        self._end = self._start
        place = offset - self._start
        blocks = -(-(place + size_bytes) // BLOCK_SIZE_BYTES)
        whole = memoryview(mmap.mmap(-1, blocks * BLOCK_SIZE_BYTES))
        got = self._fill(whole, self._start)
        return whole[place : min(place + size_bytes, got)]

    def _fill(self, view: memoryview, first: int) -> int:
        """Reads from ``first`` on until the view is full or the file ends. Returns the bytes
        read."""
        done = 0
        while done < len(view) and done % BLOCK_SIZE_BYTES == 0:
            got = os.preadv(self._fd, [view[done:]], first + done)
            if not got:
                break
            done += got
        return done


def _add(result: CacheCheck, checked: CacheCheck, progress: Progress) -> None:
    result.files += 1
    result.chunks += checked.chunks
    result.size_bytes += checked.size_bytes
    result.damages += checked.damages
    progress.files_done = result.files
    progress.bytes_done = result.size_bytes


def _files(kv: KeyValues) -> Iterator[tuple[int, FileRow]]:
    for key, value in kv.scan(layout.FILES):
        yield layout.number_of_key(key), layout.decode_file_row(value)


def _is_there(kv: KeyValues, number: int) -> bool:
    """Whether the index still has a file. A file that was evicted meanwhile is not damaged."""
    value = kv.get(layout.file_key(number))
    return value is not None and layout.decode_file_row(value).state is not FileState.EVICTED


def _named(kv: KeyValues, damages: Sequence[Damage]) -> list[Damage]:
    """Returns the damages with the names of their dataset files."""
    if not damages:
        return []
    rows = dict(_files(kv))
    contents = [rows[damage.number].content for damage in damages]
    found = dataset_files(kv, [damage.chunk for damage in damages if damage.chunk], contents)
    return [
        Damage(
            damage.path, damage.number, damage.offset, damage.size_bytes, damage.chunk, damage.what,
            tuple(dict.fromkeys([*found.get(content, ()), *found.get(damage.chunk or b"", ())])),
        )
        for damage, content in zip(damages, contents, strict=True)
    ]  # fmt: skip


@contextmanager
def opened_index(cache_dir: Path) -> Iterator[KeyValues]:
    """Opens a reader's view of a cache's index. Raises: NotFound, UnknownFormat, Denied,
    Corrupt."""
    try:
        version = layout.version_in(cache_dir)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(
            f"{cache_dir} is not the cache of a proxy: give its directory with --cache-dir"
        ) from None
    except PermissionError as error:
        raise Denied(
            f"{cache_dir}: {error.strerror}: only its owner and root may read it"
        ) from None
    layout.check_version(cache_dir, version)
    with index_logs.directory() as logs:
        kv = RocksSecondary(cache_dir / layout.INDEX_DIR, logs)
        try:
            yield kv
        finally:
            kv.close()
