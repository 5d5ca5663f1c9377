"""An upload: a file on the node's disk until its hash is known to be the one it should have."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from lodefs.chunkstore.errors import Corrupt, InvalidInput
from lodefs.chunkstore.format.compression import decompress
from lodefs.chunkstore.protocol.lfs_recipe import KNOWN, Decoder, Hole, Piece
from lodefs.chunkstore.system.batched_writes import write_at
from lodefs.chunkstore.system.os_errors import kind_of
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.node import Upload

BLOCK_BYTES = 1 << 20
Fill = Callable[[Path, Sequence[Hole]], Awaitable[None]]


@asynccontextmanager
async def received(
    directory: Path, oid: str, content: AsyncIterator[bytes]
) -> AsyncIterator[Upload]:
    """Yields an object in a file; removes it at the end.

    Raises: InvalidInput if they do not have the id; NoSpace, Denied, Unavailable for the disk.
    """
    with _new_file(directory) as (fd, file):
        hasher, size_bytes = hashlib.sha256(), 0
        async for block in _blocks(content):
            await asyncio.to_thread(_add, fd, hasher, block, size_bytes)
            size_bytes += len(block)
        _check(oid, hasher.hexdigest(), size_bytes)
        yield Upload(oid, file, size_bytes)


@asynccontextmanager
async def received_in_pieces(
    directory: Path, oid: str, content: AsyncIterator[bytes], fill: Fill
) -> AsyncIterator[Upload]:
    """Does what ``received`` does for an object that comes as lfs_recipe says. ``fill`` writes the
    chunks that did not come, and raises Conflict if the store lacks one of them."""
    with _new_file(directory) as (fd, file):
        decoder, holes, size_bytes = Decoder(), list[Hole](), 0
        async for block in _blocks(content):
            pieces = list(decoder.feed(block))
            await asyncio.to_thread(_write_pieces, fd, pieces, size_bytes)
            for piece in pieces:
                if piece.codec == KNOWN:
                    holes.append(Hole(bytes(piece.data), size_bytes, piece.size_bytes))
                size_bytes += piece.size_bytes
        decoder.end()
        if holes:
            await fill(file, holes)
        _check(oid, await asyncio.to_thread(_sha256, file), size_bytes)
        yield Upload(oid, file, size_bytes)


@contextmanager
def _new_file(directory: Path) -> Iterator[tuple[int, Path]]:
    fd, name = tempfile.mkstemp(dir=directory)
    try:
        yield fd, Path(name)
    finally:
        os.close(fd)
        with suppress(FileNotFoundError):
            os.unlink(name)


async def _blocks(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields the same bytes in larger blocks, each worth a call in a thread."""
    block = bytearray()
    async for piece in content:
        block += piece
        if len(block) >= BLOCK_BYTES:
            yield bytes(block)
            block.clear()
    if block:
        yield bytes(block)


def _check(oid: str, found: str, size_bytes: int) -> None:
    if found != oid:
        raise InvalidInput(
            f"the {size_bytes:,} bytes that came do not have the id {oid}: send them again; if "
            "it happens again, `git lfs fsck` says whether the file is damaged"
        )


def _add(fd: int, hasher: hashlib._Hash, block: bytes, offset: int) -> None:
    hasher.update(block)
    _write(fd, block, offset)


def _write_pieces(fd: int, pieces: Sequence[Piece], offset: int) -> None:
    for piece in pieces:
        if piece.codec != KNOWN:
            try:
                data = decompress(piece.codec, piece.data, piece.size_bytes)
            except Corrupt as error:
                raise InvalidInput(f"a piece of the object is damaged: {error}") from error
            _write(fd, data, offset)
        offset += piece.size_bytes


def _write(fd: int, data: Buffer, offset: int) -> None:
    """Raises: NoSpace, Denied, Unavailable."""
    try:
        write_at(fd, offset, [data])
    except OSError as error:
        raise kind_of(error)(f"the upload cannot be kept on disk: {error.strerror}") from error


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
