"""Chunks become packs, and packs go to the store while the next ones are filled.

One Packer numbers its chunks in the order in which they come (serials), across all its packs: a run
of serials is a compact reference to chunks whose pack has no id yet.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Container, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import NoReturn

from lodefs.chunkstore.errors import AlreadyExists
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.compression import RAW
from lodefs.chunkstore.format.names import ID_BYTES, PackId, digest_of
from lodefs.chunkstore.format.pack import PACK_CHUNKS_MAX, PackIndex
from lodefs.chunkstore.format.tree import SAME_PACK, Segment
from lodefs.chunkstore.format.virtual_pack import (
    OBJECTS_MAX,
    OWN,
    PlacedRun,
    SourceObject,
    VirtualPack,
)
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.push.fragmentation import Run
from lodefs.chunkstore.push.in_place import PlacedChunk
from lodefs.chunkstore.push.index.push_index import PushIndex
from lodefs.chunkstore.push.pack_check import PacksCollected, Relies, all_in_place, gone_chunks
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.types import Buffer

# The first packs are small, so that uploads begin early
DATA_PACK_SIZES_BYTES = (8 << 20, 16 << 20, 32 << 20)
TREE_PACK_SIZES_BYTES = (32 << 20,)
FRESH = 1 << 63  # places from here on are serials of new chunks
UPLOADS_MAX = 3  # packs under way; one more is being filled
SALT_BYTES = 16
_BODY_SIZE_BYTES = max(DATA_PACK_SIZES_BYTES + TREE_PACK_SIZES_BYTES) + SALT_BYTES


@dataclass(frozen=True, slots=True)
class _Upload:
    future: Future[int | None]
    body: memoryview
    confirmed: Callable[[], None]


class Uploader:
    """Puts packs into the store, ``uploads_max`` at once, and reuses their memory.

    It calls ``prepare`` before the first pack. It puts packs in ``lost`` even if objects with their
    names exist. ``dead`` are ids that no pack may have. After an error it puts nothing more, and
    every call raises that error.
    """

    is_dry = False

    def __init__(
        self,
        objects: ObjectStore,
        progress: Progress,
        prepare: Callable[[], None],
        uploads_max: int = UPLOADS_MAX,
        lost: Collection[PackId] = (),
        dead: Container[PackId] = (),
        relies: Relies = all_in_place,
    ) -> None:
        self._objects = objects
        self._prepare = prepare
        self._progress = progress
        self._uploads_max = uploads_max
        self._lost = lost
        self._relies = relies
        self.dead = dead
        # Made late: worker processes are forked first
        self._executor: ThreadPoolExecutor | None = None
        self._under_way: deque[_Upload] = deque()
        self._bodies: list[memoryview] = []  # free buffers
        self._stopped = Event()
        self.puts = 0  # calls of ``put``
        self.stored_bytes = 0  # of all packs that were written

    def body(self) -> memoryview:
        """Returns page-aligned memory for a pack of the largest size. ``put`` takes it back."""
        if self._bodies:
            return self._bodies.pop()
        memory = mmap.mmap(-1, _BODY_SIZE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memoryview(memory)

    def put(
        self,
        pack_id: PackId,
        body: memoryview,
        buffers: Sequence[Buffer],
        confirmed: Callable[[], None],
    ) -> None:
        """Starts to put a pack. It waits while too many are under way. A later call runs
        ``confirmed`` in the caller's thread, in the order of the puts."""
        while len(self._under_way) >= self._uploads_max:
            self._confirm()
        self.poll()
        if self._executor is None:
            self._prepare()
            self._executor = ThreadPoolExecutor(self._uploads_max, "lodefs-upload")
        future = self._executor.submit(self._put, pack_id, buffers)
        self.puts += 1
        self._under_way.append(_Upload(future, body, confirmed))

    def poll(self) -> None:
        """Confirms finished packs. Raises the error of one that failed."""
        if self._stopped.is_set():
            self._raise_failure()
        while self._under_way and self._under_way[0].future.done():
            self._confirm()

    def finish(self, puts: int | None = None) -> None:
        """Waits until the packs of the first ``puts`` calls are in the store; by default all."""
        left = 0 if puts is None else self.puts - puts
        while len(self._under_way) > left:
            self._confirm()

    def stop(self) -> None:
        """Stops putting, waits for what is under way, and confirms finished packs, so that the next
        push need not send them again."""
        self._stopped.set()
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
        while self._under_way:
            upload = self._under_way.popleft()
            failed = upload.future.cancelled() or upload.future.exception() is not None
            if failed or upload.future.result() is None:
                self._under_way.clear()
            else:
                upload.confirmed()

    def close(self) -> None:
        """Stops putting and waits for what is under way. May be called twice."""
        self._under_way.clear()
        self.stop()

    def _put(self, pack_id: PackId, buffers: Sequence[Buffer]) -> int | None:
        """Returns the bytes that were written, or None if nothing was."""
        if self._stopped.is_set():
            return None
        try:
            if not self._put_if_absent(pack_id, buffers):
                # The name of a pack proves which chunks it lists, but not that it has their bytes
                gone = gone_chunks(self._objects, pack_id, self._relies)
                if gone is not None and pack_id not in self._lost:
                    if gone:
                        what = f"chunks of {keys.pack(pack_id)} were dropped by compaction"
                        raise PacksCollected(what, set(), {pack_id: gone})
                    return 0
                self._objects.put(keys.pack(pack_id), buffers)
        except BaseException:
            self._stopped.set()
            raise
        return sum(len(buffer) for buffer in buffers)

    def _put_if_absent(self, pack_id: PackId, buffers: Sequence[Buffer]) -> bool:
        """Puts a pack. Returns whether it was absent."""
        try:
            self._objects.put(keys.pack(pack_id), buffers, if_absent=True)
        except AlreadyExists:
            return False
        return True

    def _confirm(self) -> None:
        upload = self._under_way[0]
        size_bytes = upload.future.result()
        if self._stopped.is_set() or size_bytes is None:
            self._raise_failure()
        self._under_way.popleft()
        self._keep(upload.body)
        self.stored_bytes += size_bytes
        self._progress.bytes_sent += size_bytes
        upload.confirmed()

    def _keep(self, body: memoryview) -> None:
        """Keeps a pack's memory for another one; a pack whose chunks lie elsewhere has none."""
        if body:
            self._bodies.append(body)

    def _raise_failure(self) -> NoReturn:
        for upload in self._under_way:
            upload.future.result()
        raise RuntimeError("the uploader is closed")


class DryUploader(Uploader):
    """Counts what would be put, and puts nothing. No pack is ever confirmed."""

    is_dry = True

    def put(
        self,
        pack_id: PackId,  # noqa: ARG002
        body: memoryview,
        buffers: Sequence[Buffer],
        confirmed: Callable[[], None],  # noqa: ARG002
    ) -> None:
        self.stored_bytes += sum(len(buffer) for buffer in buffers)
        self._keep(body)


class _OpenPack:
    """A pack that is being filled: its bytes, and the columns of its index."""

    __slots__ = (
        "_next",
        "body",
        "codecs",
        "ids",
        "objects",
        "raw_sizes",
        "runs",
        "size_bytes",
        "stored_sizes",
        "used",
    )

    def __init__(self) -> None:
        self.body = memoryview(b"")  # the uploader's memory, from the first chunk in it on
        self.used = 0  # bytes in it
        self.size_bytes = 0  # of all chunks, also of those that lie in objects of a source
        self.objects: dict[SourceObject, int] = {}  # these, numbered
        self.runs: list[PlacedRun] = []
        self._next = OWN, 0  # where the last run goes on: an object's number, and the offset
        self.ids: list[bytes] = []
        self.codecs = bytearray()
        self.stored_sizes = array("I")
        self.raw_sizes = array("I")

    def index(self) -> PackIndex:
        """Returns the index of its chunks."""
        ids, codecs = b"".join(self.ids), bytes(self.codecs)
        return PackIndex(ids, self.raw_sizes, self.stored_sizes, codecs)

    def tail(self, index: PackIndex) -> bytes:
        """Returns what follows the chunks' bytes in the pack's object."""
        if not self.objects:
            return index.encode()
        return VirtualPack(index, tuple(self.objects), self.runs).encode_tail()

    def add(self, chunk_id: bytes, codec: int, stored: Buffer, raw_size_bytes: int) -> None:
        """Adds a chunk and its bytes; ``body`` has room for them."""
        end = self.used + len(stored)
        self.body[self.used : end] = stored
        self.used = end
        self._next = OWN, 0
        self._note(chunk_id, codec, len(stored), raw_size_bytes)

    def add_placed(self, chunk_id: bytes, size_bytes: int, place: PlacedChunk) -> None:
        """Adds a chunk that lies in an object."""
        number = self.objects.setdefault(place.object, len(self.objects))
        if self._next == (number, place.offset):
            self.runs[-1] = self.runs[-1]._replace(chunks=self.runs[-1].chunks + 1)
        else:
            self.runs.append(PlacedRun(len(self.ids), 1, number, place.offset))
        self._next = number, place.offset + size_bytes
        self._note(chunk_id, RAW, size_bytes, size_bytes)

    def add_salt(self) -> None:
        """Changes the pack's id by adding a chunk that no tree names."""
        salt = os.urandom(SALT_BYTES)
        self.add(digest_of(salt), RAW, salt, SALT_BYTES)

    def _note(self, chunk_id: bytes, codec: int, stored_bytes: int, raw_size_bytes: int) -> None:
        self.size_bytes += stored_bytes
        self.ids.append(chunk_id)
        self.codecs.append(codec)
        self.stored_sizes.append(stored_bytes)
        self.raw_sizes.append(raw_size_bytes)


class PackWriter:
    """Fills packs of one kind (data or trees). For one thread.

    It calls ``confirmed`` with every pack that is in the store.
    """

    def __init__(
        self,
        uploader: Uploader,
        confirmed: Callable[[PackIndex], None],
        sizes_bytes: Sequence[int] = DATA_PACK_SIZES_BYTES,
    ) -> None:
        self._uploader = uploader
        self._confirmed = confirmed
        self._sizes_bytes = sizes_bytes
        self._starts: list[int] = [0]  # the first serial of each pack, including the open one
        self._pack_ids: list[PackId] = []  # of the sealed packs
        # Sizes of all chunks, for the segments of files that end late: 64 MiB for a TiB of new
        # bytes
        self._raw_sizes = array("I")
        self._limit = sizes_bytes[0]
        self._open = _OpenPack()
        self.serial = 0  # the next chunk's
        self.uploaded = 0  # chunks below this serial are in the store

    @property
    def sealed(self) -> int:
        """Chunks below this serial are in packs with an id."""
        return self._starts[-1]

    def has_room(self, size_bytes: int, chunks: int) -> bool:
        """Whether ``chunks`` chunks of ``size_bytes`` together fit into the open pack."""
        pack = self._open
        has_bytes = pack.size_bytes + size_bytes <= self._limit
        return has_bytes and len(pack.ids) + chunks <= PACK_CHUNKS_MAX

    def add(self, chunk_id: bytes, codec: int, stored: Buffer, raw_size_bytes: int) -> int:
        """Copies a chunk's stored bytes into the open pack. Returns its serial."""
        pack = self._with_room(len(stored))
        if not pack.body:
            pack.body = self._uploader.body()
        pack.add(chunk_id, codec, stored, raw_size_bytes)
        return self._added(raw_size_bytes)

    def add_placed(self, chunk_id: bytes, size_bytes: int, place: PlacedChunk) -> int:
        """Adds a chunk that stays in an object to the open pack. Returns its serial."""
        pack = self._with_room(size_bytes)
        if len(pack.objects) >= OBJECTS_MAX and place.object not in pack.objects:
            self.seal()
            pack = self._open
        pack.add_placed(chunk_id, size_bytes, place)
        return self._added(size_bytes)

    def _with_room(self, size_bytes: int) -> _OpenPack:
        """Returns the open pack, or a new one if it is full."""
        pack = self._open
        is_full = pack.size_bytes + size_bytes > self._limit or len(pack.ids) >= PACK_CHUNKS_MAX
        if pack.ids and is_full:
            self.seal()
        return self._open

    def _added(self, raw_size_bytes: int) -> int:
        """Counts a chunk. Returns its serial."""
        self._raw_sizes.append(raw_size_bytes)
        serial = self.serial
        self.serial = serial + 1
        return serial

    def seal(self) -> None:
        """Gives the open pack its id and starts to put it. Does nothing if it is empty."""
        pack, serial = self._open, self.serial
        if not pack.ids:
            return
        index = pack.index()
        if index.pack_id in self._uploader.dead:
            pack.body = pack.body or self._uploader.body()
            pack.add_salt()
            index = pack.index()
        self._pack_ids.append(index.pack_id)
        self._starts.append(serial)
        self._limit = self._sizes_bytes[min(len(self._pack_ids), len(self._sizes_bytes) - 1)]
        self._open = _OpenPack()

        def confirmed() -> None:
            self.uploaded = serial
            self._confirmed(index)

        buffers: list[Buffer] = [pack.body[: pack.used], pack.tail(index)]
        self._uploader.put(index.pack_id, pack.body, buffers, confirmed)

    def segments(self, serial: int, chunks: int) -> list[Segment]:
        """Returns the segments of chunks. SAME_PACK stands for the open pack."""
        found: list[Segment] = []
        end = serial + chunks
        number = bisect_right(self._starts, serial) - 1
        while serial < end:
            start = self._starts[number]
            is_open = number == len(self._pack_ids)
            stop = end if is_open else min(end, self._starts[number + 1])
            pack_id = SAME_PACK if is_open else self._pack_ids[number]
            sizes = self._raw_sizes
            size_bytes = sizes[serial] if stop - serial == 1 else sum(sizes[serial:stop])
            found.append(Segment(pack_id, serial - start, stop - serial, size_bytes))
            serial = stop
            number += 1
        return found


class Placement:
    """The places of chunks: those of the push index, and new ones by their serial. For one thread.

    ``fresh`` holds the places of new chunks, by id, until the index has them. The number of packs
    and units under way bounds it.
    """

    def __init__(
        self,
        index: PushIndex,
        uploader: Uploader,
        sizes_bytes: Sequence[int] = DATA_PACK_SIZES_BYTES,
    ) -> None:
        self.index = index
        self.packer = PackWriter(uploader, self._confirmed, sizes_bytes)
        self.fresh: dict[bytes, int] = {}

    @property
    def sealed(self) -> int:
        """New chunks below this serial are in packs with an id."""
        return self.packer.sealed

    @property
    def uploaded(self) -> int:
        """New chunks below this serial are in the store."""
        return self.packer.uploaded

    def segments(self, run: Run) -> list[Segment]:
        """Returns the segments of a run of places. SAME_PACK stands for the open pack."""
        if run.place >= FRESH:
            return self.packer.segments(run.place - FRESH, run.chunks)
        return [self.index.segment(run)]

    def _confirmed(self, pack: PackIndex) -> None:
        """Takes a pack that is in the store: from now on the index has its chunks."""
        self.index.add_packs([pack])
        fresh = self.fresh
        if not fresh:
            return
        below, ids = FRESH + self.packer.uploaded, pack.ids
        for at in range(0, len(ids), ID_BYTES):
            chunk_id = ids[at : at + ID_BYTES]
            if fresh.get(chunk_id, below) < below:
                del fresh[chunk_id]
