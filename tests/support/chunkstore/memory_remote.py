"""A source of a push in memory, as a bucket has it: bytes by key."""

from __future__ import annotations

import threading
from collections.abc import Callable
from hashlib import md5

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.push.remote.remote_files import Listing, Piece, RemoteFile


class MemoryRemote:
    """Implements RemoteFiles. ``reads`` and ``lists`` are the calls so far. ``on_read`` is
    called with each key before it is read; it may change the source, or raise."""

    url = location = "memory://source"
    survives_fork = True

    def __init__(self, files: dict[bytes, bytes], *, has_states: bool = True) -> None:
        self.files = files
        self.has_states = has_states
        self.reads: list[bytes] = []
        self.lists: list[bytes] = []
        self.stores: set[str] = set()  # the stores that lie in it
        self.on_read: Callable[[bytes], None] = lambda _key: None
        self._lock = threading.Lock()

    def list(self, path: bytes) -> Listing:
        self.lists.append(path)
        start = path + b"/" if path else b""
        listing = Listing([], [])
        directories: dict[bytes, None] = {}
        for key, data in self.files.items():
            name, slash, _ = key[len(start) :].partition(b"/")
            if not key.startswith(start) or key == start or not key:
                continue
            if slash:
                directories[name] = None
            else:
                listing.files.append(RemoteFile(name, len(data), self._state(data)))
        listing.subdirectories.extend(directories)
        return listing

    def read(self, path: bytes, offset: int, size_bytes: int) -> Piece:
        with self._lock:
            self.on_read(path)
            self.reads.append(path)
            data = self.files.get(path)
        if data is None:
            raise NotFound(f"{path!r} is not in {self.url}")
        return Piece(data[offset : offset + size_bytes], len(data), self._state(data))

    def find(self, path: bytes) -> RemoteFile | None:
        data = self.files.get(path)
        name = path.rpartition(b"/")[2] or b"source"
        return None if data is None else RemoteFile(name, len(data), self._state(data))

    def holds(self, place: str) -> bool:
        return place in self.stores

    def close(self) -> None:
        """Implements RemoteFiles."""

    def _state(self, data: bytes) -> str:
        return md5(data, usedforsecurity=False).hexdigest() if self.has_states else ""
