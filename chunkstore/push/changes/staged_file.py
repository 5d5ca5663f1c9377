"""A file that a program writes into a staging area."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from lodefs.chunkstore.push.changes.change import shown
from lodefs.chunkstore.push.changes.contents import BLOCK_SIZE_BYTES, ContentWriter
from lodefs.chunkstore.push.changes.overlay import Names
from lodefs.chunkstore.types import Buffer

if TYPE_CHECKING:
    from lodefs.chunkstore.push.changes.staging import Staging

BUFFER_SIZE_BYTES = 1 << 20  # for each open file


class StagedFile(io.BufferedIOBase):
    """A binary file of Python's ``io`` that is written from the beginning to the end. Closing it
    stages it, unless an error ended its block."""

    def __init__(
        self, staging: Staging, names: Names, content: ContentWriter, *, executable: bool
    ) -> None:
        self.names = names
        self.content = content
        self.executable = executable
        self.name = shown(names)
        self._staging = staging
        self._buffer = bytearray()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.content.size_bytes + len(self._buffer)

    def write(self, data: Buffer) -> int:  # type: ignore[override]  # its type is private
        """Takes all of ``data``. Raises: OverQuota; what the store raises. An error discards the
        file."""
        if self.closed:
            raise ValueError("write to a closed file")
        view = memoryview(data).cast("B")
        for first in range(0, len(view), BLOCK_SIZE_BYTES):
            block = view[first : first + BLOCK_SIZE_BYTES]
            if len(self._buffer) + len(block) < BUFFER_SIZE_BYTES:
                self._buffer += block
            else:
                self._add(b"".join((self._buffer, block)) if self._buffer else bytes(block))
        return len(view)

    def discard(self) -> None:
        """Discards the file. Its path keeps what it had. Does nothing if the file is closed."""
        if not self.closed:
            super().close()
            self._staging.end_file(self, is_kept=False)

    def close(self) -> None:
        """Stages the file. Does nothing if it is closed already."""
        if self.closed:
            return
        self._add(bytes(self._buffer), final=True)
        super().close()
        self._staging.end_file(self, is_kept=True)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        """Discards a file that nobody closed, since nobody has said that it is complete."""

    def _add(self, data: Buffer, *, final: bool = False) -> None:
        self._buffer.clear()
        try:
            with self._staging.in_use():
                self.content.add(data, final=final)
        except BaseException:
            self.discard()
            raise
