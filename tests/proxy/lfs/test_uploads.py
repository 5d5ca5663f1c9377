"""Uploads on their way to a file of the node's disk."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.system.batched_writes import write_at
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.lfs import uploads
from lodefs.proxy.lfs.uploads import BLOCK_BYTES, received

DATA = [b"first", bytes(BLOCK_BYTES), b"last"]
OID = sha256(b"".join(DATA)).hexdigest()


async def _sent(pieces: Sequence[bytes] = DATA) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _received(directory: Path, pieces: Sequence[bytes]) -> bytes:
    oid = sha256(b"".join(pieces)).hexdigest()
    async with received(directory, oid, _sent(pieces)) as upload:
        assert upload.size_bytes == sum(map(len, pieces))
        return upload.file.read_bytes()


@pytest.mark.parametrize("pieces", [DATA, DATA[:2], [bytes(BLOCK_BYTES)], [b"small"], [b""], []])
def test_an_object_is_in_its_file(tmp_path: Path, pieces: list[bytes]) -> None:
    """Also one without bytes, and one that ends with a block."""
    assert asyncio.run(_received(tmp_path, pieces)) == b"".join(pieces)


def test_bytes_that_are_not_the_object_are_removed(tmp_path: Path) -> None:
    """Bytes without the id are yielded to no block, and their file goes."""

    async def receive() -> None:
        with pytest.raises(InvalidInput, match="do not have the id"):
            async with received(tmp_path, OID, _sent(DATA[:2])):
                pass

    asyncio.run(receive())
    assert not [*tmp_path.iterdir()]  # the end of the loop waits for its threads


def test_a_client_that_goes_while_its_bytes_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes them keeps the descriptor until then, since another file could get its
    number, and the file is removed. Nothing of this is the work of the event loop."""
    writes, goes = threading.Event(), threading.Event()
    descriptors: list[int] = []
    threads: set[int] = set()

    def write(fd: int, offset: int, buffers: Sequence[Buffer]) -> int:
        descriptors.append(fd)
        threads.add(threading.get_ident())
        writes.set()
        assert goes.wait(60)
        os.fstat(fd)
        return write_at(fd, offset, buffers)

    async def receive() -> None:
        async with received(tmp_path, OID, _sent()):
            pass

    async def run() -> None:
        task = asyncio.create_task(receive())
        await asyncio.to_thread(writes.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        os.fstat(descriptors[0])
        goes.set()

    monkeypatch.setattr(uploads, "write_at", write)
    asyncio.run(run())
    assert not [*tmp_path.iterdir()]  # the end of the loop waits for its threads
    assert len(descriptors) == 1 and threads.isdisjoint({threading.get_ident()})
