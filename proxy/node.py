"""What the HTTP side asks of the node: snapshots, entries, bytes.

Implementations: store_node.py (store and cache), testing.py (a dictionary). HTTP handlers know
only this.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from lodefs.chunkstore.nodeapi.wire import CachePlace, Page, Snapshot, Used
from lodefs.chunkstore.nodeapi.wire import Node as Entry
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.cache_control import CacheControl


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of a file that lie together in a file of the cache; ``fd`` stays open meanwhile."""

    fd: int
    offset: int
    size_bytes: int


class Node(Protocol):
    """Reads of one node. Methods raise errors.py's classes; all awaits have deadlines."""

    async def snapshot(self, repo: str, rev: str) -> Snapshot:
        """The commit that ``rev`` (branch, tag, commit or prefix) is now. NotFound."""
        ...

    async def entry(self, snapshot: Snapshot, path: bytes) -> Entry:
        """The entry at a path; b"" is the root. NotFound, NotADirectory."""
        ...

    async def by_ino(self, snapshot: Snapshot, ino: int) -> Entry:
        """The entry with an inode number. NotFound where nobody looked it up on this node yet."""
        ...

    async def lookup(self, snapshot: Snapshot, parent_ino: int, name: bytes) -> Entry:
        """The child of a directory. NotFound, NotADirectory."""
        ...

    async def children(
        self, snapshot: Snapshot, ino: int, *, after: bytes = b"", limit: int
    ) -> Page:
        """Children whose names sort after ``after``, at most ``limit``. NotADirectory."""
        ...

    def read(
        self, snapshot: Snapshot, entry: Entry, first: int, size_bytes: int
    ) -> AsyncIterator[Buffer]:
        """The bytes [first, first + size_bytes) of a file, verified, in pieces.

        The range must lie within the file. Unavailable, Corrupt.
        """
        ...

    def content_id(self, snapshot: Snapshot, entry: Entry) -> bytes:
        """What names a file's bytes by what is verified: where it is equal, they are. NotFound."""
        ...

    def hit(self, content: bytes, first: int, size_bytes: int) -> Extent | None:
        """Where a range of the file with a content id lies in one cache file, if all of it does
        and that is known without waiting.

        The extent is good until control goes back to the event loop.
        """
        ...

    def cache_place(self) -> CachePlace | None:
        """Where programs of this machine find the cache's files; None where there are none."""
        ...

    def used(self, report: Used) -> None:
        """What a program of this machine read from the cache's files by itself."""
        ...

    @property
    def cache_control(self) -> CacheControl | None:
        """Warming, pins and eviction; None where there is no cache to look after."""
        ...

    async def look(self) -> None:
        """Learn anew what ``status`` says of other nodes; takes about a second at most."""
        ...

    def status(self) -> dict[str, object]:
        """Plain figures for /status: store, cache used and limit, hits, misses."""
        ...
