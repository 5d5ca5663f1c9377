"""The HTTP interface between clients and the node's proxy: paths, headers, structures.

docs/protocol.md describes it. This module does no I/O. Structures travel as MessagePack
(``application/msgpack``) on the paths that mounts use, because names are bytes there.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated
from urllib.parse import quote, quote_from_bytes, unquote_to_bytes

import msgspec

from lodefs.chunkstore import errors
from lodefs.chunkstore.errors import InvalidInput, LodefsError, told

FILES = "/files/"  # GET, HEAD: a file's bytes:      /files/REPO@REV/PATH
STAT = "/stat/"  # GET: one entry as JSON:           /stat/REPO@REV/PATH
LIST = "/list/"  # GET: a directory as JSON:         /list/REPO@REV/PATH?after=NAME&limit=N
TREES = "/trees/"  # GET: a directory's stored form: /trees/REPO@REV/PATH
SNAPSHOTS = "/snapshots/"  # GET: REV's commit:       /snapshots/REPO@REV
NODES = "/nodes/"  # GET: entries by inode:          /nodes/REPO@COMMIT/INO[/children|/lookup|/data]
CHILDREN, LOOKUP, DATA = "children", "lookup", "data"
CACHE = "/cache"  # GET: where the cache's files lie; on the Unix socket only
CACHE_USED = "/cache/used"  # POST: what was read from them; on the Unix socket only
PEER_WARM = "/peers/warm"  # between nodes: POST, and /ID: GET, DELETE
PEER_HUB = "/peers/hub"  # POST, between nodes: fetch a repository of the hub
PEER_HELLO = "/peers/hello"  # GET, between nodes: whether they trust each other
PEER_PACKS = "/peers/packs/"  # GET, between nodes: PACK/index, PACK/chunks?first=F&count=N

COMMIT_HEADER = "X-Lodefs-Commit"
DIGEST_HEADER = "X-Lodefs-Digest"
USER_HEADER = "X-Lodefs-User"  # the number of the user for whom root asks
PLACE_HEADER = "X-Lodefs-Place"  # any value: the client accepts a CacheExtent instead of the bytes
ALL_PLACES = "all"  # as its value: the client accepts a list of them (an older proxy sends one)
PARENTS_HEADER = "X-Lodefs-Parents"  # between nodes: the nodes to ask for parts of a pack
ORIGIN_HEADER = "X-Lodefs-Origin"  # an Origin; missing if nothing had to be fetched
MSGPACK = "application/msgpack"
CHILDREN_MAX = 4096  # entries in one page of a directory
PAGE_BYTES_MAX = 256 * 1024  # of their names and targets, without the first entry's
BUSY_ADDRESSES_MAX = 16
PARENTS_MAX = 16
STRIPE_SIZE_BYTES = 8 * 1024 * 1024  # of a pack's raw bytes: those of a stripe have one parent
PARENT_WAIT_S = 0.5  # how long a parent lets a child wait for its own first byte
PEER_INDEX_SIZE_BYTES_MAX = 4 * 1024 * 1024  # larger ones, which no push makes, come from the store
USED_NUMBERS_MAX = 4096  # in one report
SCATTERED_MAX = 64  # in one report
USED_BYTES_MAX = 32768  # size of one encoded report
SOCKET_DEFAULT = "/run/lodefs/proxy.sock"
PORT_DEFAULT = 7440


class Origin(StrEnum):
    """The origin of bytes that were not in the node's cache."""

    PEERS = "peers"  # other nodes
    STORE = "store"


_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_Ino = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Amount = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """One entry of a snapshot, as mounts see it. ``target`` is a symlink's; b"" otherwise.

    ``digest`` is the commit's claim, which was not compared with the bytes. ``content`` is an id of
    a file's bytes that rests on verified data (``name_rows.content_id``). Files of 1 MiB and more
    have one, since it names their flat file in the cache; others have b"".
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
    """Entries of a directory in the order of their names. ``more``: others follow."""

    nodes: list[Entry]
    more: bool


class Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """One commit of a repository, as mounts show it."""

    repo: str
    commit: str  # 64 hex characters
    root: Entry
    time_s: int  # of the commit, Unix time
    files: int
    directories: int
    size_bytes: int  # of all files
    large_size_bytes: int = 0  # of all files of 1 MiB and more


class CachePlace(msgspec.Struct, array_like=True, frozen=True):
    """The directory of the node's cache, and the version of its layout
    (chunkstore.nodecache.layout)."""

    directory: bytes  # absolute, as the proxy sees it
    version: int


class CacheExtent(msgspec.Struct, array_like=True, frozen=True):
    """The place of bytes of a dataset file: ``size_bytes`` of them, from ``first`` on, at
    ``offset`` of the cache file ``number``, which is the flat file of ``content``, or a slab if
    that is empty. ``file_size_bytes`` is the size of the whole dataset file. Its bytes up to
    ``coming_end`` are in the cache, or on their way to it; 0: this is not known. ``index`` is the
    device and the inode number of the index that gave the file its number; zeros: not known."""

    number: int
    content: bytes
    offset: int
    first: int
    size_bytes: int
    file_size_bytes: int
    coming_end: int = 0
    index: tuple[int, int] = (0, 0)


class UsageReport(msgspec.Struct, array_like=True, frozen=True):
    """A report of the reads that a program has made of the cache's files since its last report.

    ``numbers`` are the files; ``reads`` and ``read_bytes`` count its reads of them. ``scattered``
    are inode numbers of large files of ``commit`` in ``repo`` that were read by chunks, since they
    have no complete flat file. ``stored_bytes`` were put into the page cache before they were asked
    for; whether anybody reads them is unknown.
    """

    numbers: Annotated[list[_Number], msgspec.Meta(max_length=USED_NUMBERS_MAX)]
    reads: _Amount
    read_bytes: _Amount
    repo: str = ""
    commit: str = ""
    scattered: Annotated[list[_Ino], msgspec.Meta(max_length=SCATTERED_MAX)] = []
    stored_bytes: _Amount = 0


class Busy(msgspec.Struct, array_like=True, frozen=True):
    """The answer of a node that cannot serve another one now: when to ask again, and which members
    of the cluster ("HOST:PORT") were sent the same pack recently."""

    retry_after_s: float
    addresses: Annotated[list[str], msgspec.Meta(max_length=BUSY_ADDRESSES_MAX)]


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """The JSON body of every answer of 400 and more. ``error`` names a class of errors.py.
    ``request_id`` is in the log's lines about the request, if it was one. ``lasting_s`` is for how
    long the store has only failed."""

    error: str
    message: str
    request_id: str = ""
    lasting_s: float = 0.0


def target(repo: str, rev: str) -> str:
    """Returns ``REPO@REV`` as it is written in a path."""
    return quote(f"{repo}@{rev}", safe="/@")


def file_path(kind: str, repo: str, rev: str, path: bytes) -> str:
    """Returns the URL path of FILES, STAT, LIST or TREES for a path in a snapshot."""
    return f"{kind}{target(repo, rev)}/{quote_from_bytes(path)}"


def peer_index(pack: str, ahead: range = range(0)) -> str:
    """Returns the target of a pack's index, encoded as in the node's index. The node that asks will
    read the chunks ``ahead``."""
    hint = f"?first={ahead.start}&count={len(ahead)}" if ahead else ""
    return f"{PEER_PACKS}{pack}/index{hint}"


def peer_chunks(pack: str, first: int, count: int) -> str:
    """Returns the target of the raw bytes of consecutive chunks."""
    return f"{PEER_PACKS}{pack}/chunks?first={first}&count={count}"


def parents_value(addresses: Sequence[str | None]) -> str:
    """Returns the value of PARENTS_HEADER: the parents of a pack's stripes, None for the node that
    answers."""
    return ", ".join(address or "-" for address in addresses)


def parse_parents(value: str) -> list[str | None]:
    """Returns the parents in a value of PARENTS_HEADER; none if there are too many."""
    addresses = [address.strip() for address in value.split(",")]
    if len(addresses) > PARENTS_MAX:
        return []
    return [None if address in {"", "-"} else address for address in addresses]


def split_target(raw_tail: str) -> tuple[str, str, bytes]:
    """Splits what follows FILES, STAT, LIST, TREES, NODES or SNAPSHOTS into repository, revision
    and path.

    ``raw_tail`` is percent-encoded. It does not check the names. Raises: InvalidInput without '@'.
    """
    raw = unquote_to_bytes(raw_tail)
    repo, at, tail = raw.partition(b"@")
    if not at:
        raise InvalidInput("the path must have the form REPO@REV/PATH")
    rev, _, path = tail.partition(b"/")
    return repo.decode("utf-8", "replace"), rev.decode("utf-8", "replace"), path


def error_of(failure: Failure) -> LodefsError:
    """Returns the error that the other side raised; Unavailable if this side does not know it."""
    found = getattr(errors, failure.error, None)
    is_known = isinstance(found, type) and issubclass(found, LodefsError)
    kind: type[LodefsError] = found if is_known else errors.Unavailable  # type: ignore[assignment]
    error = kind(failure.message)
    if isinstance(error, errors.Unavailable):
        error.lasting_s = failure.lasting_s
    return error


def kind_of(error: LodefsError) -> str:
    """Returns the name of an error for another process: that of its nearest class in errors.py,
    which the other one knows."""
    names = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__]
    return names[0]


def failure_of(error: Exception) -> Failure:
    """Returns the description of an error for another process, which fits into a packet whatever
    the caller has sent. A fault of lodefs is described by its class alone."""
    if isinstance(error, LodefsError):
        return Failure(kind_of(error), told(str(error)))
    return Failure("Unavailable", f"{type(error).__name__} (a fault of lodefs)")
