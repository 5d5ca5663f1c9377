"""An upload: a file on the node's disk until its hash is known to be the one it should have."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.system.os_errors import kind_of
from lodefs.proxy.node import Upload

BLOCK_BYTES = 1 << 20


@asynccontextmanager
async def received(
    directory: Path, oid: str, content: AsyncIterator[bytes]
) -> AsyncIterator[Upload]:
    """Yields an object in a file; removes it at the end.

    Raises: InvalidInput if they do not have the id; NoSpace, Denied, Unavailable for the disk.
    """
    fd, name = tempfile.mkstemp(dir=directory)
    try:
        hasher, size_bytes = hashlib.sha256(), 0
        with os.fdopen(fd, "wb", buffering=0) as file:
            async for block in _blocks(content):
                await asyncio.to_thread(_add, file.fileno(), hasher, block)
                size_bytes += len(block)
        if hasher.hexdigest() != oid:
            raise InvalidInput(
                f"the {size_bytes:,} bytes that came do not have the id {oid}: send them again; if "
                "it happens again, `git lfs fsck` says whether the file is damaged"
            )
        yield Upload(oid, Path(name), size_bytes)
    finally:
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


def _add(fd: int, hasher: hashlib._Hash, block: bytes) -> None:
    hasher.update(block)
    view = memoryview(block)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        raise kind_of(error)(f"the upload cannot be kept on disk: {error.strerror}") from error
