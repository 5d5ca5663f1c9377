"""The interface between the HTTP side and a node: names, files, the control of the cache.

Implementations: StoreNode (a store and a cache), DictNode of the tests (a dictionary).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import msgspec

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.nodecache.name_rows import EntryRow
from lodefs.chunkstore.protocol.cache_control import (
    EvictRequest,
    EvictView,
    PinsView,
    WarmJobs,
    WarmRequest,
    WarmStatus,
)
from lodefs.chunkstore.protocol.wire import (
    CacheExtent,
    CachePlace,
    Origin,
    Page,
    Snapshot,
    UsageReport,
)
from lodefs.chunkstore.protocol.wire import Entry as Entry
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.runtime.counters import Counts


def no_job(job_id: str) -> NotFound:
    """What is said of a warm job that there is not."""
    return NotFound(f"there is no warm job {job_id}: jobs end with their proxy; ask again")


class CacheControl(Protocol):
    """Control of one node's cache. Methods raise errors.py's classes."""

    @property
    def is_busy(self) -> bool:
        """Whether a job runs."""

    async def warm(self, request: WarmRequest) -> WarmStatus:
        """Begins a job. NotFound, InvalidInput; Unavailable where too many run."""

    async def warm_jobs(self) -> WarmJobs:
        """The jobs that run, and the last that ran."""

    async def warm_status(self, job_id: str) -> WarmStatus:
        """How far a job is. NotFound."""

    async def cancel_warm(self, job_id: str) -> WarmStatus:
        """Ends a job, on all nodes that it runs on. NotFound."""

    async def pins(self) -> PinsView:
        """The pins that hold now."""

    async def evict(self, request: EvictRequest) -> EvictView:
        """Drops pins and data. NotFound, InvalidInput, Unavailable."""


RefKind = Literal["branch", "tag"]
ChangeName = Literal["added", "removed", "changed", "type changed"]


class RepositoryPage(msgspec.Struct, frozen=True):
    """Names of repositories, in order. ``more``: others follow. ``is_complete``: the store has been
    listed to its end; if not, there may be others even where ``more`` is false."""

    names: list[str]
    more: bool
    is_complete: bool


class RefView(msgspec.Struct, frozen=True):
    """A branch or tag, and where it is."""

    kind: RefKind
    name: str
    commit: str
    moved_s: int  # Unix


class RefsView(msgspec.Struct, frozen=True):
    """Branches, then tags, of a repository. ``more``: there are others."""

    repo: str
    refs: list[RefView]
    more: bool


class CommitView(msgspec.Struct, frozen=True):
    """One version."""

    commit: str
    parents: list[str]
    author: str
    message: str
    time_s: int  # Unix
    files: int
    directories: int
    size_bytes: int
    metadata: dict[str, str] = {}


class LogView(msgspec.Struct, frozen=True):
    """Versions, newest first. ``next``: the commit that comes after them, or null."""

    repo: str
    commits: list[CommitView]
    next: str | None


class ChangeView(msgspec.Struct, frozen=True):
    """One path that differs. Sizes are null where there is no file."""

    what: ChangeName
    path: str
    before_bytes: int | None
    after_bytes: int | None


class ChangesView(msgspec.Struct, frozen=True):
    """What a version changed against another one, ``parent``: its first parent unless that was
    asked for (null: it has none). ``is_complete``: all was counted; ``changes`` has the first of
    them."""

    repo: str
    commit: str
    parent: str | None
    changes: list[ChangeView]
    added: int
    removed: int
    changed: int
    added_bytes: int
    removed_bytes: int
    is_complete: bool


class LastChange(msgspec.Struct, frozen=True):
    """A version that changed something; the beginning of its message."""

    commit: str
    time_s: int  # Unix
    message: str


class LastChangesView(msgspec.Struct, frozen=True):
    """Which version changed each entry of a directory last: ``entries`` has numbers of ``commits``
    by name, as it stands in URLs. ``is_complete``: entries that are missing do not exist; else it
    is not known of them."""

    commits: list[LastChange]
    entries: dict[str, int]
    is_complete: bool


class Catalog(Protocol):
    """Looks into a store. Methods raise errors.py's classes; all awaits have deadlines."""

    async def repositories(
        self, *, after: str, limit: int, keep: Callable[[str], bool]
    ) -> RepositoryPage:
        """Repositories that ``keep`` takes, after a name, at most ``limit``."""

    async def refs(self, repo: str) -> RefsView:
        """Branches and tags. Raises: NotFound."""

    async def log(self, repo: str, rev: str, limit: int) -> LogView:
        """The versions from ``rev`` back. Raises: NotFound."""

    async def changes(self, repo: str, rev: str, since: str = "") -> ChangesView:
        """What a version changed against another one of its repository, or its first parent.
        Raises: NotFound."""

    async def last_changes(self, repo: str, rev: str, path: bytes) -> LastChangesView:
        """When the entries of a directory (or a file) were changed last, as far as a bounded time
        allows. Raises: NotFound, NotADirectory."""


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

    async def entry(self, snapshot: Snapshot, path: bytes) -> Entry:
        """The entry at a path; b"" is the root. Raises: NotFound, NotADirectory."""

    async def by_ino(self, snapshot: Snapshot, ino: int) -> Entry:
        """The entry with an inode number. Raises: NotFound (never looked up on this node)."""

    async def file(self, snapshot: Snapshot, path: bytes) -> Entry | SnapshotFile:
        """The file at a path, or an entry that is no file. Raises: NotFound, NotADirectory."""

    async def file_by_ino(self, snapshot: Snapshot, ino: int) -> Entry | SnapshotFile:
        """The file with an inode number, or an entry that is no file. Raises: NotFound."""

    async def lookup(self, snapshot: Snapshot, parent: int, name: bytes) -> Entry:
        """The child of a directory. Raises: NotFound, NotADirectory."""

    async def children(
        self, snapshot: Snapshot, ino: int, *, after: bytes = b"", limit: int
    ) -> Page:
        """Children whose names sort after ``after``, at most ``limit``. Raises: NotADirectory."""

    async def tree(self, snapshot: Snapshot, ino: int) -> bytes:
        """A directory in its stored form (chunkstore.format.tree). Raises: NotFound (never looked
        up on this node); TooLarge."""

    async def content_ids(self, snapshot: Snapshot, inos: Sequence[int]) -> list[bytes]:
        """The content ids of files that were looked up, in their order. Raises: NotFound."""

    async def met(self) -> list[Snapshot]:
        """Snapshots that this node has met, some thousands at most."""

    async def repos(self, prefix: bytes, start: bytes) -> NamePage:
        """Some of the repositories whose names begin with ``prefix``, by the bytes of NAME@, from
        ``start`` on: also the one whose NAME@ ``start`` begins with. Raises: Unavailable."""

    async def revisions(self, repo: str, start: bytes) -> NamePage:
        """Some of the branches and tags of a repository, by the bytes of NAME/, from ``start`` on.
        Raises: Unavailable."""


class Located(NamedTuple):
    """Where the beginning of a range lies in the cache; ``origin``: as of ByteStream."""

    place: CacheExtent
    origin: Origin | None


class Files(Protocol):
    """The bytes of files."""

    async def open(self, file: SnapshotFile, first: int, size_bytes: int) -> ByteStream:
        """Begins to read the bytes [first, first + size_bytes). The stream must be closed. Raises:
        InvalidInput (outside the file), Unavailable, Corrupt."""

    async def locate(self, file: SnapshotFile, first: int, size_bytes: int) -> Located | ByteStream:
        """As ``open``, for a reader of the cache's files: where the bytes from ``first`` on lie,
        as many as lie together; or the stream, if they are in memory alone."""

    def hit(self, content_id: bytes, first: int, size_bytes: int) -> Extent | None:
        """Where a range lies in one cache file, if all of it does and that is known without
        waiting. The extent is good until control goes back to the event loop.
        """


class NodeService(Protocol):
    """One node, as the HTTP side sees it. ``cache_control`` is None without a cache."""

    @property
    def names(self) -> Names:
        """Snapshots and entries."""

    @property
    def files(self) -> Files:
        """Bytes of files."""

    @property
    def catalog(self) -> Catalog:
        """What the store holds, for people."""

    @property
    def cache_control(self) -> CacheControl | None:
        """Warming, pins and eviction."""

    @property
    def counts(self) -> Counts:
        """What it counts."""

    def cache_place(self) -> CachePlace | None:
        """Where programs of this machine find the cache's files; None where there are none."""

    async def used(self, report: UsageReport) -> None:
        """What a program of this machine read from the cache's files by itself."""

    async def look(self) -> None:
        """Learn anew what ``status`` says of other nodes; takes about a second at most."""

    def status(self) -> dict[str, object]:
        """Plain figures for /status: store, cache used and limit, hits, misses."""
