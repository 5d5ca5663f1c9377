"""One file of a source that a URL names, as a stream that is read ahead."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO, cast

from lodefs.chunkstore.errors import SourceChanged
from lodefs.chunkstore.push.remote.remote_files import Listing, Piece, RemoteFiles, open_remote
from lodefs.chunkstore.push.workers.source_files import show_path

PIECE_BYTES = 4 << 20
AHEAD = 8  # pieces under way


class RemoteStream(io.RawIOBase):
    """The bytes of a file, all of one state. One thread reads it. Raises: SourceChanged, and what
    the source raises."""

    def __init__(
        self, remote: RemoteFiles, path: bytes, size_bytes: int, piece_bytes: int = PIECE_BYTES
    ) -> None:
        self._remote = remote
        self._path = path
        self._size_bytes = size_bytes
        self._piece_bytes = piece_bytes
        self._threads: ThreadPoolExecutor | None = None
        self._state: str | None = None
        self._begin(0)

    def _begin(self, position: int) -> None:
        self._position = self._asked = position
        self._ahead: deque[Future[Piece]] = deque()
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to another place, which drops what was read ahead."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        if base + offset != self._position:
            self._begin(base + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Returns up to ``size`` bytes, at least one unless the file has ended; all if it is
        negative."""
        if size < 0:
            return self.readall()
        if not self._left:
            self._left = self._next()
        found = bytes(self._left[:size])
        self._left = self._left[size:]
        self._position += len(found)
        return found

    def readinto(self, room: bytearray | memoryview) -> int:  # type: ignore[override]
        found = self.read(len(room))
        room[: len(found)] = found
        return len(found)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._end()

    def _end(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None

    def _next(self) -> memoryview:
        """Returns the next piece, and asks for those after it."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(AHEAD)
        while len(self._ahead) < AHEAD and self._asked < self._size_bytes:
            asked = self._threads.submit(
                self._remote.read, self._path, self._asked, self._piece_bytes
            )
            self._ahead.append(asked)
            self._asked += self._piece_bytes
        if not self._ahead:
            self._end()
            return memoryview(b"")
        found = self._ahead.popleft().result()
        expected = min(self._piece_bytes, self._size_bytes - self._position)
        if self._state is None:
            self._state = found.state
        seen = found.file_size_bytes, found.state, len(found.data)
        if seen != (self._size_bytes, self._state, expected):
            name = show_path(self._path) or self._remote.url
            raise SourceChanged(
                f"{name} was changed while it was read: push again once it is at rest"
            )
        return memoryview(found.data)


def open_remote_file(url: str) -> BinaryIO | None:
    """Returns the file at a URL; None if the URL is that of a directory, or if nothing is there.
    Raises: what opening and listing the source raises."""
    remote = open_remote(url)
    try:
        file = remote.find(b"")
        if file is not None and remote.list(b"") == Listing([], []):
            return cast("BinaryIO", RemoteStream(remote, b"", file.size_bytes))
    except BaseException:
        remote.close()
        raise
    remote.close()
    return None


def open_listed(url: str, paths: Iterable[bytes]) -> Iterator[tuple[bytes, BinaryIO | None]]:
    """Yields the files at paths below a URL; None for a directory, or for nothing. Raises: what
    opening the source and looking there raises."""
    remote = open_remote(url)
    for path in paths:
        file = remote.find(path)
        stream = None if file is None else RemoteStream(remote, path, file.size_bytes)
        yield path, cast("BinaryIO | None", stream)
