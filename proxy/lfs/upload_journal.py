"""Uploads that were answered before they were committed: files that outlive the proxy.

``DIRECTORY/OWNER/OID.SUFFIX`` has an object's bytes, and ``DIRECTORY/OWNER/owner`` says for which
repository and token they came, as JSON. OWNER is the BLAKE3 of that file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.system.os_errors import kind_of
from lodefs.proxy.lfs.pushes import Pusher
from lodefs.proxy.node import Upload

_OWNER = "owner"


@dataclass(frozen=True, slots=True)
class Kept:
    """An object in the journal."""

    pusher: Pusher
    oid: str
    file: Path
    size_bytes: int


class UploadJournal:
    """The files of one node. For any thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keep(self, pusher: Pusher, upload: Upload) -> Kept:
        """Moves an upload's file here. It is on disk when this returns. Raises: NoSpace, Denied,
        Unavailable."""
        owner = msgspec.json.encode(pusher)
        folder = self._directory / digest_of(owner).hex()
        try:
            if not (folder / _OWNER).exists():
                self._make(folder, owner)
            _sync(upload.file)
            file = upload.file.rename(folder / f"{upload.oid}.{upload.file.name}")
            _sync(folder)
            return Kept(pusher, upload.oid, file, upload.size_bytes)
        except OSError as error:
            raise kind_of(error)(f"the upload cannot be kept on disk: {error.strerror}") from error

    def left(self) -> Iterator[tuple[Kept, bool]]:
        """Yields what an earlier proxy kept and did not commit, and whether it has its bytes."""
        for folder in sorted(self._directory.iterdir()) if self._directory.exists() else ():
            try:
                pusher = from_json((folder / _OWNER).read_bytes(), Pusher)
            except (OSError, InvalidInput):
                continue  # it was being made, and has no objects
            for file in sorted(folder.iterdir(), key=lambda one: one.stat().st_mtime_ns):
                oid = file.name.partition(".")[0]
                if file.name == _OWNER or file.name.startswith(f"{_OWNER}."):
                    continue
                with file.open("rb") as content:
                    is_whole = hashlib.file_digest(content, "sha256").hexdigest() == oid
                yield Kept(pusher, oid, file, file.stat().st_size), is_whole

    def _make(self, folder: Path, owner: bytes) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = folder / f"{_OWNER}.{os.getpid()}.{id(owner)}"
        new.write_bytes(owner)
        _sync(new)
        new.rename(folder / _OWNER)
        _sync(folder)
        _sync(self._directory)
        _sync(self._directory.parent)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
