"""Reads chunks, trees and files from packs. Everything is verified before it is returned."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from blake3 import blake3

from lodefs.chunkstore.errors import (
    UNREADABLE,
    Changed,
    Corrupt,
    NotFound,
    SourceLost,
    TooLarge,
    UnknownFormat,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.pack import (
    TAIL_SIZE_BYTES,
    TRAILER_SIZE_BYTES,
    PackIndex,
    Trailer,
    WrongChunk,
    unpack_chunks,
)
from lodefs.chunkstore.format.tree import SIZE_BYTES_MAX as TREE_SIZE_BYTES_MAX
from lodefs.chunkstore.format.tree import Kind, Segment, TreeEntry, decode_tree, tree_digest
from lodefs.chunkstore.format.virtual_pack import VirtualPack
from lodefs.chunkstore.objects.in_place.virtual_packs import is_virtual_etag, virtual_pack_of
from lodefs.chunkstore.objects.interface import ObjectStore, Part
from lodefs.chunkstore.objects.mirrored import report_corruption
from lodefs.chunkstore.repo.tree_outline import Outline, outline
from lodefs.chunkstore.system.lru import SingleFlightCache
from lodefs.chunkstore.types import Buffer

INDEXES_MAX = 256  # about 0.3 MB each for small files
INDEX_CHUNKS_MAX = 1024 * 1024  # over all of them; about 60 bytes each
WINDOWS_MAX = 32
WINDOW_SIZE_BYTES = 1024 * 1024  # trees lie together, so reading one also reads its neighbours
RUN_SIZE_BYTES_MAX = 8 * 1024 * 1024
WHOLE_SIZE_BYTES = 48 * 1024 * 1024  # limit for reading a pack with one GET
PAYLOAD_SIZE_BYTES_MAX = 512 * 1024 * 1024  # held in memory; writers make packs of 32 MiB
_REPAIR = "`lodefs repair`"
_WAY_OUT = f"; {_REPAIR} lists all damage, and repairs it from a source that has the bytes"


@dataclass(frozen=True, slots=True)
class PackIndexVersion:
    """A pack's index, and the ETag of its object."""

    index: PackIndex
    etag: str


class LostPack(Corrupt):
    """The store lacks a pack that a commit or an index shard names."""


class PackReader:
    """Reads chunks, trees and files from the packs of one store. Safe for many threads.

    It caches the indexes of the last ``indexes_max`` packs (fewer of large packs) and
    ``windows_max`` MiB of tree packs.
    """

    def __init__(
        self,
        objects: ObjectStore,
        indexes_max: int = INDEXES_MAX,
        windows_max: int = WINDOWS_MAX,
    ) -> None:
        self._objects = objects
        self._indexes: SingleFlightCache[PackId, PackIndexVersion] = SingleFlightCache(
            indexes_max, weigh=lambda found: len(found.index), weight_max=INDEX_CHUNKS_MAX
        )
        self._windows: SingleFlightCache[tuple[PackId, str, int], Buffer] = SingleFlightCache(
            windows_max
        )

    def index(self, pack_id: PackId) -> PackIndex:
        """Returns the index of a pack. Raises: LostPack, Corrupt, UnknownFormat."""
        return self._version(pack_id).index

    def virtual(self, pack_id: PackId) -> VirtualPack | None:
        """Returns the virtual pack with an id; None if it is an ordinary one."""
        try:
            return virtual_pack_of(self._objects, pack_id, self._version(pack_id).etag)
        except Changed:  # for example, adopted
            self._indexes.forget(pack_id)
        return virtual_pack_of(self._objects, pack_id, self._version(pack_id).etag)

    def read(self, pack_id: PackId, first: int, count: int) -> list[Buffer]:
        """Returns the raw bytes of consecutive chunks. It reads them with one GET, so bound
        ``count``.

        Raises: Corrupt if the bytes do not match the chunks' ids even when they are read again;
        LostPack; Purged.
        """
        return self._with_retry(pack_id, lambda: self._read(pack_id, first, count))

    def read_span(self, pack_id: PackId, first: int, count: int) -> list[Buffer]:
        """Does what ``read`` does, but returns b"" for a chunk that is gone."""
        return self._with_retry(pack_id, lambda: self._read_span(pack_id, first, count))

    def read_tree(self, entry: TreeEntry) -> list[TreeEntry]:
        """Returns the entries of a directory, by name. Raises: Corrupt if they do not match its
        digest."""
        check_tree(entry)
        return tree_of(entry, self._stored_form(entry))

    def outline(self, entry: TreeEntry) -> Outline:
        """Returns which packs and directories a directory names, at a fraction of the cost of
        ``read_tree``. It verifies the chunks, but not the digest. Raises: Corrupt,
        UnknownFormat."""
        check_tree(entry)
        packs = {segment.pack for segment in entry.segments}
        own_pack = next(iter(packs)) if len(packs) == 1 else None
        found = outline(_joined(self._stored_form(entry)), own_pack)
        return Outline(found.packs | packs, found.directories)

    def read_file(self, entry: TreeEntry) -> Iterator[Buffer]:
        """Yields the bytes of a file, chunk after chunk. It reads at most 8 MiB ahead.

        Raises: Corrupt. The bytes yielded before are right, but the file may be incomplete.
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

    def read_range(self, entry: TreeEntry, first: int, end: int) -> bytes:
        """Returns the bytes [first, end) of a file, fewer only at its end. It verifies chunks, but
        not the file's digest. Raises: Corrupt."""
        parts: list[Buffer] = []
        at = 0
        for segment in entry.segments:
            if at < end and at + segment.size_bytes > first:
                run_at = at
                for run in self.runs(segment):
                    if run_at < end and run_at + run.size_bytes > first:
                        data = b"".join(self.read(run.pack, run.first, run.count))
                        parts.append(data[max(0, first - run_at) : end - run_at])
                    run_at += run.size_bytes
            at += segment.size_bytes
        return b"".join(parts)

    def runs(self, segment: Segment, size_bytes_max: int = RUN_SIZE_BYTES_MAX) -> list[Segment]:
        """Splits a segment into parts of at most ``size_bytes_max`` raw bytes, or one chunk.
        Raises: Corrupt."""
        index = self.index(segment.pack)
        index.check_run(*segment[1:])
        raw, end = index.raw_offsets, segment.first + segment.count
        cuts = [segment.first]
        while cuts[-1] < end:
            cut = bisect_right(raw, raw[cuts[-1]] + size_bytes_max, cuts[-1], end + 1) - 1
            cuts.append(max(cut, cuts[-1] + 1))
        return [Segment(segment.pack, a, b - a, raw[b] - raw[a]) for a, b in pairwise(cuts)]

    def walk(self, entry: TreeEntry, path: bytes = b"") -> Iterator[tuple[bytes, TreeEntry]]:
        """Yields all entries below a directory at ``path``, with their paths, by name. A directory
        comes before its contents. They may lie at any depth."""
        stack = [self._children(path, entry)]
        while stack:
            found = next(stack[-1], None)
            if found is None:
                stack.pop()
                continue
            yield found
            if found[1].kind is Kind.DIRECTORY:
                stack.append(self._children(*found))

    def _stored_form(self, entry: TreeEntry) -> Iterator[Buffer]:
        runs = (run for segment in entry.segments for run in self.runs(segment))
        return (chunk for run in runs for chunk in self._tree_chunks(run))

    def _children(self, path: bytes, entry: TreeEntry) -> Iterator[tuple[bytes, TreeEntry]]:
        head = path + b"/" if path else b""
        return ((head + child.name, child) for child in self.read_tree(entry))

    def _version(self, pack_id: PackId) -> PackIndexVersion:
        return self._indexes.get(pack_id, lambda: self._load_index(pack_id))

    def _load_index(self, pack_id: PackId) -> PackIndexVersion:
        try:
            return read_index(self._objects, pack_id)
        except NotFound as error:
            raise _lost(pack_id, error) from error
        except Corrupt:
            if not report_corruption(self._objects, keys.pack(pack_id)):
                raise
        return read_index(self._objects, pack_id)

    def _with_retry(self, pack_id: PackId, read: Callable[[], list[Buffer]]) -> list[Buffer]:
        """Reads again, beginning with the index, if the pack was rewritten or its bytes were
        wrong."""
        try:
            return self._read_twice(pack_id, read)
        except Changed:  # for example, a compaction and then a purge
            self._indexes.forget(pack_id)
            return read()
        except NotFound as error:  # deleted since its index was read
            self._indexes.forget(pack_id)
            raise _lost(pack_id, error) from error

    def _read_twice(self, pack_id: PackId, read: Callable[[], list[Buffer]]) -> list[Buffer]:
        try:
            return read()
        except (LostPack, SourceLost):
            raise
        except (Changed, Corrupt):
            self._indexes.forget(pack_id)
        return read()

    def _read(self, pack_id: PackId, first: int, count: int) -> list[Buffer]:
        version = self._version(pack_id)
        version.index.check_there(first, count)
        return self._unpacked(version, first, count)

    def _read_span(self, pack_id: PackId, first: int, count: int) -> list[Buffer]:
        return self._unpacked(self._version(pack_id), first, count)

    def _unpacked(self, version: PackIndexVersion, first: int, count: int) -> list[Buffer]:
        version.index.places(first, count)
        if not count:
            return []
        stored = read_stored(self._objects, version, first, count)
        try:
            return unpack_chunks(version.index, first, count, stored)
        except WrongChunk:
            report_corruption(self._objects, keys.pack(version.index.pack_id), version.etag)
            raise

    def _tree_chunks(self, segment: Segment) -> list[Buffer]:
        return self._with_retry(segment.pack, lambda: self._read_windows(segment))

    def _read_windows(self, segment: Segment) -> list[Buffer]:
        """Reads the chunks of a segment through the cache of windows: a window has the chunks that
        begin in one MiB. Chunks larger than a window are read alone and not cached."""
        version = self._version(segment.pack)
        index, etag = version.index, version.etag
        index.check_run(*segment[1:])
        index.check_there(segment.first, segment.count)
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
                lambda: _read_range(self._objects, version, begin, end - begin),  # noqa: B023
            )
            try:
                chunks += unpack_chunks(index, n, 1, data, begin)
            except Corrupt:
                self._windows.forget(key)
                report_corruption(self._objects, keys.pack(segment.pack), etag)
                raise
        return chunks


def damaged(what: object, error: Corrupt) -> Corrupt:
    """Returns the error for a user who wanted to read ``what`` (a file, a version): it has the
    name, the damage, and the way out."""
    if isinstance(error, SourceLost):  # it names another way out
        return SourceLost(f"{what}: {error}")
    way_out = "" if _REPAIR in str(error) else _WAY_OUT
    return Corrupt(f"{what}: {error}{way_out}")


def _lost(pack_id: PackId, error: NotFound) -> LostPack:
    return LostPack(f"pack {pack_id.hex()} is missing: {error}{_WAY_OUT}")


def read_index(objects: ObjectStore, pack_id: PackId) -> PackIndexVersion:
    """Reads a pack's index with one GET, or two if the index is over 64 KiB. It reads once more if
    the object was rewritten in between.

    Raises: NotFound, Corrupt, UnknownFormat; Changed if it was rewritten again.
    """
    try:
        return _read_index(objects, pack_id)
    except Changed:  # for example, by a compaction
        return _read_index(objects, pack_id)


def index_or_none(objects: ObjectStore, pack_id: PackId) -> PackIndex | None:
    """Returns a pack's index; None if it is lost, damaged, of a newer format, or keeps changing."""
    try:
        return read_index(objects, pack_id).index
    except (*UNREADABLE, Changed):
        return None


def ordinary_index_or_none(objects: ObjectStore, pack_id: PackId) -> PackIndex | None:
    """Does what ``index_or_none`` does; also returns None for a virtual pack, whose bytes mostly
    lie elsewhere."""
    try:
        version = read_index(objects, pack_id)
    except (*UNREADABLE, Changed):
        return None
    return None if is_virtual_etag(version.etag) else version.index


def check_bound(index: PackIndex) -> None:
    """Raises: TooLarge for a pack that must not be held in memory."""
    if index.offsets[-1] > PAYLOAD_SIZE_BYTES_MAX:
        raise TooLarge(
            f"pack {index.pack_id.hex()} has {index.offsets[-1]} bytes; packs of more than "
            f"{PAYLOAD_SIZE_BYTES_MAX} bytes cannot be copied or rewritten"
        )


def read_pack(objects: ObjectStore, pack_id: PackId) -> tuple[PackIndexVersion, Buffer]:
    """Returns a pack's index, and the stored bytes of all its chunks without verifying them. It
    takes one GET for at most WHOLE_SIZE_BYTES.

    Raises: NotFound, Corrupt, UnknownFormat; TooLarge; Changed if it was rewritten meanwhile.
    """
    key = keys.pack(pack_id)
    part = objects.get(key, size=WHOLE_SIZE_BYTES)
    if part.object_size_bytes > len(part.data):
        version = read_index(objects, pack_id)
        check_bound(version.index)
        return version, read_stored(objects, version, 0, len(version.index))
    offset = _index_offset(pack_id, part)[0]
    data = memoryview(part.data)
    index = PackIndex.decode(pack_id, data[offset:])
    return PackIndexVersion(index, part.etag), data[:offset]


def _index_offset(pack_id: PackId, part: Part) -> tuple[int, int]:
    """Returns the offset of a pack's index, and its size with the trailer, from the pack's last
    bytes."""
    trailer = Trailer.decode(pack_id, part.data)
    size_bytes = trailer.index_size_bytes + TRAILER_SIZE_BYTES
    if trailer.index_offset + size_bytes != part.object_size_bytes:
        raise Corrupt(
            f"{keys.pack(pack_id)} has {part.object_size_bytes} bytes, which contradicts its end"
        )
    return trailer.index_offset, size_bytes


def _read_index(objects: ObjectStore, pack_id: PackId) -> PackIndexVersion:
    key = keys.pack(pack_id)
    part = objects.get(key, offset=-TAIL_SIZE_BYTES, size=TAIL_SIZE_BYTES)
    offset, size_bytes = _index_offset(pack_id, part)
    if size_bytes > len(part.data):
        part = objects.get(key, offset=offset, size=size_bytes, if_match=part.etag)
    return PackIndexVersion(PackIndex.decode(pack_id, part.data), part.etag)


def read_stored(objects: ObjectStore, version: PackIndexVersion, first: int, count: int) -> Buffer:
    """Reads the stored bytes of consecutive chunks with one GET, or none if all of them are gone.
    It does not verify them.

    Raises: NotFound, Corrupt; Changed if the object was rewritten since this version.
    """
    index = version.index
    size_bytes = index.stored_size(first, first + count)
    return _read_range(objects, version, index.offsets[first], size_bytes) if size_bytes else b""


def _read_range(
    objects: ObjectStore, version: PackIndexVersion, offset: int, size_bytes: int
) -> Buffer:
    key = keys.pack(version.index.pack_id)
    part = objects.get(key, offset=offset, size=size_bytes, if_match=version.etag)
    if len(part.data) != size_bytes:
        raise Corrupt(f"{key} is truncated: {size_bytes} bytes at {offset} are missing")
    return part.data


def check_tree(entry: TreeEntry) -> None:
    """Raises: Corrupt, TooLarge if an entry is not a directory whose tree can be read."""
    what = f"directory {entry.name!r}"
    if entry.kind is not Kind.DIRECTORY or not entry.segments:
        raise Corrupt(f"{what} has no tree")
    if entry.size_bytes > TREE_SIZE_BYTES_MAX:
        raise TooLarge(
            f"{what} claims a tree of {entry.size_bytes} bytes; the limit is {TREE_SIZE_BYTES_MAX}"
        )
    if sum(segment.size_bytes for segment in entry.segments) != entry.size_bytes:
        raise Corrupt(f"{what} has a tree whose size is not {entry.size_bytes} bytes")


def tree_of(entry: TreeEntry, pieces: Iterable[Buffer]) -> list[TreeEntry]:
    """Returns the entries of a directory from the bytes of its segments. Raises: Corrupt,
    UnknownFormat."""
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
    """Joins the pieces without holding all of them twice; one piece is not copied."""
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
    """Returns the first offset and the end of the chunks that begin in a window. The last chunk is
    left out if it is larger than a window."""
    offsets = index.offsets  # the last is the payload's end, where no chunk begins
    low = bisect_right(offsets, window * WINDOW_SIZE_BYTES - 1)
    high = min(bisect_right(offsets, (window + 1) * WINDOW_SIZE_BYTES - 1), len(index))
    if offsets[high] - offsets[high - 1] > WINDOW_SIZE_BYTES:
        high -= 1
    return offsets[low], offsets[high]


def _where(segment: Segment) -> str:
    last = segment.first + segment.count - 1
    return f"chunks {segment.first} to {last} of {keys.pack(segment.pack)}"
