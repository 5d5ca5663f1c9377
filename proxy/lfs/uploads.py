"""An upload: a file on the node's disk until its hash is known to be the one it should have."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from lodefs.chunkstore.errors import Corrupt, InvalidInput
from lodefs.chunkstore.format.compression import decompress
from lodefs.chunkstore.protocol.lfs_recipe import KNOWN, Decoder, Hole, Piece
from lodefs.chunkstore.system.batched_writes import write_at
from lodefs.chunkstore.system.os_errors import kind_of
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.node import Upload

BLOCK_BYTES = 1 << 20
_NOT_OPEN = -1
Fill = Callable[[Path, Sequence[Hole]], Awaitable[None]]


@asynccontextmanager
async def received(
    directory: Path, oid: str, content: AsyncIterator[bytes]
) -> AsyncIterator[Upload]:
    """Yields an object in a file, which the block must move or remove. An error removes it.

    Raises: InvalidInput if its bytes do not have the id; NoSpace, Denied, Unavailable for the disk.
    """
    with _discarded_after_errors(_Incoming(directory)) as file:
        hasher = hashlib.sha256()
        async for block, is_last in _blocks(content):
            await asyncio.to_thread(_add, file, hasher, block, is_last=is_last)
        _check(oid, hasher.hexdigest(), file.size_bytes)
        yield Upload(oid, file.path, file.size_bytes)


@asynccontextmanager
async def received_in_pieces(
    directory: Path, oid: str, content: AsyncIterator[bytes], fill: Fill
) -> AsyncIterator[Upload]:
    """Does what ``received`` does for an object that comes as lfs_recipe says. ``fill`` writes the
    chunks that did not come, and raises Conflict if the store lacks one of them."""
    with _discarded_after_errors(_Incoming(directory)) as file:
        decoder, holes = Decoder(), list[Hole]()
        async for block, is_last in _blocks(content):
            pieces = list(decoder.feed(block))
            holes += await asyncio.to_thread(_add_pieces, file, pieces, is_last=is_last)
        decoder.end()
        if holes:
            await fill(file.path, holes)
        _check(oid, await asyncio.to_thread(_sha256, file.path), file.size_bytes)
        yield Upload(oid, file.path, file.size_bytes)


class _Incoming:
    """A file that is made with its first bytes and closed with its last ones. Its methods wait for
    the disk, so they are for threads. Raises: NoSpace, Denied, Unavailable."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()  # a thread goes on after its task was cancelled
        self._fd = _NOT_OPEN
        self._is_discarded = False
        self.path = directory
        self.size_bytes = 0

    def write(self, data: Buffer, size_bytes: int) -> None:
        """Adds so many bytes: ``data``, or a hole without them."""
        with self._lock:
            if self._is_discarded:
                return
            try:
                if self._fd == _NOT_OPEN:
                    self._fd, name = tempfile.mkstemp(dir=self._directory)
                    self.path = Path(name)
                write_at(self._fd, self.size_bytes, [data])
            except OSError as error:
                why = f"the upload cannot be kept on disk: {error.strerror}"
                raise kind_of(error)(why) from error
            self.size_bytes += size_bytes

    def close(self) -> None:
        """Ends the file."""
        with self._lock:
            self._close()

    def discard(self) -> None:
        """Removes the file, unless it was moved. Nothing is added to it any more."""
        with self._lock:
            self._is_discarded = True
            self._close()
            if self.path != self._directory:
                self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._fd != _NOT_OPEN:
            os.close(self._fd)
            self._fd = _NOT_OPEN


@contextmanager
def _discarded_after_errors(file: _Incoming) -> Iterator[_Incoming]:
    try:
        yield file
    except BaseException:
        asyncio.get_running_loop().run_in_executor(None, file.discard)
        raise


async def _blocks(content: AsyncIterator[bytes]) -> AsyncIterator[tuple[bytes, bool]]:
    """Yields the same bytes in larger blocks, each worth a call in a thread, and whether a block,
    which may be empty, is the last one."""
    block = bytearray()
    async for piece in content:
        block += piece
        if len(block) >= BLOCK_BYTES:
            yield bytes(block), False
            block.clear()
    yield bytes(block), True


def _check(oid: str, found: str, size_bytes: int) -> None:
    if found != oid:
        raise InvalidInput(
            f"the {size_bytes:,} bytes that came do not have the id {oid}: send them again; if "
            "it happens again, `git lfs fsck` says whether the file is damaged"
        )


def _add(file: _Incoming, hasher: hashlib._Hash, block: bytes, *, is_last: bool) -> None:
    hasher.update(block)
    file.write(block, len(block))
    if is_last:
        file.close()


def _add_pieces(file: _Incoming, pieces: Sequence[Piece], *, is_last: bool) -> list[Hole]:
    """Adds pieces to a file, and returns the holes that it has for some of them."""
    holes = []
    for piece in pieces:
        if piece.codec == KNOWN:
            holes.append(Hole(bytes(piece.data), file.size_bytes, piece.size_bytes))
            file.write(b"", piece.size_bytes)
            continue
        try:
            data = decompress(piece.codec, piece.data, piece.size_bytes)
        except Corrupt as error:
            raise InvalidInput(f"a piece of the object is damaged: {error}") from error
        file.write(data, piece.size_bytes)
    if is_last:
        file.write(b"", 0)  # an object without pieces is a file, too
        file.close()
    return holes


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
