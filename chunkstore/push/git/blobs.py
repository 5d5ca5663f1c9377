"""The contents of files in a Git repository, which one git process hands out, checked by their
ids."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1, sha256
from typing import IO, BinaryIO

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.format.foreign import git

SHA1_CHARS = 40  # of an id; others are SHA-256


class BlobReader:
    """Reads contents by their ids, one after the other, and checks them."""

    def __init__(self, what: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._what = what
        self._asked: IO[bytes] = process.stdin
        self._answers: IO[bytes] = process.stdout

    def read(self, oid: str, size_bytes: int) -> bytes:
        """Returns a content. Raises: Corrupt."""
        with self.opened(oid, size_bytes) as content:
            return content.read(size_bytes)

    @contextmanager
    def opened(self, oid: str, size_bytes: int) -> Iterator[BinaryIO]:
        """Yields a content as a stream, which must be read to its end. Raises: Corrupt."""
        self._asked.write(f"{oid}\n".encode())
        self._asked.flush()
        head = self._answers.readline().split()
        if head[1:] != [b"blob", b"%d" % size_bytes]:
            raise Corrupt(f"the copy of {self._what} on this machine lacks {oid}: import it again")
        content = _Part(self._answers, oid, size_bytes)
        yield content  # type: ignore[misc]  # it has what readers of contents call
        if content.left_bytes or self._answers.read(1) != b"\n" or not content.is_right:
            raise Corrupt(f"the copy of {self._what} on this machine is damaged: import it again")


class _Part:
    """The next ``left_bytes`` of a stream, which are the content with an id of Git."""

    def __init__(self, stream: IO[bytes], oid: str, left_bytes: int) -> None:
        self._stream = stream
        self._oid = oid
        kind = sha1 if len(oid) == SHA1_CHARS else sha256
        self._hasher = kind(git.blob_head(left_bytes), usedforsecurity=False)
        self.left_bytes = left_bytes

    @property
    def is_right(self) -> bool:
        """Whether what was read has the id."""
        return self._hasher.hexdigest() == self._oid

    def read(self, size_bytes: int = -1) -> bytes:
        wanted = self.left_bytes if size_bytes < 0 else min(size_bytes, self.left_bytes)
        data = self._stream.read(wanted)
        self.left_bytes -= len(data)
        self._hasher.update(data)
        return data

    def seekable(self) -> bool:
        return False
