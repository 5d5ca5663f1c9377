"""Downloads that go on where an earlier one was ended."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from lodefs.chunkstore.errors import Corrupt, Unavailable
from lodefs.chunkstore.system.os_errors import kind_of
from lodefs.lfs.agent import Event, Moved
from lodefs.lfs.server import LfsServer

BLOCK_BYTES = 1 << 20


def fetch(
    server: LfsServer,
    target: str,
    headers: Mapping[str, str],
    event: Event,
    folder: Path,
    moved: Moved,
) -> Path:
    """Returns a file in ``folder`` with an object.

    Raises: Unavailable if it can be repeated, and then goes on; Corrupt if the server sends other
    bytes; NotFound; NoSpace, Denied for the disk.
    """
    try:
        with _part(folder, event.oid) as part:
            hasher = _kept(part, event.size)
            at = part.tell()
            moved(at)
            if at < event.size or not event.size:
                wanted = {**headers, "Range": f"bytes={at}-"} if at else headers
                with server.ask("GET", target, wanted) as answer:
                    if at and answer.status != 206:
                        raise Unavailable("the server does not go on in the middle of an object")
                    _receive(answer, part, hasher, event.size - at, moved)
            if hasher.hexdigest() != event.oid:
                part.truncate(0)
                raise Corrupt(f"the server sent other bytes than those of {event.oid}")
            whole = folder / f"lodefs-{event.oid}-{os.getpid()}"
            os.rename(part.name, whole)
            return whole
    except OSError as error:
        raise kind_of(error)(f"{folder}: {error.strerror}") from error


@contextmanager
def _part(folder: Path, oid: str) -> Iterator[BinaryIO]:
    """Opens the file of an unfinished download, or a new one while another process uses that."""
    folder.mkdir(parents=True, exist_ok=True)
    file: BinaryIO = open(folder / f"lodefs-{oid}.part", "a+b")  # noqa: SIM115 - or another
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        fd, name = tempfile.mkstemp(prefix=f"lodefs-{oid}.", suffix=".part", dir=folder)
        os.close(fd)
        file = open(name, "a+b")  # noqa: SIM115 - closed below
    is_own = not file.name.endswith(f"-{oid}.part")
    try:
        yield file
    finally:
        file.close()
        if is_own:
            with suppress(FileNotFoundError):
                os.unlink(file.name)


def _kept(part: BinaryIO, size_bytes: int) -> hashlib._Hash:
    """Returns the hash of what was fetched before; the file is at its end."""
    hasher = hashlib.sha256()
    if os.fstat(part.fileno()).st_size > size_bytes:
        part.truncate(0)
    part.seek(0)
    while block := part.read(BLOCK_BYTES):
        hasher.update(block)
    return hasher


def _receive(
    answer: http.client.HTTPResponse,
    part: BinaryIO,
    hasher: hashlib._Hash,
    size_bytes: int,
    moved: Moved,
) -> None:
    while size_bytes and (block := answer.read(min(size_bytes, BLOCK_BYTES))):
        _write(part, block)
        hasher.update(block)
        size_bytes -= len(block)
        moved(len(block))
    if size_bytes:
        raise Unavailable("the server ended in the middle of an object")


def _write(part: BinaryIO, block: bytes) -> None:
    try:
        part.write(block)
        part.flush()
    except OSError as error:
        raise kind_of(error)(f"{part.name}: {error.strerror}") from error
