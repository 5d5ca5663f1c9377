"""The HTTP interface between clients and the node's proxy: paths, headers, structures.

docs/protocol.md describes it. No input or output here. Structures travel as MessagePack
(``application/msgpack``) on the paths that mounts use, because names are bytes there.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated
from urllib.parse import quote, quote_from_bytes, unquote_to_bytes

import msgspec

from lodefs.chunkstore import errors
from lodefs.chunkstore.errors import InvalidInput, LodefsError, told

FILES = "/files/"  # GET, HEAD: a file's bytes:      /files/REPO@REV/PATH
STAT = "/stat/"  # GET: one entry as JSON:           /stat/REPO@REV/PATH
LIST = "/list/"  # GET: a directory as JSON:         /list/REPO@REV/PATH?after=NAME&limit=N
TREES = "/trees/"  # GET: a directory as the store has it: /trees/REPO@REV/PATH
SNAPSHOTS = "/snapshots/"  # GET: what REV is:       /snapshots/REPO@REV
NODES = "/nodes/"  # GET: entries by inode:          /nodes/REPO@COMMIT/INO[/children|/lookup|/data]
CHILDREN, LOOKUP, DATA = "children", "lookup", "data"
CACHE = "/cache"  # GET: where the cache's files lie; on the Unix socket only
CACHE_USED = "/cache/used"  # POST: what was read from them; on the Unix socket only
PEER_WARM = "/peers/warm"  # among nodes: POST, and /ID: GET, DELETE
PEER_HELLO = "/peers/hello"  # GET, among nodes: whether they trust each other
PEER_PACKS = "/peers/packs/"  # GET, among nodes: /peers/packs/PACK/index, /chunks?first=F&count=N

COMMIT_HEADER = "X-Lodefs-Commit"
DIGEST_HEADER = "X-Lodefs-Digest"
USER_HEADER = "X-Lodefs-User"  # for whom root asks: a user's number
PLACE_HEADER = "X-Lodefs-Place"  # with any value: a Place will do instead of the bytes
ALL_PLACES = "all"  # as its value: [Place, ...] will do, which an older proxy does not know
ORIGIN_HEADER = "X-Lodefs-Origin"  # an Origin; missing if nothing had to be fetched
MSGPACK = "application/msgpack"
CHILDREN_MAX = 4096  # entries in one page of a directory
PAGE_BYTES_MAX = 256 * 1024  # of their names and targets, but for the first entry's
BUSY_ADDRESSES_MAX = 16
PEER_INDEX_SIZE_BYTES_MAX = 4 * 1024 * 1024  # larger ones, which no push makes, are the store's
USED_NUMBERS_MAX = 4096  # in one report
SCATTERED_MAX = 64  # in one report
USED_BYTES_MAX = 32768  # of one report, encoded
SOCKET_DEFAULT = "/run/lodefs/proxy.sock"
PORT_DEFAULT = 7440


class Origin(StrEnum):
    """Where bytes that were not in the node's cache came from."""

    PEERS = "peers"  # other nodes
    STORE = "store"


_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_Ino = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Amount = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """One entry of a snapshot, as mounts see it. ``target`` is a symlink's; b"" otherwise.

    ``digest`` is the commit's claim, not compared with the bytes. ``content`` names
    the bytes of a file by what is verified (``name_rows.content_id``); it is given for files of
    1 MiB and more, since it names their flat file in the cache, and b"" otherwise.
    """

    ino: int
    parent: int
    name: bytes
    kind: int  # chunkstore.format.tree.Kind
    executable: bool
    size_bytes: int
    digest: bytes
    target: bytes
    content: bytes = b""


class Page(msgspec.Struct, array_like=True, frozen=True):
    """Entries of a directory in the order of their names; ``more`` after the last of them."""

    nodes: list[Entry]
    more: bool


class Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """One commit of a repository: what a mount is of."""

    repo: str
    commit: str  # 64 hex characters
    root: Entry
    time_s: int  # of the commit, Unix
    files: int
    directories: int
    size_bytes: int  # of all files
    large_size_bytes: int = 0  # of those of 1 MiB and more


class CachePlace(msgspec.Struct, array_like=True, frozen=True):
    """Where the node's cache lies, and the version of its layout (chunkstore.nodecache.layout)."""

    directory: bytes  # absolute, as the proxy sees it
    version: int


class CacheExtent(msgspec.Struct, array_like=True, frozen=True):
    """Where bytes of a dataset file lie: ``size_bytes`` of them, from ``first`` on, at ``offset``
    of the cache's file ``number``, which is the flat file of ``content``, or a slab if that is
    empty. ``file_size_bytes``: of the whole dataset file."""

    number: int
    content: bytes
    offset: int
    first: int
    size_bytes: int
    file_size_bytes: int


class UsageReport(msgspec.Struct, array_like=True, frozen=True):
    """What a program read from the cache's files by itself since its last report.

    ``numbers``: the files; ``reads`` and ``read_bytes``: how many reads of them, and their bytes.
    ``scattered``: inode numbers of large files of ``commit`` in ``repo`` that were read by chunks,
    since they have no complete flat file. ``stored_bytes``: given to the kernel before it asked, of
    which nobody hears whether they were read.
    """

    numbers: Annotated[list[_Number], msgspec.Meta(max_length=USED_NUMBERS_MAX)]
    reads: _Amount
    read_bytes: _Amount
    repo: str = ""
    commit: str = ""
    scattered: Annotated[list[_Ino], msgspec.Meta(max_length=SCATTERED_MAX)] = []
    stored_bytes: _Amount = 0


class Busy(msgspec.Struct, array_like=True, frozen=True):
    """What a node answers to another that it cannot serve now: when to ask again, and who was
    sent the same pack lately ("HOST:PORT", those of the cluster's members)."""

    retry_after_s: float
    addresses: Annotated[list[str], msgspec.Meta(max_length=BUSY_ADDRESSES_MAX)]


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """The JSON body of every answer of 400 and more. ``error`` names a class of errors.py;
    ``request_id`` is that of the log's lines about the request, if it was one; ``lasting_s``: for
    how long the store has answered nothing else."""

    error: str
    message: str
    request_id: str = ""
    lasting_s: float = 0.0


def target(repo: str, rev: str) -> str:
    """``REPO@REV`` as it stands in a path."""
    return quote(f"{repo}@{rev}", safe="/@")


def file_path(kind: str, repo: str, rev: str, path: bytes) -> str:
    """The URL path of FILES, STAT, LIST or TREES for a path in a snapshot."""
    return f"{kind}{target(repo, rev)}/{quote_from_bytes(path)}"


def peer_index(pack: str) -> str:
    """The target of a pack's index, as its row in the node's index has it."""
    return f"{PEER_PACKS}{pack}/index"


def peer_chunks(pack: str, first: int, count: int) -> str:
    """The target of the raw bytes of consecutive chunks."""
    return f"{PEER_PACKS}{pack}/chunks?first={first}&count={count}"


def split_target(raw_tail: str) -> tuple[str, str, bytes]:
    """Repository, revision and path of what follows FILES, STAT, LIST, TREES, NODES or SNAPSHOTS.

    ``raw_tail`` is percent-encoded. The names are not checked here. Raises: InvalidInput without
    '@'.
    """
    raw = unquote_to_bytes(raw_tail)
    repo, at, tail = raw.partition(b"@")
    if not at:
        raise InvalidInput("the path must hold REPO@REV")
    rev, _, path = tail.partition(b"/")
    return repo.decode("utf-8", "replace"), rev.decode("utf-8", "replace"), path


def error_of(failure: Failure) -> LodefsError:
    """The error that the other side meant; Unavailable for one that this side does not know."""
    found = getattr(errors, failure.error, None)
    is_known = isinstance(found, type) and issubclass(found, LodefsError)
    kind: type[LodefsError] = found if is_known else errors.Unavailable  # type: ignore[assignment]
    error = kind(failure.message)
    if isinstance(error, errors.Unavailable):
        error.lasting_s = failure.lasting_s
    return error


def failure_of(error: Exception) -> Failure:
    """What another process is told of an error, which fits into a packet whatever a caller has
    sent: of a fault of ours its class alone."""
    if isinstance(error, LodefsError):
        return Failure(type(error).__name__, told(str(error)))
    return Failure("Unavailable", f"{type(error).__name__} (a fault of lodefs)")
