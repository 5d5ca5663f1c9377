"""Reads what packs hold: chunks, trees, files. Everything is verified before it is handed out."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from itertools import pairwise
from typing import Generic, TypeVar

from blake3 import blake3

from chunkstore import keys
from chunkstore.errors import Changed, Corrupt, NotFound, UnknownFormat
from chunkstore.names import PackId
from chunkstore.objects import Buffer, ObjectStore
from chunkstore.pack import ChunkPlace, PackIndex, read_index, unpack
from chunkstore.tree import Entry, Kind, Segment, decode_tree, tree_digest

INDEXES_MAX = 256  # about 0.3 MB each where files are small
WINDOWS_MAX = 32
WINDOW_SIZE_BYTES = 1024 * 1024  # trees lie together, so a read of one brings its neighbours
RUN_SIZE_BYTES_MAX = 8 * 1024 * 1024
TREE_SIZE_BYTES_MAX = 1024 * 1024 * 1024  # some ten million entries

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Loads(Generic[K, V]):
    """A bounded map of what was loaded last; many threads that want one key load it once."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._lock = threading.Lock()  # guards the map; never held while something loads
        self._futures: OrderedDict[K, Future[V]] = OrderedDict()

    def get(self, key: K, load: Callable[[], V]) -> V:
        """The value of a key, from ``load`` where it is not known; its errors are not kept."""
        with self._lock:
            future = self._futures.get(key)
            mine = future is None
            if future is None:
                future = self._futures[key] = Future()
                if len(self._futures) > self._entries_max:
                    self._futures.popitem(last=False)
            else:
                self._futures.move_to_end(key)
        if mine:
            try:
                future.set_result(load())
            except BaseException as error:
                self.forget(key)
                future.set_exception(error)
                raise
        return future.result()

    def forget(self, key: K) -> None:
        """The next get loads again."""
        with self._lock:
            self._futures.pop(key, None)


class PackReader:
    """Chunks, trees and files out of the packs of one store. Safe for many threads.

    Keeps the indexes of the last ``indexes_max`` packs, and ``windows_max`` MiB of tree packs.
    """

    def __init__(
        self,
        objects: ObjectStore,
        indexes_max: int = INDEXES_MAX,
        windows_max: int = WINDOWS_MAX,
    ) -> None:
        self._objects = objects
        self._indexes: Loads[PackId, tuple[PackIndex, str]] = Loads(indexes_max)
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
        pieces: list[Buffer] = []
        for segment in entry.segments:
            pieces += self._tree_chunks(segment)
        return tree_of(entry, pieces)

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
        """Chunks of a segment through the cache of windows: chunks that begin in one MiB."""
        index, etag = self._index(segment.pack)
        index.check_run(*segment[1:])
        chunks: list[Buffer] = []
        places = index.places(segment.first, segment.count)
        for n, place in enumerate(places, segment.first):
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


def check_tree(entry: Entry) -> None:
    """Corrupt where an entry is no directory whose tree can be read."""
    what = f"directory {entry.name!r}"
    if entry.kind is not Kind.DIRECTORY or not entry.segments:
        raise Corrupt(f"{what} has no tree")
    if entry.size_bytes > TREE_SIZE_BYTES_MAX:
        raise Corrupt(f"{what} claims a tree of {entry.size_bytes} bytes")
    if sum(segment.size_bytes for segment in entry.segments) != entry.size_bytes:
        raise Corrupt(f"{what} has a tree of another size than {entry.size_bytes} bytes")


def tree_of(entry: Entry, pieces: Sequence[Buffer]) -> list[Entry]:
    """The entries of a directory, from the bytes of its segments. Corrupt, UnknownFormat."""
    what = f"directory {entry.name!r}"
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    packs = {segment.pack for segment in entry.segments}
    try:
        entries = decode_tree(data, packs.pop() if len(packs) == 1 else None)
    except (Corrupt, UnknownFormat) as error:
        where = _where(entry.segments[0])
        raise type(error)(f"{what}, in {where}: {error}") from error
    if tree_digest(entries) != entry.digest:
        raise Corrupt(f"{what}, in {_where(entry.segments[0])}, does not match its digest")
    return entries


def _window(index: PackIndex, window: int) -> tuple[int, int]:
    """The stored bytes of the chunks that begin in a window: first and end."""
    offsets = index.offsets  # the last is the payload's end, where no chunk begins
    low = bisect_right(offsets, window * WINDOW_SIZE_BYTES - 1)
    high = bisect_right(offsets, (window + 1) * WINDOW_SIZE_BYTES - 1)
    return offsets[low], offsets[min(high, len(index))]


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
