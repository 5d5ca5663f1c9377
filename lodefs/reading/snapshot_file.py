"""A file of a snapshot as Python's ``io`` has files."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.nodeapi.wire import Node
from lodefs.chunkstore.types import Buffer

if TYPE_CHECKING:
    from lodefs.reading.snapshot import Snapshot

BUFFER_BYTES = 128 << 10
READ_ONLY = (
    "a snapshot never changes: write files into a directory and `lodefs push` it, "
    'or lodefs.push(DIR, "REPO")'
)


class SnapshotFile(io.RawIOBase):
    """Reads at any place of a file; goes on when the proxy is started anew."""

    def __init__(self, snapshot: Snapshot, node: Node, name: str) -> None:
        super().__init__()
        self.name = name
        self._snapshot = snapshot
        self._node = node
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._node.size_bytes}
        if whence not in base:
            raise ValueError(f"whence {whence} is not known")
        at = base[whence] + offset
        if at < 0:
            raise ValueError(f"there is no place {at} in a file")
        self._at = at
        return at

    def readinto(self, buffer: Buffer) -> int:  # type: ignore[override]  # its type is private
        if self.closed:
            raise ValueError("I/O operation on closed file")
        view = memoryview(buffer).cast("B")
        count = self._snapshot.bytes.read_into(self._node, self._at, view)
        self._at += count
        return count

    def readall(self) -> bytes:
        """All from here to the end, in one piece."""
        data = self._snapshot.bytes.read(self._node, self._at, self._node.size_bytes)
        self._at += len(data)
        return data


def buffered(raw: SnapshotFile) -> io.BufferedReader:
    """A file that takes small reads from a buffer."""
    return io.BufferedReader(raw, BUFFER_BYTES)


def check_mode(mode: str) -> None:
    """Raises InvalidInput unless a mode of ``open`` reads."""
    if set(mode) & set("wax+"):
        raise InvalidInput(f"mode {mode!r}: {READ_ONLY}")
    if mode not in ("r", "rt", "tr", "rb", "br"):
        raise InvalidInput(f"mode {mode!r} is not known: use 'rb' or 'r'")
