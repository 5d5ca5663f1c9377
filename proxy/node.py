"""The interface between the HTTP side and a node: names, files, the control of the cache.

Implementations: StoreNode (a store and a cache), DictNode of the tests (a dictionary).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from lodefs.chunkstore.nodeapi.wire import CachePlace, Origin, Page, Place, Snapshot, Used
from lodefs.chunkstore.nodeapi.wire import Node as Entry
from lodefs.chunkstore.nodecache.name_rows import EntryRow
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.cache_control import CacheControl
from lodefs.proxy.catalog import Catalog
from lodefs.proxy.runtime.counters import Counts


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes that lie together in a file of the cache; ``fd`` stays open meanwhile."""

    fd: int
    offset: int
    size_bytes: int


class SnapshotFile(NamedTuple):
    """A file of a snapshot, all from one row of the index. ``content_id`` names its bytes by what
    is verified: files with equal ids have the same bytes."""

    snapshot: Snapshot
    entry: Entry
    content_id: bytes
    row: EntryRow


class Pieces(Protocol):
    """Pieces of bytes: an asynchronous generator, or a stream of a file."""

    def __aiter__(self) -> AsyncIterator[Buffer]: ...

    async def __anext__(self) -> Buffer: ...

    async def aclose(self) -> None:
        """No more is wanted."""
        ...


class ByteStream(Pieces, Protocol):
    """Verified bytes of a file. ``first`` is the first piece, already read; iterating gives the
    others. ``origin``: where bytes were fetched from; None: all were in the cache."""

    first: Buffer
    origin: Origin | None


class NamePage(NamedTuple):
    """Some names, maybe none. ``following``: what the next page starts with; None after the last
    one."""

    names: list[str]
    following: bytes | None


class Names(Protocol):
    """Snapshots and their entries. Methods raise errors.py's classes; all awaits have deadlines."""

    async def snapshot(self, repo: str, rev: str) -> Snapshot:
        """The commit that ``rev`` (branch, tag, commit or prefix) is now. Raises: NotFound."""
        ...

    async def entry(self, snapshot: Snapshot, path: bytes) -> Entry:
        """The entry at a path; b"" is the root. Raises: NotFound, NotADirectory."""
        ...

    async def by_ino(self, snapshot: Snapshot, ino: int) -> Entry:
        """The entry with an inode number. Raises: NotFound (never looked up on this node)."""
        ...

    async def file(self, snapshot: Snapshot, path: bytes) -> Entry | SnapshotFile:
        """The file at a path, or an entry that is no file. Raises: NotFound, NotADirectory."""
        ...

    async def file_by_ino(self, snapshot: Snapshot, ino: int) -> Entry | SnapshotFile:
        """The file with an inode number, or an entry that is no file. Raises: NotFound."""
        ...

    async def lookup(self, snapshot: Snapshot, parent: int, name: bytes) -> Entry:
        """The child of a directory. Raises: NotFound, NotADirectory."""
        ...

    async def children(
        self, snapshot: Snapshot, ino: int, *, after: bytes = b"", limit: int
    ) -> Page:
        """Children whose names sort after ``after``, at most ``limit``. Raises: NotADirectory."""
        ...

    async def tree(self, snapshot: Snapshot, ino: int) -> bytes:
        """A directory in its stored form (chunkstore.format.tree). Raises: NotFound (never looked
        up on this node); TooLarge."""
        ...

    async def content_ids(self, snapshot: Snapshot, inos: Sequence[int]) -> list[bytes]:
        """The content ids of files that were looked up, in their order. Raises: NotFound."""
        ...

    async def met(self) -> list[Snapshot]:
        """Snapshots that this node has met, some thousands at most."""
        ...

    async def repos(self, prefix: bytes, start: bytes) -> NamePage:
        """Some of the repositories whose names begin with ``prefix``, by the bytes of NAME@, from
        ``start`` on: also the one whose NAME@ ``start`` begins with. Raises: Unavailable."""
        ...

    async def revisions(self, repo: str, start: bytes) -> NamePage:
        """Some of the branches and tags of a repository, by the bytes of NAME/, from ``start`` on.
        Raises: Unavailable."""
        ...


class Located(NamedTuple):
    """Where the beginning of a range lies in the cache; ``origin``: as of ByteStream."""

    place: Place
    origin: Origin | None


class Files(Protocol):
    """The bytes of files."""

    async def open(self, file: SnapshotFile, first: int, size_bytes: int) -> ByteStream:
        """Begins to read the bytes [first, first + size_bytes). The stream must be closed.

        Raises: InvalidInput (outside the file), Unavailable, Corrupt.
        """
        ...

    async def locate(self, file: SnapshotFile, first: int, size_bytes: int) -> Located | ByteStream:
        """As ``open``, for a reader of the cache's files: where the bytes from ``first`` on lie,
        as many as lie together; or the stream, if they are in memory alone."""
        ...

    def hit(self, content_id: bytes, first: int, size_bytes: int) -> Extent | None:
        """Where a range lies in one cache file, if all of it does and that is known without
        waiting. The extent is good until control goes back to the event loop.
        """
        ...


class Node(Protocol):
    """One node, as the HTTP side sees it. ``cache_control`` is None without a cache."""

    @property
    def names(self) -> Names:
        """Snapshots and entries."""
        ...

    @property
    def files(self) -> Files:
        """Bytes of files."""
        ...

    @property
    def catalog(self) -> Catalog:
        """What the store holds, for people."""
        ...

    @property
    def cache_control(self) -> CacheControl | None:
        """Warming, pins and eviction."""
        ...

    @property
    def counts(self) -> Counts:
        """What it counts."""
        ...

    def cache_place(self) -> CachePlace | None:
        """Where programs of this machine find the cache's files; None where there are none."""
        ...

    async def used(self, report: Used) -> None:
        """What a program of this machine read from the cache's files by itself."""
        ...

    async def look(self) -> None:
        """Learn anew what ``status`` says of other nodes; takes about a second at most."""
        ...

    def status(self) -> dict[str, object]:
        """Plain figures for /status: store, cache used and limit, hits, misses."""
        ...
