"""Contents of files (local files, bytes and streams) become chunks and tree entries.

The pack of a new chunk has no id until it is full. So an entry is *staged* first: its segments name
the pack STAGED, and have places (fragmentation.py) instead of chunk numbers. ``settled`` makes an
entry of it that a tree can hold.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import BinaryIO, NamedTuple

import msgspec
from blake3 import blake3

from lodefs.chunkstore.errors import InvalidInput, NotFound, Unavailable
from lodefs.chunkstore.format.chunking import cut
from lodefs.chunkstore.format.compression import RawStreak, compress
from lodefs.chunkstore.format.names import Digest, PackId, digest_of
from lodefs.chunkstore.format.tree import EMPTY_DIGEST, Kind, Segment, TreeEntry
from lodefs.chunkstore.push.deduplicator import Deduplicator
from lodefs.chunkstore.push.fragmentation import Run, join
from lodefs.chunkstore.push.session import PushSession
from lodefs.chunkstore.push.workers.pipeline import CutChunk, CutFile, CutUnit
from lodefs.chunkstore.push.workers.source_files import FileStat, SourceFile
from lodefs.chunkstore.types import Buffer

STAGED = PackId(b"staged")  # no pack has an id of this length
SMALL_FILES_MAX, SMALL_BYTES_MAX = 256, 1 << 20  # limits of a batch of small contents
BLOCK_SIZE_BYTES = 4 << 20  # of a stream in memory

Compress = Callable[[Buffer], tuple[int, Buffer]]


class _Stored(NamedTuple):
    digest: Digest
    size_bytes: int
    runs: list[Run]


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A regular file: its path without symlinks, and its stat."""

    path: bytes
    size_bytes: int
    mode: int

    def __fspath__(self) -> str:
        return os.fsdecode(self.path)

    @property
    def executable(self) -> bool:
        return bool(self.mode & 0o111)

    @property
    def is_private(self) -> bool:
        """Whether others may not read the file."""
        return not self.mode & stat.S_IROTH


class Contents:
    """Stores contents. The caller gives each of them a number. For one thread."""

    def __init__(self, session: PushSession, count: Callable[[int, int], None]) -> None:
        """``count`` is called with the number of a content and how many more bytes it has, before
        they are sent. It may raise."""
        self._session = session
        self._placement = session.placement()
        self._params = session.store.settings.chunking
        self._progress = session.progress
        self._deduplicator = Deduplicator(self._placement, self, session.progress)
        self._stored: dict[int, _Stored] = {}
        self._small: dict[int, tuple[CutFile, Buffer]] = {}  # wait until the batch is full
        self._small_bytes = 0
        self._count = count

    @property
    def new_bytes(self) -> int:
        """The bytes of chunks that were not in the store."""
        return self._deduplicator.new_bytes

    @property
    def files_read(self) -> int:
        """The number of contents that were read."""
        return self._deduplicator.files_read

    def done(self, file: CutFile, runs: list[Run], serial: int) -> None:  # noqa: ARG002
        """Implements FileSink: one content is complete. Raises its error."""
        if file.error is not None:
            raise file.error
        assert file.digest is not None and file.size_bytes is not None
        self._stored[file.token] = _Stored(Digest(file.digest), file.size_bytes, runs)

    def advance(self) -> None:
        """Implements FileSink."""

    def read_files(self, files: Sequence[tuple[int, LocalFile]]) -> None:
        """Reads local files."""
        self._take_small()
        if files:
            sources = [SourceFile(file.path[1:], file.size_bytes, n) for n, file in files]
            readers = self._session.readers(len(sources), sum(file.size_bytes for file in sources))
            counted = self._counted(sources)
            readers.run(b"/", counted, self._deduplicator, rate=self._session.rate)

    def read_stream(self, number: int, stream: BinaryIO) -> None:
        """Reads a stream to its end."""
        content = ContentWriter(self, number)
        while block := stream.read(BLOCK_SIZE_BYTES):
            self._session.rate.take(len(block))
            content.add(block)
        content.add(b"", final=True)

    def read_small(self, number: int, data: Buffer) -> None:
        """Takes a content that was read as a whole."""
        self._session.rate.take(len(data))
        ContentWriter(self, number).add(data, final=True)

    def take(self, part: CutFile, pieces: Sequence[memoryview], compress_next: Compress) -> None:
        """The next part of a content, with the bytes of its chunks."""
        self._take_small()
        unit = CutUnit([part])
        flags = self._deduplicator.wanted(unit)
        stored = [compress_next(p) for p, wanted in zip(pieces, flags, strict=True) if wanted]
        self._deduplicator.store(unit, stored)

    def is_small(self, data: Buffer) -> bool:
        """Whether a whole content is certain to be one chunk."""
        return 0 < len(data) <= self._params.size_bytes_min

    def take_small(self, number: int, data: Buffer) -> None:
        """Takes a whole content that is small. A batch of them costs less than each alone."""
        digest = digest_of(data)
        stat, chunks = FileStat(len(data), 0, 0, 0), [CutChunk(digest, len(data))]
        file = CutFile(number, chunks, first=True, last=True, digest=digest, stat=stat)
        self._small[number] = file, data
        self._small_bytes += len(data)
        if self._small_bytes >= SMALL_BYTES_MAX or len(self._small) >= SMALL_FILES_MAX:
            self._take_small()

    def _take_small(self) -> None:
        if not self._small:
            return
        unit = CutUnit([file for file, _ in self._small.values()])
        flags = self._deduplicator.wanted(unit)
        some = zip(self._small.values(), flags, strict=True)
        self._deduplicator.store(unit, [compress(data) for (_, data), wanted in some if wanted])
        self._small, self._small_bytes = {}, 0

    def count(self, number: int, more_bytes: int, *, is_new: bool) -> None:
        """Counts bytes of a content before they are sent."""
        self._progress.files_total += is_new
        self._progress.bytes_total += more_bytes
        self._count(number, more_bytes)

    def cut(self, data: memoryview, *, final: bool) -> list[int]:
        """Returns where the chunks of a content end."""
        return cut(data, self._params, final=final)

    def seal(self) -> None:
        """Seals the last pack. After that, entries can be settled."""
        self._take_small()
        self._deduplicator.seal()

    def staged(self, number: int, name: bytes, *, executable: bool) -> TreeEntry:
        """Returns the staged entry of a content that is complete."""
        if number in self._small:
            size_bytes, digest = len(self._small[number][1]), self._small[number][0].chunks[0].id
            segments: tuple[Segment, ...] = (Segment(STAGED, number, 0, size_bytes),)
            return TreeEntry(name, Kind.FILE, executable, size_bytes, Digest(digest), segments)
        digest, size_bytes, runs = self._stored.pop(number)
        if not size_bytes:
            return TreeEntry(name, Kind.FILE, executable, digest=EMPTY_DIGEST)
        segments = tuple([Segment(STAGED, *run) for run in runs])
        return TreeEntry(name, Kind.FILE, executable, size_bytes, digest, segments)

    def settled(self, entry: TreeEntry) -> TreeEntry:
        """Returns a staged entry with the packs of its chunks; any other entry as it is."""
        if not is_staged(entry):
            return entry
        _, first, chunks, _ = entry.segments[0]
        if chunks:
            runs = [Run(*segment[1:]) for segment in entry.segments]
        else:  # a small content, found by its number
            runs = self._stored[first].runs
        segments = [found for run in runs for found in self._placement.segments(run)]
        return msgspec.structs.replace(entry, segments=join(segments))

    def _counted(self, files: Sequence[SourceFile]) -> Iterator[SourceFile]:
        for file in files:
            self._progress.files_total += 1
            self._progress.bytes_total += file.size_bytes
            self._count(file.token, file.size_bytes)
            yield file


class ContentWriter:
    """Takes one content, whose bytes come in blocks. The end of a block that may not be a whole
    chunk waits for the next block. For one thread."""

    def __init__(self, contents: Contents, number: int) -> None:
        self._contents = contents
        self.number = number
        self._hasher = blake3()
        self._left = b""
        self._is_first = True
        self._compress = RawStreak().compress
        self.size_bytes = 0

    def add(self, block: Buffer, *, final: bool = False) -> None:
        """Takes the next bytes, or the last ones. Raises: Purged, OverQuota; what the store
        raises."""
        self._contents.count(self.number, len(block), is_new=self._is_first)
        self.size_bytes += len(block)
        if final and self._is_first and self._contents.is_small(block):
            self._contents.take_small(self.number, block)
            return
        data = memoryview(b"".join((self._left, block)) if self._left else block)
        ends = self._contents.cut(data, final=final)
        pieces = [data[a:b] for a, b in pairwise([0, *ends])]
        chunks = [CutChunk(digest_of(piece), len(piece)) for piece in pieces]
        self._hasher.update(block)
        part = CutFile(
            self.number,
            chunks,
            first=self._is_first,
            last=final,
            digest=self._hasher.digest() if final else None,
            stat=FileStat(self.size_bytes, 0, 0, 0) if final else None,
        )
        self._contents.take(part, pieces, self._compress)
        self._left, self._is_first = bytes(data[ends[-1] if ends else 0 :]), False


def is_staged(entry: TreeEntry) -> bool:
    """Whether an entry does not yet say which packs its chunks are in."""
    return bool(entry.segments) and entry.segments[0].pack == STAGED


def rewound(content: bytes | BinaryIO, start: int | None) -> BinaryIO:
    """Returns a content as a stream at its beginning. ``start`` None says that it can be read only
    once, and was. Raises: Unavailable."""
    if isinstance(content, bytes):
        return io.BytesIO(content)
    if start is None:
        raise Unavailable(
            "the store has lost what this push relied on, and standard input cannot be read again: "
            "repeat the command"
        )
    if content.seekable():
        content.seek(start)
    return content


def local_file(path: os.PathLike[str]) -> LocalFile:
    """Returns a regular file; symlinks are followed. Raises: InvalidInput, NotFound; OSError."""
    if isinstance(path, LocalFile):
        return path
    try:
        real = os.path.realpath(os.fsencode(path), strict=True)
        seen = os.stat(real)
    except (FileNotFoundError, NotADirectoryError) as error:
        leads = "leads to a file that does not exist" if os.path.islink(path) else "does not exist"
        raise NotFound(f"{os.fspath(path)} {leads}") from error
    if not os.path.isfile(real):
        raise InvalidInput(f"{os.fspath(path)} is not a regular file")
    return LocalFile(real, seen.st_size, seen.st_mode)
