"""The interface between the HTTP side and a node: names, files, control of the cache.

Implementations: StoreNode (a store and a cache), DictNode of the tests (a dictionary).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
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
from lodefs.chunkstore.protocol.orders.hub_orders import HubOutcome, HubRequest
from lodefs.chunkstore.protocol.orders.lfs_orders import Order, Outcome
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
from lodefs.proxy.metrics.counters import Counts


def no_job(job_id: str) -> NotFound:
    """Returns the error for an unknown warm job."""
    return NotFound(f"there is no warm job {job_id}: jobs end with their proxy; ask again")


class CacheControl(Protocol):
    """Controls one node's cache. Methods raise errors.py's classes."""

    @property
    def is_busy(self) -> bool:
        """Whether a job runs."""

    async def warm(self, request: WarmRequest) -> WarmStatus:
        """Begins a job. Raises: NotFound, InvalidInput; Unavailable if too many run."""

    async def warm_jobs(self) -> WarmJobs:
        """Returns the running jobs, and the last finished ones."""

    async def warm_status(self, job_id: str) -> WarmStatus:
        """Returns the progress of a job. Raises: NotFound."""

    async def cancel_warm(self, job_id: str) -> WarmStatus:
        """Ends a job on all nodes that it runs on. Raises: NotFound."""

    async def pins(self) -> PinsView:
        """Returns the present pins."""

    async def evict(self, request: EvictRequest) -> EvictView:
        """Drops pins and data. Raises: NotFound, InvalidInput, Unavailable."""


RefKind = Literal["branch", "tag"]
ChangeName = Literal["added", "removed", "changed", "type changed"]


class RepositoryPage(msgspec.Struct, frozen=True):
    """Names of repositories, in order. ``more``: others follow. ``is_complete``: the store has been
    listed completely; if not, there may be others even if ``more`` is false."""

    names: list[str]
    more: bool
    is_complete: bool


class RefView(msgspec.Struct, frozen=True):
    """A branch or tag, and its commit."""

    kind: RefKind
    name: str
    commit: str
    moved_s: int  # Unix time


class RefsView(msgspec.Struct, frozen=True):
    """The branches of a repository, then its tags. ``more``: there are others."""

    repo: str
    refs: list[RefView]
    more: bool


class CommitView(msgspec.Struct, frozen=True):
    """One version."""

    commit: str
    parents: list[str]
    author: str
    message: str
    time_s: int  # Unix time
    files: int
    directories: int
    size_bytes: int
    metadata: dict[str, str] = {}


class LogView(msgspec.Struct, frozen=True):
    """Versions, newest first. ``next`` is the commit after them, or null."""

    repo: str
    commits: list[CommitView]
    next: str | None


class ChangeView(msgspec.Struct, frozen=True):
    """One path that differs. Sizes are null if there is no file."""

    what: ChangeName
    path: str
    before_bytes: int | None
    after_bytes: int | None


class ChangesView(msgspec.Struct, frozen=True):
    """The changes of a version against another one, ``parent``: the one asked for, or its first
    parent (null: it has none). ``is_complete``: everything was counted; ``changes`` has the first
    of them."""

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
    """A version that changed something, with the beginning of its message."""

    commit: str
    time_s: int  # Unix
    message: str


class LastChangesView(msgspec.Struct, frozen=True):
    """The version that last changed each entry of a directory. ``entries`` maps names, as in URLs,
    to indices in ``commits``. ``is_complete``: missing entries do not exist; otherwise, they may
    exist."""

    commits: list[LastChange]
    entries: dict[str, int]
    is_complete: bool


class Catalog(Protocol):
    """Queries about a store. Methods raise errors.py's classes; all awaits have deadlines."""

    async def repositories(
        self, *, after: str, limit: int, keep: Callable[[str], bool]
    ) -> RepositoryPage:
        """Returns at most ``limit`` repositories that ``keep`` accepts, after a name."""

    async def refs(self, repo: str) -> RefsView:
        """Returns branches and tags. Raises: NotFound."""

    async def log(self, repo: str, rev: str, limit: int) -> LogView:
        """Returns the versions from ``rev`` back. Raises: NotFound."""

    async def changes(self, repo: str, rev: str, since: str = "") -> ChangesView:
        """Returns the changes of a version against another one of its repository (by default, its
        first parent). Raises: NotFound."""

    async def last_changes(self, repo: str, rev: str, path: bytes) -> LastChangesView:
        """Returns when the entries of a directory (or a file) were last changed, as far as it
        finds out within a bounded time. Raises: NotFound, NotADirectory."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Consecutive bytes in a file of the cache; ``fd`` stays open meanwhile."""

    fd: int
    offset: int
    size_bytes: int


class SnapshotFile(NamedTuple):
    """A file of a snapshot, all from one row of the index. ``content_id`` rests on verified data:
    files with equal ids have the same bytes."""

    snapshot: Snapshot
    entry: Entry
    content_id: bytes
    row: EntryRow


class Pieces(Protocol):
    """Pieces of bytes: an asynchronous generator, or the stream of a file."""

    def __aiter__(self) -> AsyncIterator[Buffer]: ...

    async def __anext__(self) -> Buffer: ...

    async def aclose(self) -> None:
        """Ends the pieces."""


class ByteStream(Pieces, Protocol):
    """Verified bytes of a file. ``first`` is the first piece, already read; iteration yields the
    others. ``origin`` says where bytes were fetched from; None: all were in the cache."""

    first: Buffer
    origin: Origin | None


class NamePage(NamedTuple):
    """Some names, perhaps none. ``following`` begins the next page; None after the last page."""

    names: list[str]
    following: bytes | None


class Names(Protocol):
    """Snapshots and their entries. Methods raise errors.py's classes; all awaits have deadlines."""

    async def snapshot(self, repo: str, rev: str) -> Snapshot:
        """Returns the current commit of ``rev`` (branch, tag, commit or prefix). Raises:
        NotFound."""

    async def entry(self, snapshot: Snapshot, path: bytes) -> Entry:
        """Returns the entry at a path; b"" is the root. Raises: NotFound, NotADirectory."""

    async def by_ino(self, snapshot: Snapshot, ino: int) -> Entry:
        """Returns the entry with an inode number. Raises: NotFound if the snapshot has none."""

    async def file(self, snapshot: Snapshot, path: bytes) -> Entry | SnapshotFile:
        """Returns the file at a path, or an entry that is not a file. Raises: NotFound,
        NotADirectory."""

    async def file_by_ino(self, snapshot: Snapshot, ino: int) -> Entry | SnapshotFile:
        """Returns the file with an inode number, or an entry that is not a file. Raises:
        NotFound."""

    async def lookup(self, snapshot: Snapshot, parent: int, name: bytes) -> Entry:
        """Returns the child of a directory. Raises: NotFound, NotADirectory."""

    async def children(
        self, snapshot: Snapshot, ino: int, *, after: bytes = b"", limit: int
    ) -> Page:
        """Returns at most ``limit`` children whose names sort after ``after``. Raises:
        NotADirectory."""

    async def tree(self, snapshot: Snapshot, ino: int) -> bytes:
        """Returns a directory in its stored form (chunkstore.format.tree). Raises: NotFound if this
        node does not know it; TooLarge."""

    async def content_ids(self, snapshot: Snapshot, inos: Sequence[int]) -> list[bytes]:
        """Returns the content ids of known files, in order. Raises: NotFound."""

    async def met(self) -> list[Snapshot]:
        """Returns the snapshots that this node has used, at most some thousands."""

    async def repos(self, prefix: bytes, start: bytes) -> NamePage:
        """Returns some of the repositories whose names begin with ``prefix``, by the bytes of
        NAME@, from ``start`` on, also the one whose NAME@ ``start`` begins with. Raises:
        Unavailable."""

    async def revisions(self, repo: str, start: bytes) -> NamePage:
        """Returns some of the branches and tags of a repository, by the bytes of NAME/, from
        ``start`` on. Raises: Unavailable."""


class Located(NamedTuple):
    """The place of the beginning of a range in the cache; ``origin`` is as in ByteStream."""

    place: CacheExtent
    origin: Origin | None


class Files(Protocol):
    """The bytes of files."""

    async def open(self, file: SnapshotFile, first: int, size_bytes: int) -> ByteStream:
        """Begins to read the bytes [first, first + size_bytes). The caller must close the stream.
        Raises: InvalidInput for a range outside of the file; Unavailable, Corrupt."""

    async def locate(self, file: SnapshotFile, first: int, size_bytes: int) -> Located | ByteStream:
        """Does what ``open`` does for a reader of the cache's files: returns where the bytes from
        ``first`` on lie, as many as lie together; or the stream, if they are only in memory."""

    def hit(self, content_id: bytes, first: int, size_bytes: int) -> Extent | None:
        """Returns where a range lies in one cache file, if all of it does and no waiting is needed.
        The extent is valid until control returns to the event loop.
        """


class Upstream(Protocol):
    """Fetches what the store lacks from the site's Hugging Face Hub."""

    async def reach(self, request: HubRequest) -> HubOutcome:
        """Has this node or another one fetch, for all who ask. Returns when the fetch has ended, or
        runs and the store has the listing."""

    def begin(self, request: HubRequest) -> HubOutcome:
        """Begins a fetch on this node, unless it runs or has just ended. Returns how far it is."""


class Upload(NamedTuple):
    """An object of Git LFS in a file of the node, whose bytes were checked."""

    oid: str
    file: Path
    size_bytes: int


class LfsWriter(Protocol):
    """Writes the objects and locks of Git LFS into the store."""

    def uploads(self) -> Path:
        """Returns the directory for files that are to be put."""

    async def carry_out(self, order: Order) -> Outcome:
        """Returns when the store has what was ordered. Raises: Denied, NotFound, Unavailable; what
        the store raises."""

    def expect(self, repo: str, name: str, asked: Collection[str], missing: Collection[str]) -> str:
        """Notes that a token's user will upload the missing ones of the objects that they asked
        about. Returns a key, which the uploads bring."""

    async def put(self, repo: str, name: str, upload: Upload, key: str) -> None:
        """Stores an object. Its file is gone at the end, unless an error is raised.

        When others of ``key`` are still to come, it returns when the object is sure to be stored,
        unless the store refuses it. Else it returns when the object is stored, and all others that
        the user has put into the repository. Raises: InvalidInput if one of those was refused;
        Denied, NoSpace, Unavailable; what the store raises."""

    async def settled(self, repo: str, oid: str) -> None:
        """Returns when an object that was put is stored or refused."""


class GitImports(Protocol):
    """Imports of commits of Git that the store lacks."""

    async def imported(self, repo: str, rev: str) -> str:
        """Returns the revision ``git:ID`` of what a revision ``git:...`` names, which the store has
        then. Raises: NotFound for another revision or a repository that this node does not import,
        and for what Git lacks; Denied, TooLarge; UnderWay."""


class NodeService(Protocol):
    """One node for the HTTP side. ``cache_control`` is None without a cache."""

    @property
    def names(self) -> Names:
        """Snapshots and entries."""

    @property
    def files(self) -> Files:
        """Bytes of files."""

    @property
    def catalog(self) -> Catalog:
        """Queries about the store, for users."""

    @property
    def cache_control(self) -> CacheControl | None:
        """Warming, pins and eviction."""

    @property
    def upstream(self) -> Upstream | None:
        """Fetches from the hub; None if the settings name none."""

    @property
    def lfs(self) -> LfsWriter | None:
        """Writes for Git LFS; None if this node never writes."""

    @property
    def git(self) -> GitImports | None:
        """Imports from Git; None if the settings allow none."""

    @property
    def counts(self) -> Counts:
        """The node's counters."""

    def cache_place(self) -> CachePlace | None:
        """Returns where programs of this machine find the cache's files; None if there are none."""

    async def used(self, report: UsageReport) -> None:
        """Takes the report of a program of this machine that read the cache's files by itself."""

    async def look(self) -> None:
        """Updates what ``status`` says about other nodes; takes at most about a second."""

    def status(self) -> dict[str, object]:
        """Returns plain fields for /status: store, cache use and limit, hits, misses."""
