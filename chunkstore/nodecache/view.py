"""A reader's view of the node's cache: where the bytes of a snapshot lie, and its metadata.

The proxy writes the cache; this only reads it (chunkstore/nodecache/layout.py). The view of the
index is old until it catches up, and can be wrong in one way only: it names files that are gone. As
long as the index is the same, a file's bytes never change and its number is never used again. If
somebody removed the index, a new one numbers files from the beginning. So a reader that has opened
a file, or heard of one from the proxy, checks that the index still lies where it was.
"""

from __future__ import annotations

import os
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from lodefs.chunkstore.errors import Denied, NotFound, Unavailable, UnknownFormat
from lodefs.chunkstore.format.inodes import child_ino
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.tree import Segment
from lodefs.chunkstore.nodecache import index_logs, name_rows
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.kv import KeyValues
from lodefs.chunkstore.nodecache.layout import FileKind, FileRow, FileState
from lodefs.chunkstore.nodecache.name_rows import EntryRow
from lodefs.chunkstore.protocol.wire import CacheExtent, CachePlace, Entry, Page, Snapshot
from lodefs.chunkstore.system import after_fork, libc
from lodefs.chunkstore.system.lru import Lru
from lodefs.chunkstore.system.safe_open import PLACE, open_regular

BLOCK_CACHE_SIZE_BYTES = 8 * 1024 * 1024
FILES_MAX = 192  # limit for a worker's descriptors
FLATS_MAX = 64  # whole files found without the index; they may be open beyond FILES_MAX
SEGMENTS_MAX = 8  # large files whose segments are in memory
CHUNKS_MAX = 32  # packs whose chunks are in memory; mostly 40 KB each
TOLD_STEP_BYTES = 4 * 1024 * 1024
TOLD_MAX = 64  # extents that the proxy has reported
CATCH_UP_PAUSE_S = 0.01
CATCH_UP_SHARE = 20  # and at least this many times as long as the last one took
SEGMENTS_SIZE_BYTES_MAX = 64 * 1024  # in a row; a file with more segments is left to the proxy
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # malloc.h


class Descriptor:
    """A descriptor that stays open while this object is referenced. So a reading thread needs no
    lock against another thread that drops the file."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.fd >= 0:
            close(self.fd)  # at exit, the module may be gone already


class OpenFile(Descriptor):
    """A slab or flat file of the cache with the directory ``place``. The cache belongs to the
    proxy's user and its reader may be root, so no symlink in it is followed. Raises: OSError."""

    __slots__ = ("_uncached", "is_complete", "is_slab", "number", "size_bytes")

    def __init__(self, place: Descriptor, number: int, row: FileRow) -> None:
        self.fd = -1  # for __del__, since a file that was evicted meanwhile cannot be opened
        super().__init__(open_regular(place.fd, str(layout.file_path(Path(), number, row))))
        self.number = number
        self.size_bytes = row.size_bytes
        self.is_complete = row.state is FileState.COMPLETE
        self.is_slab = row.kind is FileKind.SLAB
        self._uncached: Descriptor | None = None

    def uncached(self) -> Descriptor:
        """Returns a descriptor of the file for reads past the page cache, whose offsets, sizes and
        memory must be aligned (O_DIRECT). Raises: OSError if the file system has no such reads."""
        found = self._uncached
        if found is None:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT
            found = Descriptor(os.open(f"/proc/self/fd/{self.fd}", flags))
            self._uncached = found
        return found

    @property
    def is_gone(self) -> bool:
        """Whether the file was evicted: only this descriptor keeps its space."""
        return os.fstat(self.fd).st_nlink == 0


# Consecutive bytes of a file of the cache: file, offset and size in bytes.
Extent = tuple[OpenFile, int, int]
_Segments = tuple[list[int], tuple[Segment, ...]]  # their offsets in the file, and they
_Chunks = tuple[bytes, "array[int]"]  # of a pack: their joined ids, and their raw offsets


class CachedPart(NamedTuple):
    """A row of a directory's children."""

    key: bytes
    value: bytes

    def nodes(self) -> list[Entry]:
        """Returns the entries by name. Raises: Corrupt."""
        return name_rows.decode_page(self.value)


class CacheView:
    """A reader's view of one cache, for one snapshot. The threads of a process share it.

    None stands for anything that it does not know: the proxy may know it. Raises: Unavailable,
    Corrupt if the index cannot be read.
    """

    def __init__(
        self,
        directory: Path,
        kv: KeyValues,
        snapshot: Snapshot,
        *,
        boot: bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = directory
        self.used: set[int] = set()  # numbers of files that were read; the reporter empties it
        # Bytes of them put into the page cache before they were asked for; reset as well
        self.stored_bytes = 0
        self.scattered: set[int] = set()  # large dataset files read by chunks; emptied as well
        self._kv = kv
        self._snapshot = name_rows.snapshot_key(bytes.fromhex(snapshot.commit))
        self._boot = boot
        self._clock = clock
        self._files: Lru[int, OpenFile] = Lru(FILES_MAX)
        self._flats: Lru[int, OpenFile] = Lru(FLATS_MAX)  # by inode number
        self._segments: Lru[int, _Segments] = Lru(SEGMENTS_MAX)
        self._chunks: Lru[PackId, _Chunks] = Lru(CHUNKS_MAX)
        self._told: Lru[tuple[int, int], tuple[OpenFile, int, int, int]] = Lru(TOLD_MAX)
        self._next_catch_up_s = clock() + CATCH_UP_PAUSE_S
        self._place = Descriptor(os.open(directory, PLACE | os.O_CLOEXEC))
        self._index = Descriptor(
            os.open(layout.INDEX_DIR, PLACE | os.O_CLOEXEC, dir_fd=self._place.fd)
        )
        found = os.fstat(self._index.fd)
        self._index_id = (found.st_dev, found.st_ino)

    # --- keeping up

    def catch_up(self) -> bool:
        """Reads what the proxy has written so far. Returns False if that was done just before."""
        if self._clock() < self._next_catch_up_s:
            return False
        if not after_fork.index_lock.acquire(blocking=False):
            return False
        try:
            began_s = self._clock()
            self._kv.catch_up()
            now_s = self._clock()
            pause_s = max(CATCH_UP_PAUSE_S, CATCH_UP_SHARE * (now_s - began_s))
            self._next_catch_up_s = now_s + pause_s
        finally:
            after_fork.index_lock.release()
        return True

    def is_current(self) -> bool:
        """Whether the index still lies where it was opened."""
        try:
            there = os.stat(self.directory / layout.INDEX_DIR)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == self._index_id

    def close_evicted(self) -> None:
        """Closes the descriptors of files that are gone, so that their space becomes free."""
        for number, file in self._files.items():
            if file.is_gone:
                self._files.pop(number)
        for ino, file in self._flats.items():
            if file.is_gone:
                self._flats.pop(ino)
        for key, (file, *_) in self._told.items():
            if file.is_gone:
                self._told.pop(key)

    def forget(self, file: OpenFile) -> None:
        """Makes the next read reopen a file that differs from the index."""
        self._files.pop(file.number)
        for key, told in self._told.items():
            if told[0] is file:
                self._told.pop(key)
        for ino, other in self._flats.items():
            if other is file:
                self._flats.pop(ino)

    def abandon(self) -> None:
        """Closes the cache's files in a forked child, which never asks this view again, and would
        otherwise keep the space of evicted files. Another thread may have held the locks."""
        self._files, self._flats, self._told = Lru(1), Lru(1), Lru(1)

    # --- the proxy's answers

    def told(self, ino: int, first: int, size_bytes: int) -> Extent | None:
        """Returns an extent that the proxy has reported."""
        found = self._told.get((ino, first // TOLD_STEP_BYTES))
        if found is None:
            return None
        file, start, end, offset = found
        if not start <= first or first + size_bytes > end:
            return None
        return file, offset + first - start, size_bytes

    def tell(self, ino: int, place: CacheExtent) -> OpenFile | None:
        """Stores an extent that the proxy reports. Returns the file if it exists, and the proxy
        still has the index of this view, at this place or another: any other index has other files
        with the same numbers."""
        if place.index not in ((0, 0), self._index_id):
            return None
        file = self._files.get(place.number) or self._open_told(place)
        if file is None or not self.is_current():
            return None
        self._files.put(place.number, file)
        end = place.first + place.size_bytes
        for step in range(place.first // TOLD_STEP_BYTES, (end - 1) // TOLD_STEP_BYTES + 1):
            self._told.put((ino, step), (file, place.first, end, place.offset))
        return file

    def _open_told(self, place: CacheExtent) -> OpenFile | None:
        """Opens the file, which may be newer than this view of the index."""
        kind = FileKind.FLAT if place.content else FileKind.SLAB
        row = FileRow(kind, FileState.OPEN, self._boot, place.content, 0, 0, 0)
        try:
            return OpenFile(self._place, place.number, row)
        except OSError:
            return None

    # --- metadata

    def row(self, ino: int) -> EntryRow | None:
        """Returns the row of an entry."""
        value = self._kv.get(name_rows.entry_key(self._snapshot, ino))
        return None if value is None else name_rows.decode_entry_row(value)

    def node(self, ino: int) -> Entry | None:
        """Returns the entry with a number."""
        row = self.row(ino)
        return None if row is None else name_rows.node_of(ino, row.parent, row)

    def lookup(self, parent: int, name: bytes) -> Entry | None:
        """Returns the child of a directory. Raises: NotFound if it certainly has no such child."""
        ino = child_ino(parent, name)
        row = self.row(ino)
        if row is None:
            if not self._is_loaded(parent):
                return None
            # The mark is written after all children, so only a lookup after it is certain.
            row = self.row(ino)
            if row is None:
                raise NotFound(f"{name!r} is not in directory {parent}")
        if row.name != name or row.parent != parent:
            return None  # another entry has this number: the proxy resolves that
        return name_rows.node_of(ino, row.parent, row)

    def children(self, ino: int, after: bytes, limit: int) -> Page | None:
        """Returns at most ``limit`` children whose names sort after ``after``."""
        if not self._is_loaded(ino):
            return None
        prefix = name_rows.children_prefix(self._snapshot, ino)
        rows = self._kv.scan(prefix, after=prefix + after)
        return name_rows.page_of((value for _, value in rows), after, limit)

    def part(self, node: Entry) -> CachedPart | None:
        """Returns the siblings of an entry that are in the same row."""
        prefix = name_rows.children_prefix(self._snapshot, node.parent)
        key = prefix + node.name
        value = self._kv.get(key)  # it may be the last one of its row
        if value is not None:
            return CachedPart(key, value)
        return next((CachedPart(*row) for row in self._kv.scan(prefix, after=key)), None)

    def _is_loaded(self, ino: int) -> bool:
        return self._kv.get(name_rows.loaded_key(self._snapshot, ino)) is not None

    # --- bytes

    def known_flat(self, ino: int) -> OpenFile | None:
        """Returns the complete flat file of an inode if it was found before, without the index."""
        return self._flats.get(ino)

    def complete_flat(self, node: Entry) -> OpenFile | None:
        """Returns the flat file that is the whole file, if it is complete and trusted."""
        if node.size_bytes < layout.FLAT_SIZE_BYTES_MIN:
            return None
        file = self._flat_of(node)
        return file if file is not None and file.is_complete else None

    def _flat_of(self, node: Entry) -> OpenFile | None:
        """Returns the flat file of a large file, complete or not."""
        found = self._flats.get(node.ino)
        if found is None:
            found = self._flat(node)
            if found is not None and found.is_complete:
                self._flats.put(node.ino, found)
        return found

    def find(self, node: Entry, first: int, size_bytes: int) -> list[Extent] | None:
        """Returns the extents of a whole range of a file that begins at ``first``, in order."""
        total = node.size_bytes
        if total >= layout.FLAT_SIZE_BYTES_MIN:
            file = self._flat_of(node)
            if file is not None and (file.is_complete or self._covers(file, first, size_bytes)):
                return [(file, first, size_bytes)]
            self.scattered.add(node.ino)
        else:  # perhaps one chunk: then its id is the digest, unless the commit is wrong
            whole = self._chunk(node, self._kv.get(layout.chunk_key(node.digest)))
            if whole is not None:
                return [(whole[0], whole[1] + first, size_bytes)]
        return self._by_chunks(node, first, size_bytes)

    def find_chunks(self, nodes: Sequence[Entry]) -> list[Extent | None]:
        """Returns an extent, or None, for each of some files that consist of one chunk."""
        values = self._kv.get_many([layout.chunk_key(node.digest) for node in nodes])
        return [self._chunk(node, value) for node, value in zip(nodes, values, strict=True)]

    def _chunk(self, node: Entry, value: bytes | None) -> Extent | None:
        """Returns the extent of a file of one chunk, from the chunk's row."""
        if value is None:
            return None
        number, offset, chunk_bytes = layout.decode_chunk_row(value)
        if chunk_bytes != node.size_bytes:
            return None
        file = self._files.get(number) or self._open(number)
        return None if file is None else (file, offset, chunk_bytes)

    def _flat(self, node: Entry) -> OpenFile | None:
        value = self._kv.get(layout.flat_key(node.content)) if node.content else None
        if value is None:
            return None
        number = int.from_bytes(value, "little")
        file = self._files.get(number)
        if file is None or not file.is_complete:
            file = self._open(number)  # it may be complete now
        return file

    def _open(self, number: int) -> OpenFile | None:
        value = self._kv.get(layout.file_key(number))
        if value is None:
            return None
        row = layout.decode_file_row(value)
        if row.state is FileState.EVICTED or not layout.is_trusted(row, self._boot):
            return None
        known = self._files.get(number)
        if known is not None and known.is_complete == (row.state is FileState.COMPLETE):
            return known
        try:
            file = OpenFile(self._place, number, row)
        except OSError:
            return None
        if not self.is_current():
            return None  # it may be a file of another index with the same number
        self._files.put(number, file)
        return file

    def _covers(self, file: OpenFile, first: int, size_bytes: int) -> bool:
        """Whether consecutive runs hold the whole range of a flat file."""
        found = self._kv.floor(layout.run_prefix(file.number), layout.run_key(file.number, first))
        if found is None:
            return False
        end = layout.run_offset(found[0]) + layout.run_size(found[1])
        if end <= first:
            return False
        while end < first + size_bytes:
            value = self._kv.get(layout.run_key(file.number, end))
            if value is None:
                return False
            end += layout.run_size(value)
        return True

    def _by_chunks(self, node: Entry, first: int, size_bytes: int) -> list[Extent] | None:
        """Finds a range by the chunks of a file, wherever these lie."""
        placed = self._segments.get(node.ino) or self._read_segments(node.ino)
        if placed is None:
            return None
        starts, segments = placed
        end = first + size_bytes
        found: list[Extent] = []
        for n in range(bisect_right(starts, first) - 1, len(segments)):
            start = starts[n]
            if start >= end:
                break
            part = self._of_segment(segments[n], max(first - start, 0), end - start)
            if part is None:
                return None
            found += part
        return _joined(found)

    def _read_segments(self, ino: int) -> _Segments | None:
        """Returns the segments of a file, and where they begin in it."""
        row = self.row(ino)
        if row is None or len(row.segments) > SEGMENTS_SIZE_BYTES_MAX:
            return None
        segments = name_rows.segments_of(row)
        starts = list(accumulate((segment.size_bytes for segment in segments), initial=0))
        self._segments.put(ino, (starts, segments))
        return starts, segments

    def _of_segment(self, segment: Segment, first: int, end: int) -> list[Extent] | None:
        """Finds the bytes [first, end) of a segment, as far as it goes."""
        chunks = self._chunks.get(segment.pack) or self._read_chunks(segment.pack)
        if chunks is None:
            return None
        ids, offsets = chunks
        last = segment.first + segment.count
        if last >= len(offsets) or offsets[last] - offsets[segment.first] != segment.size_bytes:
            return None
        shift = offsets[segment.first]
        first, end = first + shift, min(end, segment.size_bytes) + shift
        begin = bisect_right(offsets, first) - 1
        keys = layout.chunk_keys(ids, begin, bisect_left(offsets, end) - begin)
        found: list[Extent] = []
        for n, place in enumerate(self._kv.get_many(keys), begin):
            if place is None:
                return None
            number, offset, chunk_bytes = layout.decode_chunk_row(place)
            file = self._files.get(number) or self._open(number)
            if file is None or chunk_bytes != offsets[n + 1] - offsets[n]:
                return None
            skip = max(first - offsets[n], 0)
            found.append((file, offset + skip, min(end, offsets[n + 1]) - offsets[n] - skip))
        return found

    def _read_chunks(self, pack: PackId) -> _Chunks | None:
        """Returns the ids and offsets of a pack's chunks, which its id names: they never change."""
        from lodefs.chunkstore.format.pack import (
            columns_of,  # imported late: it loads chunking and compression
        )

        value = self._kv.get(layout.pack_key(pack))
        if value is None:
            return None
        ids, sizes = columns_of(pack, layout.decode_pack_row(value)[1])
        chunks = bytes(ids), array("Q", accumulate(sizes, initial=0))
        self._chunks.put(pack, chunks)
        return chunks


def open_view(
    place: CachePlace, snapshot: Snapshot, *, clock: Callable[[], float] = time.monotonic
) -> CacheView:
    """Opens the cache that a proxy names, if this process can read it and knows its layout.

    Raises: UnknownFormat, Denied, Unavailable.
    """
    # RocksDB is loaded here and not with the module, so that only a worker that uses it loads it.
    from lodefs.chunkstore.nodecache.kv_rocks import RocksSecondary

    directory = Path(os.fsdecode(place.directory))
    if place.version != layout.VERSION:
        raise UnknownFormat(f"the cache has layout {place.version}, not {layout.VERSION}")
    try:
        layout.check_version(directory, layout.version_in(directory))
        boot = layout.boot_id()
        _give_memory_back()
        with index_logs.directory() as log_dir:
            kv = RocksSecondary(
                directory / layout.INDEX_DIR,
                log_dir,
                block_cache_size_bytes=BLOCK_CACHE_SIZE_BYTES,
            )
        return CacheView(directory, kv, snapshot, boot=boot, clock=clock)
    except PermissionError as error:
        raise Denied(f"{directory} may not be read: {error.strerror}") from error
    except OSError as error:
        raise Unavailable(f"{directory} cannot be read here: {error.strerror}") from error


def _give_memory_back() -> None:
    """Makes malloc return blocks of 1 MiB and more to the system when they are freed (mallopt(3)).

    The index allocates and frees recent writes in blocks of 2 MiB. They would otherwise leave holes
    of a third of a worker's memory.
    """
    with suppress(AttributeError, OSError):  # not glibc
        libc.call("mallopt", _M_MMAP_THRESHOLD, 1024 * 1024)
        libc.call("mallopt", _M_ARENA_MAX, 2)


def _joined(extents: list[Extent]) -> list[Extent]:
    """Merges the extents into as few as possible."""
    joined: list[Extent] = []
    for extent in extents:
        if joined:
            file, offset, size_bytes = joined[-1]
            if file is extent[0] and offset + size_bytes == extent[1]:
                joined[-1] = (file, offset, size_bytes + extent[2])
                continue
        joined.append(extent)
    return joined
