"""The node's cache of chunks: which are cached and where, and how new ones are stored.

Blocking; many threads may use it at once. Data is written before the rows that name it, and the
rows of one store are one batch, so that a kill at any moment leaves nothing wrong: at worst bytes
without rows. After a power cut, files that are not known to be on disk are not trusted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from shutil import disk_usage
from typing import NamedTuple

from lodefs.chunkstore.errors import LodefsError, NoSpace
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.layout import FileKind, FileState
from lodefs.chunkstore.system.os_errors import FULL
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.eviction import Eviction
from lodefs.proxy.cache.eviction_policy import EvictionPolicy, FairLru, Use
from lodefs.proxy.cache.pins import Pins
from lodefs.proxy.cache.prefetch_accuracy import PrefetchAccuracy
from lodefs.proxy.cache.reservation import Chunk, ChunkRun, Reservation
from lodefs.proxy.cache.tables import (
    CacheSettings,
    CacheTables,
    CallSoon,
    never,
    no_step,
)
from lodefs.proxy.metrics.counters import Counter, Counts
from lodefs.proxy.runtime.thread_pools import current_owner

log = logging.getLogger("lodefs.cache")

GAPS_MAX = 4096  # limit for a flat file that is to be completed

_NO_CONTENT = bytes(32)


class ChunkLocation(NamedTuple):
    """The place of a chunk in the cache."""

    file: CacheFile
    offset: int
    size_bytes: int


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
        self.eviction = Eviction(self, self._policy, self.prefetch_accuracy)

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
        """Returns where chunks lie, by ``layout.chunk_keys``, with one index lookup for all. There
        is none if memory tells that no chunk is here, as for most units that are fetched."""
        if self.lacks(keys):
            return [None] * len(keys)
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

    # --- storing chunks

    def store(
        self,
        chunks: Sequence[tuple[Chunk, Buffer]],
        flat: Flat | None,
        *,
        are_copies: bool = False,
    ) -> Sequence[ChunkRun]:
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
                self.eviction.drop(file, damage)
                return None
            return Reservation(self, file, first, chunks, places=stack.pop_all())

    @contextmanager
    def _reserved(self, size_bytes: int) -> Iterator[bool]:
        limit = self.settings.size_bytes_max
        surplus = self._would_use(size_bytes) - limit * self.settings.low
        if self._would_use(size_bytes) <= limit * self.settings.high:
            surplus = 0
        shortage = self._shortage(size_bytes)
        if (surplus or shortage > 0) and not self._is_ending:
            self.eviction.free(int(max(surplus, shortage)))
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
            file = self.new_file(FileKind.FLAT, flat.content, flat.size_bytes)
            self.flats[flat.content] = file
        if file.state is not FileState.OPEN:
            return None
        file.lengthen(flat.size_bytes)
        return file

    def _slab_for(self, size_bytes: int) -> CacheFile:
        slab = self._slab
        if slab is not None and slab.is_alive and slab.is_trusted(self.boot):
            if slab.reserved_bytes + size_bytes <= self.settings.slab_size_bytes:
                slab.lengthen(self.settings.slab_size_bytes)  # of an earlier proxy
                return slab
            slab.state = FileState.COMPLETE
        self._slab = self.new_file(FileKind.SLAB, _NO_CONTENT, 0)
        self._slab.lengthen(max(self.settings.slab_size_bytes, size_bytes))
        return self._slab

    def _failed(self, error: Exception) -> None:
        self.counts.add(Counter.NO_SPACE)
        log.warning("chunks are served without being cached: %s", error)
        if isinstance(error, NoSpace) or getattr(error, "errno", None) in FULL:
            surplus = self.used_bytes * (self.settings.high - self.settings.low)
            self.eviction.free(max(int(surplus), 1))
