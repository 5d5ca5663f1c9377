"""The node's cache of chunks: which are cached and where, and how new ones are stored.

Blocking; many threads may use it at once. Data is written before the rows that name it, and the
rows of one store are one batch, so that a kill at any moment leaves nothing wrong: at worst bytes
without rows. After a power cut, files that are not known to be on disk are not trusted.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from shutil import disk_usage
from typing import NamedTuple, Self

from lodefs.chunkstore.errors import LodefsError, NoSpace, Unavailable
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.kv import Row
from lodefs.chunkstore.nodecache.layout import FileKind, FileRow, FileState
from lodefs.chunkstore.system.os_errors import FULL
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.eviction import Eviction
from lodefs.proxy.cache.eviction_policy import EvictionPolicy, FairLru, Use
from lodefs.proxy.cache.pins import Pins
from lodefs.proxy.cache.prefetch_accuracy import PrefetchAccuracy
from lodefs.proxy.cache.tables import (
    NEXT_NUMBER,
    CacheSettings,
    CacheTables,
    CallSoon,
    never,
    no_step,
)
from lodefs.proxy.runtime.counters import Counter, Counts
from lodefs.proxy.runtime.thread_pools import current_owner

log = logging.getLogger("lodefs.cache")

GAPS_MAX = 4096  # limit for a flat file that is to be completed

_NO_CONTENT = bytes(32)


class ChunkLocation(NamedTuple):
    """The place of a chunk in the cache."""

    file: CacheFile
    offset: int
    size_bytes: int


class Chunk(NamedTuple):
    """A chunk to store. ``offset`` is its offset in the dataset file (flat files only)."""

    id: bytes
    size_bytes: int
    offset: int


class StoredRun(NamedTuple):
    """Consecutive chunks in a cache file, from an offset on."""

    file: CacheFile
    offset: int
    chunks: Sequence[Chunk]


@dataclass(frozen=True, slots=True)
class Flat:
    """A dataset file that has a flat file of its own."""

    content: bytes
    size_bytes: int


class Cache(CacheTables):
    """The open cache of a node. It finds and stores chunks; ``pins`` says which files stay, and
    ``eviction`` removes files.

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
        policy: EvictionPolicy | None = None,
    ) -> None:
        super().__init__(settings, counts, now_s=now_s, step=step, boot=boot, call_soon=call_soon)
        self._stored = threading.Condition(self.lock)
        try:
            self.pins = Pins(self)
        except BaseException:
            self.close()
            raise
        self.prefetch_accuracy = PrefetchAccuracy(settings.size_bytes_max)
        self._policy = policy or FairLru()
        self._eviction = Eviction(self, self._policy, self.prefetch_accuracy)

    def set_limit(self, size_bytes_max: int) -> None:
        """Sets the limit of the cache's size."""
        self.settings = replace(self.settings, size_bytes_max=size_bytes_max)
        self.prefetch_accuracy.resize(size_bytes_max)

    def end_stores(self) -> None:
        """Refuses new chunks, and returns when those being written are stored. A fetch without
        readers may still deliver chunks when the directory belongs to another process."""
        with self._stored:
            self._is_ending = True
            self._stored.wait_for(lambda: not self.reserved_bytes)

    # --- finding chunks

    def find(self, keys: Sequence[bytes]) -> list[ChunkLocation | None]:
        """Returns where chunks lie, by ``layout.chunk_keys``, with one index lookup for all."""
        files, decode = self.files, layout.decode_chunk_row
        found: list[ChunkLocation | None] = []
        for value in self.kv.get_many(keys):
            if value is None:
                found.append(None)
                continue
            number, offset, size_bytes = decode(value)
            file = files.get(number)
            found.append(None if file is None else ChunkLocation(file, offset, size_bytes))
        return found

    def lacks(self, keys: Sequence[bytes]) -> bool:
        """Whether none of some chunks is here. It never waits for the disk; False may be wrong."""
        return self.kv.lacks(keys)

    def complete_flat(self, content: bytes) -> CacheFile | None:
        """Returns the flat file that is the whole dataset file, if there is a trusted one."""
        file = self.flats.get(content)
        if file is None or file.state is not FileState.COMPLETE:
            return None
        return file if file.is_trusted(self.boot) else None

    def gaps(self, flat: Flat) -> list[tuple[int, int]]:
        """Returns the parts [first, end) of a dataset file that its flat file lacks; none if it is
        complete, must be checked before use, or lacks too many parts."""
        file = self.flats.get(flat.content)
        if file is None:
            return [(0, flat.size_bytes)]
        if file.state is not FileState.OPEN or not file.is_trusted(self.boot):
            return []
        gaps: list[tuple[int, int]] = []
        at = 0
        for key, value in self.kv.scan(layout.run_prefix(file.number)):
            first = layout.run_offset(key)
            if first > at:
                gaps.append((at, first))
            if len(gaps) > GAPS_MAX:
                return []
            at = max(at, first + layout.run_size(value))
        return [*gaps, (at, flat.size_bytes)] if at < flat.size_bytes else gaps

    def is_half_there(self, flat: Flat) -> bool:
        """Whether the flat file of a dataset file has about half of its bytes, or more."""
        file = self.flats.get(flat.content)
        return file is not None and file.present_bytes * 2 >= flat.size_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Whether ``size_bytes`` more would evict nothing."""
        fits = self._would_use(size_bytes) <= self.settings.size_bytes_max * self.settings.low
        return fits and self._shortage(size_bytes) <= 0

    # --- what stays

    def touch(self, file: CacheFile, use: Use, size_bytes: int = 0) -> None:
        """Notes a use of a file, by which it stays longer, and the bytes that were asked for or
        read. Mounts do not say which bytes they read, and the kernel may read all of a whole
        dataset file and tell nobody."""
        if use is not Use.READ:  # which each hit is
            if use is Use.ASKED:
                file.asked_bytes += size_bytes
            elif use is Use.WRITTEN or use is Use.REPORTED:
                file.owner = current_owner.get() or file.owner
            if use is Use.REPORTED and file.is_whole:
                size_bytes = file.present_bytes
        file.read_bytes += size_bytes
        self._policy.touch(file, use, int(self.now_s()))

    def free(self, size_bytes: int) -> None:
        """Evicts files of at least ``size_bytes`` together, or all that are neither pinned nor in
        use."""
        self._eviction.free(size_bytes)

    def evict(self, file: CacheFile) -> bool:
        """Removes a file. Returns False if it is pinned, in use or gone already."""
        return self._eviction.evict(file)

    def drop(self, file: CacheFile, why: str, *, is_damaged: bool = True) -> None:
        """Removes a file whose bytes are wrong, missing or unwanted, even if it is pinned or in
        use."""
        self._eviction.drop(file, why, is_damaged=is_damaged)

    def drop_chunks(self, chunks: Collection[bytes], why: str) -> None:
        """Drops each file that has one of the chunks, though its bytes are right."""
        self._eviction.drop_chunks(chunks, why)

    def finish_evictions(self) -> None:
        """Completes the removal of files after a kill or a full disk interrupted it."""
        self._eviction.finish()

    # --- storing chunks

    def store(
        self,
        chunks: Sequence[tuple[Chunk, Buffer]],
        flat: Flat | None,
        *,
        are_copies: bool = False,
    ) -> list[StoredRun]:
        """Stores verified chunks from memory, at places as of ``reserve``. Returns where they lie;
        an empty list, with nothing stored, if there is no space or their file was damaged from
        outside. With ``are_copies``, lookups still find the chunks at their old places.
        """
        try:
            reservation = self.reserve([chunk for chunk, _ in chunks], flat)
            if reservation is None:
                return []
            with reservation:
                reservation.write([raw for _, raw in chunks])
                return reservation.commit(are_copies=are_copies)
        except (OSError, LodefsError) as error:
            self._failed(error)
            return []

    def reserve(self, chunks: Sequence[Chunk], flat: Flat | None) -> Reservation | None:
        """Reserves places for chunks: with ``flat`` at their offsets in its flat file, otherwise
        one after another in a slab. They are kept until the reservation's with block ends. Returns
        None if there is no space, or the file was damaged from outside.

        Raises: OSError, NoSpace.
        """
        size_bytes = sum(chunk.size_bytes for chunk in chunks)
        with ExitStack() as stack:
            if not stack.enter_context(self._reserved(size_bytes)):
                self.pins.note_full()
                return None
            file, first = stack.enter_context(self._target(flat, size_bytes))
            if damage := file.damage():
                self.drop(file, damage)
                return None
            runs = _runs_by_offset(chunks) if first < 0 else [ReservedRun(first, list(chunks))]
            return Reservation(self, file, runs, is_slab=first >= 0, places=stack.pop_all())

    @contextmanager
    def _reserved(self, size_bytes: int) -> Iterator[bool]:
        limit = self.settings.size_bytes_max
        surplus = self._would_use(size_bytes) - limit * self.settings.low
        if self._would_use(size_bytes) <= limit * self.settings.high:
            surplus = 0
        shortage = self._shortage(size_bytes)
        if (surplus or shortage > 0) and not self._is_ending:
            self.free(int(max(surplus, shortage)))
            shortage = self._shortage(size_bytes)
        with self.lock:
            fits = shortage <= 0 and self._would_use(size_bytes) <= limit
            fits = fits and not self._is_ending
            if fits:
                self.reserved_bytes += size_bytes
        try:
            yield fits
        finally:
            if fits:
                with self.lock:
                    self.reserved_bytes -= size_bytes
                    self._stored.notify_all()

    def _shortage(self, size_bytes: int) -> int:
        """Returns how many bytes the file system lacks to store ``size_bytes``; not positive if
        none."""
        try:
            free_bytes = disk_usage(self.settings.path).free
        except OSError:  # it was removed: nothing can be stored until there is another one
            return size_bytes + self.settings.free_size_bytes_min
        return size_bytes + self.settings.free_size_bytes_min - free_bytes

    def _would_use(self, size_bytes: int) -> int:
        return self.used_bytes + self.reserved_bytes + size_bytes

    @contextmanager
    def _target(self, flat: Flat | None, size_bytes: int) -> Iterator[tuple[CacheFile, int]]:
        """Yields the file to write to, which is not evicted meanwhile, and the offset in a slab; -1
        for the chunks' own offsets."""
        with self.lock:
            file = self._flat(flat) if flat else None
            first = -1
            if file is None:
                file = self._slab_for(size_bytes)
                first = file.reserved_bytes
                file.reserved_bytes += size_bytes
            with file.lock:
                file.users += 1
        try:
            yield file, first
        finally:
            with file.lock:
                file.users -= 1

    def _flat(self, flat: Flat) -> CacheFile | None:
        file = self.flats.get(flat.content)
        if file is None:
            file = self._new_file(FileKind.FLAT, flat.content, flat.size_bytes)
            self.flats[flat.content] = file
        return file if file.state is FileState.OPEN else None

    def _slab_for(self, size_bytes: int) -> CacheFile:
        slab = self._slab
        if slab is not None and slab.is_alive and slab.is_trusted(self.boot):
            if slab.reserved_bytes + size_bytes <= self.settings.slab_size_bytes:
                slab.lengthen(self.settings.slab_size_bytes)  # of an earlier proxy
                return slab
            slab.state = FileState.COMPLETE
        self._slab = self._new_file(FileKind.SLAB, _NO_CONTENT, 0)
        self._slab.lengthen(max(self.settings.slab_size_bytes, size_bytes))
        return self._slab

    def _new_file(self, kind: FileKind, content: bytes, size_bytes: int) -> CacheFile:
        """Makes a file without a row: its first store writes one. Raises: OSError, NoSpace."""
        while True:
            number = self._next_number
            self._next_number += 1
            row = FileRow(
                kind, FileState.OPEN, self.boot, content, size_bytes, 0, int(self.now_s())
            )
            file = CacheFile(number, row, self.settings.path, self._opened)
            self.step("create")
            try:
                file.create()
            except FileExistsError:
                continue  # a killed process has left it, and it is not cleaned up yet
            self.files[number] = file
            return file

    def add_rows(self, file: CacheFile, runs: Sequence[ReservedRun], *, are_copies: bool) -> None:
        """Indexes chunks whose bytes are written, for Reservation. Raises: OSError, LodefsError."""
        rows: list[Row] = []
        for run in runs:
            if not are_copies:
                rows += _chunk_rows(file, run)
            rows += self._run_rows(file, run)
        size_bytes = sum(chunk.size_bytes for run in runs for chunk in run.chunks)
        with file.lock:
            if not file.is_alive:
                raise Unavailable(f"{file.path} was dropped while chunks were written to it")
            self._index(file, rows, size_bytes, max(r.offset for r in runs) + size_bytes)
        with self.lock:
            self.used_bytes += size_bytes
        if file.kind is FileKind.FLAT and file.present_bytes >= file.size_bytes:
            self._complete(file)

    def _run_rows(self, file: CacheFile, run: ReservedRun) -> list[Row]:
        """Returns the row of a run, unless a longer run has that key: if its row vanished, no check
        would cover its bytes. The same offset of a flat file always has the same chunks."""
        sizes = [(chunk.id, chunk.size_bytes) for chunk in run.chunks]
        key, value = layout.run_key(file.number, run.offset), layout.encode_run_row(sizes)
        there = self.kv.get(key) if file.kind is FileKind.FLAT else None
        if there is not None and layout.run_size(there) >= layout.run_size(value):
            return []
        return [(key, value)]

    def _index(self, file: CacheFile, rows: list[Row], size_bytes: int, end: int) -> None:
        before, is_new = file.row, file.generation == 0 and not file.present_bytes
        file.generation += 1
        file.present_bytes += size_bytes
        self.touch(file, Use.WRITTEN)
        if file.kind is FileKind.SLAB:
            file.size_bytes = max(file.size_bytes, end)
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
            file.state = FileState.COMPLETE
            os.fchmod(file.fd, 0o444)  # a writer has opened it
            self.step("complete")
            self.kv.write([(layout.file_key(file.number), layout.encode_file_row(file.row))])

    def _failed(self, error: Exception) -> None:
        self.counts.add(Counter.NO_SPACE)
        log.warning("chunks are served without being cached: %s", error)
        if isinstance(error, NoSpace) or getattr(error, "errno", None) in FULL:
            surplus = self.used_bytes * (self.settings.high - self.settings.low)
            self.free(max(int(surplus), 1))


class ReservedRun(NamedTuple):
    """Consecutive chunks from an offset of a file on."""

    offset: int
    chunks: list[Chunk]


class Reservation:
    """Places in a file of the cache for chunks, which are in the cache once their bytes are written
    there and ``commit`` was called. Its with block keeps the file from eviction; at its end, unused
    places become free, unless the reservation ``is_held``."""

    def __init__(
        self,
        cache: Cache,
        file: CacheFile,
        runs: Sequence[ReservedRun],
        *,
        is_slab: bool,
        places: ExitStack,
    ) -> None:
        self.file = file
        self.runs = runs
        self.is_held = False  # rows name the places, or a process may still write there
        self._cache = cache
        self._size_bytes = sum(chunk.size_bytes for run in runs for chunk in run.chunks)
        self._is_slab = is_slab
        self._places = places

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._places:
            if self._is_slab and not self.is_held:
                with self._cache.lock:
                    self.file.give_back(self.runs[0].offset, self._size_bytes)

    def write(self, raws: Sequence[Buffer]) -> None:
        """Writes the bytes of all chunks, in their order. Raises: OSError; Unavailable if the file
        was damaged meanwhile: then it is dropped."""
        rest = iter(raws)
        for run in self.runs:
            self._cache.step("data")
            self._heed(self.file.write(run.offset, list(islice(rest, len(run.chunks)))))

    def drop(self, why: str) -> None:
        """Drops the file, which was damaged."""
        self._cache.drop(self.file, why)

    def commit(self, *, are_copies: bool = False) -> list[StoredRun]:
        """Indexes the chunks, whose bytes are written. Raises: OSError, LodefsError, also if the
        file was damaged meanwhile: then it is dropped."""
        self.is_held = True
        self._heed(self.file.damage())
        self._cache.add_rows(self.file, self.runs, are_copies=are_copies)
        self._cache.counts.add(Counter.FILLED_BYTES, self._size_bytes)
        if are_copies:
            self._cache.touch(self.file, Use.ASKED, self._size_bytes)  # copies cost no fetch
        return [StoredRun(self.file, run.offset, run.chunks) for run in self.runs]

    def _heed(self, damage: str) -> None:
        if damage:
            self.drop(damage)
            raise Unavailable(f"{self.file.path} was damaged while chunks were written: {damage}")


def _runs_by_offset(chunks: Sequence[Chunk]) -> list[ReservedRun]:
    runs: list[ReservedRun] = []
    end = -1
    for chunk in chunks:
        if chunk.offset != end:
            runs.append(ReservedRun(chunk.offset, []))
        runs[-1].chunks.append(chunk)
        end = chunk.offset + chunk.size_bytes
    return runs


def _chunk_rows(file: CacheFile, run: ReservedRun) -> list[Row]:
    """Returns the rows that say where each chunk of a run lies."""
    rows: list[Row] = []
    offset = run.offset
    for chunk in run.chunks:
        size = chunk.size_bytes
        place = layout.encode_chunk_row(file.number, offset, size)
        rows.append((layout.chunk_key(chunk.id), place))
        offset += size
    return rows


def covered_bytes(runs: Iterator[tuple[int, int]]) -> int:
    """Returns how many bytes the runs (offset, size), sorted by offset, cover together."""
    covered = end = 0
    for offset, size_bytes in runs:
        covered += max(0, offset + size_bytes - max(end, offset))
        end = max(end, offset + size_bytes)
    return covered
