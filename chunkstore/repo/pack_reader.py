"""Reads what packs hold: chunks, trees, files. Everything is verified before it is handed out."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future
from itertools import pairwise
from typing import Generic, TypeVar

from blake3 import blake3

from lodefs.chunkstore.errors import Changed, Corrupt, NotFound, TooLarge, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.pack import (
    TAIL_SIZE_BYTES,
    TRAILER_SIZE_BYTES,
    ChunkPlace,
    PackIndex,
    Trailer,
    unpack,
)
from lodefs.chunkstore.format.tree import SIZE_BYTES_MAX as TREE_SIZE_BYTES_MAX
from lodefs.chunkstore.format.tree import Entry, Kind, Segment, decode_tree, tree_digest
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.types import Buffer

INDEXES_MAX = 256  # about 0.3 MB each where files are small
INDEX_CHUNKS_MAX = 1024 * 1024  # of all of them together; some 60 bytes each
WINDOWS_MAX = 32
WINDOW_SIZE_BYTES = 1024 * 1024  # trees lie together, so a read of one brings its neighbours
RUN_SIZE_BYTES_MAX = 8 * 1024 * 1024

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Loads(Generic[K, V]):
    """A bounded map of what was loaded last; many threads that want one key load it once.

    Bounded are the number of entries and, with ``weigh``, the sum of what it says of them.
    """

    def __init__(
        self, entries_max: int, *, weigh: Callable[[V], int] = lambda _: 0, weight_max: int = 0
    ) -> None:
        self._entries_max = entries_max
        self._weigh = weigh
        self._weight_max = weight_max
        self._lock = threading.Lock()  # guards the maps; never held while something loads
        self._futures: OrderedDict[K, Future[V]] = OrderedDict()
        self._weights: dict[K, int] = {}  # of those that have come

    def get(self, key: K, load: Callable[[], V]) -> V:
        """The value of a key, from ``load`` where it is not known; its errors are not kept."""
        with self._lock:
            future = self._futures.get(key)
            mine = future is None
            if future is None:
                future = self._futures[key] = Future()
                if len(self._futures) > self._entries_max:
                    self._drop(next(iter(self._futures)))
            else:
                self._futures.move_to_end(key)
        if mine:
            try:
                value = load()
                future.set_result(value)
                self._keep(key, future, self._weigh(value))
            except BaseException as error:
                self.forget(key)
                future.set_exception(error)
                raise
        return future.result()

    def forget(self, key: K) -> None:
        """The next get loads again."""
        with self._lock:
            self._drop(key)

    def _keep(self, key: K, future: Future[V], weight: int) -> None:
        with self._lock:
            if self._futures.get(key) is not future:
                return  # dropped or forgotten meanwhile
            self._weights[key] = weight
            while sum(self._weights.values()) > self._weight_max and len(self._weights) > 1:
                self._drop(next(iter(self._futures)))

    def _drop(self, key: K) -> None:
        self._futures.pop(key, None)
        self._weights.pop(key, None)


class PackReader:
    """Chunks, trees and files out of the packs of one store. Safe for many threads.

    Keeps the indexes of the last ``indexes_max`` packs, fewer of large ones, and ``windows_max``
    MiB of tree packs.
    """

    def __init__(
        self,
        objects: ObjectStore,
        indexes_max: int = INDEXES_MAX,
        windows_max: int = WINDOWS_MAX,
    ) -> None:
        self._objects = objects
        self._indexes: Loads[PackId, tuple[PackIndex, str]] = Loads(
            indexes_max, weigh=lambda found: len(found[0]), weight_max=INDEX_CHUNKS_MAX
        )
        self._windows: Loads[tuple[PackId, str, int], Buffer] = Loads(windows_max)

    def index(self, pack_id: PackId) -> PackIndex:
        """What is in a pack. NotFound, Corrupt, UnknownFormat."""
        return self._index(pack_id)[0]

    def read(self, pack_id: PackId, first: int, count: int) -> list[Buffer]:
        """The raw bytes of consecutive chunks, by one ranged GET: bound ``count`` accordingly.

        Corrupt where the bytes do not match the chunks' ids, also when they are read again.
        """
        return self._twice(pack_id, lambda: self._read(pack_id, first, count))

    def read_tree(self, entry: Entry) -> list[Entry]:
        """The entries of a directory, by name. Corrupt where they are not what its digest says."""
        check_tree(entry)
        runs = (run for segment in entry.segments for run in self.runs(segment))
        return tree_of(entry, (chunk for run in runs for chunk in self._tree_chunks(run)))

    def read_file(self, entry: Entry) -> Iterator[Buffer]:
        """The bytes of a file, chunk after chunk, at most 8 MiB of them read ahead.

        Corrupt; what was handed out until then is right, but the file may not be whole.
        """
        if entry.kind is not Kind.FILE:
            raise Corrupt(f"{entry.name!r} is not a file")
        hasher = blake3()
        left = entry.size_bytes
        for segment in entry.segments:
            for run in self.runs(segment):
                for chunk in self.read(run.pack, run.first, run.count):
                    left -= len(chunk)
                    hasher.update(chunk)
                    yield chunk
        if left or hasher.digest() != entry.digest:
            raise Corrupt(f"file {entry.name!r} does not match its size and digest")

    def runs(self, segment: Segment, size_bytes_max: int = RUN_SIZE_BYTES_MAX) -> list[Segment]:
        """A segment in parts of at most ``size_bytes_max`` raw bytes, or one chunk. Corrupt."""
        index = self.index(segment.pack)
        index.check_run(*segment[1:])
        raw, end = index.raw_offsets, segment.first + segment.count
        cuts = [segment.first]
        while cuts[-1] < end:
            cut = bisect_right(raw, raw[cuts[-1]] + size_bytes_max, cuts[-1], end + 1) - 1
            cuts.append(max(cut, cuts[-1] + 1))
        return [Segment(segment.pack, a, b - a, raw[b] - raw[a]) for a, b in pairwise(cuts)]

    def walk(self, entry: Entry, path: bytes = b"") -> Iterator[tuple[bytes, Entry]]:
        """All that lies below a directory at ``path``, with its paths: by name, a directory
        before what it holds. As deep as it may be."""
        stack = [self._children(path, entry)]
        while stack:
            found = next(stack[-1], None)
            if found is None:
                stack.pop()
                continue
            yield found
            if found[1].kind is Kind.DIRECTORY:
                stack.append(self._children(*found))

    def _children(self, path: bytes, entry: Entry) -> Iterator[tuple[bytes, Entry]]:
        head = path + b"/" if path else b""
        return ((head + child.name, child) for child in self.read_tree(entry))

    def _index(self, pack_id: PackId) -> tuple[PackIndex, str]:
        return self._indexes.get(pack_id, lambda: self._load_index(pack_id))

    def _load_index(self, pack_id: PackId) -> tuple[PackIndex, str]:
        try:
            return read_index(self._objects, pack_id)
        except NotFound as error:
            raise NotFound(f"pack {pack_id.hex()} is missing: {error}") from error

    def _twice(self, pack_id: PackId, read: Callable[[], list[Buffer]]) -> list[Buffer]:
        """Reads again, from the index on, where the pack was rewritten or bytes were wrong."""
        try:
            return read()
        except (Changed, Corrupt):
            self._indexes.forget(pack_id)
            return read()

    def _read(self, pack_id: PackId, first: int, count: int) -> list[Buffer]:
        index, etag = self._index(pack_id)
        places = index.places(first, count)
        if not places:
            return []
        offset = places[0].offset
        size_bytes = places[-1].offset + places[-1].stored_size_bytes - offset
        data = self._get(index, etag, offset, size_bytes)
        return _unpack_all(index, first, places, data, offset)

    def _tree_chunks(self, segment: Segment) -> list[Buffer]:
        return self._twice(segment.pack, lambda: self._read_windows(segment))

    def _read_windows(self, segment: Segment) -> list[Buffer]:
        """Chunks of a segment through the cache of windows: chunks that begin in one MiB. Those
        that are larger than a window are read alone, and not kept."""
        index, etag = self._index(segment.pack)
        index.check_run(*segment[1:])
        chunks: list[Buffer] = []
        places = index.places(segment.first, segment.count)
        for n, place in enumerate(places, segment.first):
            if place.stored_size_bytes > WINDOW_SIZE_BYTES:
                chunks += self._read(segment.pack, n, 1)
                continue
            window = place.offset // WINDOW_SIZE_BYTES
            begin, end = _window(index, window)
            key = (segment.pack, etag, window)
            data = self._windows.get(
                key,
                lambda: self._get(index, etag, begin, end - begin),  # noqa: B023
            )
            try:
                chunks += _unpack_all(index, n, [place], data, begin)
            except Corrupt:
                self._windows.forget(key)
                raise
        return chunks

    def _get(self, index: PackIndex, etag: str, offset: int, size_bytes: int) -> Buffer:
        key = keys.pack(index.pack_id)
        part = self._objects.get(key, offset=offset, size=size_bytes, if_match=etag)
        if len(part.data) != size_bytes:
            raise Corrupt(f"{key} is cut off: {size_bytes} bytes at {offset} are not there")
        return part.data


def read_index(objects: ObjectStore, pack_id: PackId) -> tuple[PackIndex, str]:
    """A pack's index and the object's ETag: one read, or two where the index is over 64 KiB.

    NotFound, Corrupt, UnknownFormat; Changed where the object was written again in between.
    """
    key = keys.pack(pack_id)
    part = objects.get(key, offset=-TAIL_SIZE_BYTES, size=TAIL_SIZE_BYTES)
    trailer = Trailer.decode(pack_id, part.data)
    size_bytes = trailer.index_size_bytes + TRAILER_SIZE_BYTES
    if trailer.index_offset + size_bytes != part.object_size_bytes:
        raise Corrupt(f"{key} has {part.object_size_bytes} bytes, which is not what it says")
    if size_bytes > len(part.data):
        part = objects.get(key, offset=trailer.index_offset, size=size_bytes, if_match=part.etag)
    return PackIndex.decode(pack_id, part.data), part.etag


def check_tree(entry: Entry) -> None:
    """Corrupt, TooLarge where an entry is no directory whose tree can be read."""
    what = f"directory {entry.name!r}"
    if entry.kind is not Kind.DIRECTORY or not entry.segments:
        raise Corrupt(f"{what} has no tree")
    if entry.size_bytes > TREE_SIZE_BYTES_MAX:
        raise TooLarge(
            f"{what} claims a tree of {entry.size_bytes} bytes, and none has more than "
            f"{TREE_SIZE_BYTES_MAX}"
        )
    if sum(segment.size_bytes for segment in entry.segments) != entry.size_bytes:
        raise Corrupt(f"{what} has a tree of another size than {entry.size_bytes} bytes")


def tree_of(entry: Entry, pieces: Iterable[Buffer]) -> list[Entry]:
    """The entries of a directory, from the bytes of its segments. Corrupt, UnknownFormat."""
    what = f"directory {entry.name!r}"
    data = _joined(pieces)
    packs = {segment.pack for segment in entry.segments}
    try:
        entries = decode_tree(data, packs.pop() if len(packs) == 1 else None)
    except (Corrupt, UnknownFormat) as error:
        where = _where(entry.segments[0])
        raise type(error)(f"{what}, in {where}: {error}") from error
    if tree_digest(entries) != entry.digest:
        raise Corrupt(f"{what}, in {_where(entry.segments[0])}, does not match its digest")
    return entries


def _joined(pieces: Iterable[Buffer]) -> Buffer:
    """The pieces as one, without holding all of them twice; one piece is not copied."""
    rest = iter(pieces)
    first = next(rest, b"")
    second = next(rest, None)
    if second is None:
        return first
    data = bytearray(first)
    data += second
    for piece in rest:
        data += piece
    return data


def _window(index: PackIndex, window: int) -> tuple[int, int]:
    """The stored bytes of the chunks that begin in a window: first and end. The last one is left
    out if it is larger than a window itself."""
    offsets = index.offsets  # the last is the payload's end, where no chunk begins
    low = bisect_right(offsets, window * WINDOW_SIZE_BYTES - 1)
    high = min(bisect_right(offsets, (window + 1) * WINDOW_SIZE_BYTES - 1), len(index))
    if offsets[high] - offsets[high - 1] > WINDOW_SIZE_BYTES:
        high -= 1
    return offsets[low], offsets[high]


def _unpack_all(
    index: PackIndex, first: int, places: list[ChunkPlace], data: Buffer, data_offset: int
) -> list[Buffer]:
    view = memoryview(data)
    chunks: list[Buffer] = []
    for n, place in enumerate(places, first):
        at = place.offset - data_offset
        try:
            chunks.append(unpack(place, view[at : at + place.stored_size_bytes]))
        except Corrupt as error:
            key = keys.pack(index.pack_id)
            raise Corrupt(f"chunk {n} of {key}: {error}") from error
    return chunks


def _where(segment: Segment) -> str:
    last = segment.first + segment.count - 1
    return f"chunks {segment.first} to {last} of {keys.pack(segment.pack)}"
