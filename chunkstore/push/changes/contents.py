"""Contents of files of a commit: local files, bytes and streams become chunks, and entries."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import BinaryIO, NamedTuple

from blake3 import blake3

from lodefs.chunkstore.errors import InvalidInput, NotFound, Unavailable
from lodefs.chunkstore.format.chunking import cut
from lodefs.chunkstore.format.compression import RawStreak
from lodefs.chunkstore.format.names import Digest, digest_of
from lodefs.chunkstore.format.tree import EMPTY_DIGEST, Kind, TreeEntry
from lodefs.chunkstore.push.deduplicator import Deduplicator
from lodefs.chunkstore.push.fragmentation import Run, join
from lodefs.chunkstore.push.session import PushSession
from lodefs.chunkstore.push.workers.pipeline import CutChunk, CutFile, CutUnit
from lodefs.chunkstore.push.workers.source_files import FileStat, SourceFile

BLOCK_SIZE_BYTES = 4 << 20  # of a stream, in memory at once


class _Stored(NamedTuple):
    digest: Digest
    size_bytes: int
    runs: list[Run]


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A regular file: its path without symlinks, and what the file system says of it."""

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
        """Whether others may not read it."""
        return not self.mode & stat.S_IROTH


class Contents:
    """Stores contents, each under a number of the caller's. One thread."""

    def __init__(self, session: PushSession, count: Callable[[int, int], None]) -> None:
        """``count`` is told of more bytes of a content, by its number, before they are sent; it may
        raise."""
        self._session = session
        self._placement = session.placement()
        self._params = session.store.settings.chunking
        self._progress = session.progress
        self._deduplicator = Deduplicator(self._placement, self, session.progress)
        self._stored: dict[int, _Stored] = {}
        self._count = count

    @property
    def new_bytes(self) -> int:
        """Of chunks that were not in the store."""
        return self._deduplicator.new_bytes

    @property
    def files_read(self) -> int:
        """How many contents there were."""
        return self._deduplicator.files_read

    def done(self, file: CutFile, runs: list[Run], serial: int) -> None:  # noqa: ARG002
        """Of FileSink: one content is known. Raises its error."""
        if file.error is not None:
            raise file.error
        assert file.digest is not None and file.size_bytes is not None
        self._stored[file.token] = _Stored(Digest(file.digest), file.size_bytes, runs)

    def advance(self) -> None:
        """Of FileSink."""

    def read_files(self, files: Sequence[tuple[int, LocalFile]]) -> None:
        """Reads local files."""
        if files:
            sources = [SourceFile(file.path[1:], file.size_bytes, n) for n, file in files]
            readers = self._session.readers(len(sources), sum(file.size_bytes for file in sources))
            readers.run(b"/", self._counted(sources), self._deduplicator)

    def read_stream(self, number: int, stream: BinaryIO) -> None:
        """Reads a stream to its end."""
        hasher, compress = blake3(), RawStreak().compress
        size_bytes, left, is_first = 0, b"", True
        self._progress.files_total += 1
        while True:
            block = stream.read(BLOCK_SIZE_BYTES)
            hasher.update(block)
            size_bytes += len(block)
            self._progress.bytes_total += len(block)
            self._count(number, len(block))
            data = memoryview(left + block)
            ends = cut(data, self._params, final=not block)
            pieces = [data[a:b] for a, b in pairwise([0, *ends])]
            unit = CutUnit([_part(number, pieces, is_first=is_first)])
            if not block:
                unit = CutUnit([_last(unit.files[0], hasher.digest(), size_bytes)])
            flags = self._deduplicator.wanted(unit)
            stored = [compress(p) for p, wanted in zip(pieces, flags, strict=True) if wanted]
            self._deduplicator.store(unit, stored)
            if not block:
                return
            left, is_first = bytes(data[ends[-1] if ends else 0 :]), False

    def seal(self) -> None:
        """Ends the last pack: entries can be had."""
        self._deduplicator.seal()

    def entry(self, number: int, name: bytes, *, executable: bool) -> TreeEntry:
        """The file of a content that was stored."""
        digest, size_bytes, runs = self._stored[number]
        if not size_bytes:
            return TreeEntry(name, Kind.FILE, executable, digest=EMPTY_DIGEST)
        segments = [found for run in runs for found in self._placement.segments(run)]
        return TreeEntry(name, Kind.FILE, executable, size_bytes, digest, join(segments))

    def _counted(self, files: Sequence[SourceFile]) -> Iterator[SourceFile]:
        for file in files:
            self._progress.files_total += 1
            self._progress.bytes_total += file.size_bytes
            self._count(file.token, file.size_bytes)
            yield file


def rewound(content: bytes | BinaryIO, start: int | None) -> BinaryIO:
    """A content as a stream at its beginning (``start``; None: it can be read once, and was).
    Raises: Unavailable."""
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
    """A regular file, through symlinks. Raises: InvalidInput, NotFound; OSError."""
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


def _part(number: int, pieces: Sequence[memoryview], *, is_first: bool) -> CutFile:
    chunks = [CutChunk(digest_of(piece), len(piece)) for piece in pieces]
    return CutFile(number, chunks, first=is_first, last=False)


def _last(part: CutFile, digest: bytes, size_bytes: int) -> CutFile:
    stat = FileStat(size_bytes, 0, 0, 0)
    return CutFile(part.token, part.chunks, part.first, last=True, digest=digest, stat=stat)
