"""One commit of a repository, which programs read: ``lodefs.snapshot("vision/flickr30k@v1.0")``."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, overload

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.nodecache.cached_snapshot import CachedSnapshot
from lodefs.chunkstore.protocol.wire import Entry
from lodefs.chunkstore.protocol.wire import Snapshot as Commit
from lodefs.chunkstore.types import Buffer
from lodefs.reading.entries import Entries
from lodefs.reading.file_bytes import FileBytes, Span
from lodefs.reading.proxy_clients import ProxyClients, ProxyOptions
from lodefs.reading.urls import decoded_path, encoded_path

if TYPE_CHECKING:
    from lodefs.chunkstore.protocol.control_client import ControlClient

BUFFER_BYTES = 128 << 10
READ_ONLY = (
    "a snapshot never changes: write in a transaction, which makes a new version "
    '(lodefs.transaction("REPO@BRANCH"); of fsspec: `with fs.transaction:`)'
)
_KINDS: dict[int, Literal["file", "directory", "symlink"]] = {
    int(Kind.FILE): "file",
    int(Kind.DIRECTORY): "directory",
    int(Kind.SYMLINK): "symlink",
}


class SnapshotEntry(NamedTuple):
    """A file, directory or symlink of a snapshot. ``path`` is relative to the root; ``digest`` is
    hex, for a file as ``b3sum`` prints it; ``target`` is where a symlink leads."""

    path: str
    kind: Literal["file", "directory", "symlink"]
    size_bytes: int
    digest: str
    executable: bool
    target: str


class Snapshot:
    """A commit of a repository. It never changes, so what was found in it is cached.

    Made by ``lodefs.snapshot``. For any thread; it works in forked processes, and can be pickled
    for others. ``commit``: its id, 64 hex digits, to be recorded with a model; ``time_s``: Unix.
    Paths are relative to the root, with "/" between names. Bytes that are not UTF-8 become
    surrogate escapes, as usual in Python.
    """

    def __init__(self, clients: ProxyClients, commit: Commit) -> None:
        self._clients = clients
        self._commit = commit
        self.repo = commit.repo
        self.commit = commit.commit
        self.time_s = commit.time_s
        self.cache = CachedSnapshot(clients.beside, commit)
        self.entries = Entries(clients, self.cache)
        self.bytes = FileBytes(clients, self.cache)

    @property
    def time(self) -> datetime:
        """The time of the commit."""
        return datetime.fromtimestamp(self._commit.time_s, UTC)

    @property
    def files_total(self) -> int:
        """The number of its files."""
        return self._commit.files

    @property
    def size_bytes(self) -> int:
        """The sum of the sizes of its files."""
        return self._commit.size_bytes

    def files(self, path: str = "") -> Iterator[SnapshotEntry]:
        """Yields all files at and below ``path``, directory by directory, symlinks included.

        Raises: NotFound, Unavailable.
        """
        for entry in self.list(path, recursive=True):
            if entry.kind != "directory":
                yield entry

    def list(self, path: str = "", *, recursive: bool = False) -> Iterator[SnapshotEntry]:
        """Yields the entries of a directory, by name; ``recursive``: also those of all directories
        below.

        Raises: NotFound, NotADirectory, Unavailable.
        """
        start = _path(path)
        for directory, nodes in self.entries.walk(start):
            prefix = directory + b"/" if directory else b""
            for node in nodes:
                yield _shown(prefix + node.name, node)
            if not recursive:
                return

    def entry(self, path: str) -> SnapshotEntry:
        """Returns the entry at a path. A symlink at the end is not followed. Raises: NotFound."""
        name = _path(path)
        return _shown(name, self.entries.entry(name))

    def exists(self, path: str) -> bool:
        """Whether something exists at a path."""
        try:
            return bool(self.entries.followed(_path(path)))
        except NotFound:
            return False

    def digest(self, path: str) -> str:
        """Returns the BLAKE3 of a file's content, as recorded at its push (hex, like ``b3sum``);
        for a directory, of its entries. Reads nothing. Raises: NotFound."""
        return self.entries.followed(_path(path)).digest.hex()

    @overload
    def read(self, path: str, ranges: None = None) -> bytes: ...

    @overload
    def read(self, path: str, ranges: Sequence[Span]) -> builtins.list[bytes]: ...

    def read(self, path: str, ranges: Sequence[Span] | None = None) -> bytes | builtins.list[bytes]:
        """Returns a whole file, or the bytes of each range ``(first, end)``, as for a slice.

        Raises: NotFound, InvalidInput if it is not a file, Unavailable, Corrupt.
        """
        node = self.file(path)
        if ranges is None:
            return self.bytes.read(node, 0, node.size_bytes)
        return self.bytes.read_many([(node, span) for span in ranges])

    def read_files(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """Returns several whole files. What is not on the node is fetched in parallel.

        Raises what ``read`` raises.
        """
        nodes = [self.file(path) for path in paths]
        return self.bytes.read_many([(node, (0, node.size_bytes)) for node in nodes])

    @overload
    def open(self, path: str, mode: Literal["rb"] = "rb") -> io.BufferedReader: ...

    @overload
    def open(
        self, path: str, mode: Literal["r", "rt"], *, encoding: str = "utf-8", **text: Any
    ) -> io.TextIOWrapper: ...

    @overload
    def open(self, path: str, mode: str = "rb", **text: Any) -> IO[Any]: ...

    def open(self, path: str, mode: str = "rb", **text: Any) -> IO[Any]:
        """Opens a file for reading, like the builtin ``open``: bytes with "rb", text with "r"
        (``encoding``, ``errors``, ``newline``).

        Raises: NotFound; InvalidInput for modes that write, since a snapshot never changes.
        """

        check_mode(mode)
        found = io.BufferedReader(self.raw(path), BUFFER_BYTES)
        if "b" in mode:
            return found
        return io.TextIOWrapper(found, **{"encoding": "utf-8", **text})

    def raw(self, path: str) -> SnapshotFile:
        """Returns a file without a buffer."""

        return SnapshotFile(self, self.file(path), path)

    def file(self, path: str) -> Entry:
        """Returns the entry of a file. Raises: NotFound, InvalidInput for anything else."""
        node = self.entries.followed(_path(path))
        if node.kind != Kind.FILE:
            raise InvalidInput(f"{self}/{path} is a {_KINDS[node.kind]}, not a file")
        return node

    def control(self) -> ControlClient | None:
        """Returns the client that asks the proxy to fetch ahead; None if the proxy takes no such
        requests."""
        return self._clients.control() if self._clients.is_beside else None

    def __str__(self) -> str:
        return f"{self.repo}@{self.commit}"

    def __repr__(self) -> str:
        return f"<lodefs.Snapshot {self.repo}@{self.commit[:12]}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Snapshot) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return (_unpickled, (self._commit, self._clients.options))

    def close(self) -> None:
        """Closes its connections. They are opened again when it is used again."""
        self.cache.close()
        self._clients.close()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SnapshotFile(io.RawIOBase):
    """A file of a snapshot for Python's ``io``. It continues to work when the proxy is
    restarted."""

    def __init__(self, snapshot: Snapshot, node: Entry, name: str) -> None:
        super().__init__()
        self.name = name
        self._snapshot = snapshot
        self._node = node
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._node.size_bytes}
        if whence not in base:
            raise ValueError(f"whence {whence} is invalid")
        at = base[whence] + offset
        if at < 0:
            raise ValueError(f"a file has no position {at}")
        self._at = at
        return at

    def readinto(self, buffer: Buffer) -> int:  # type: ignore[override]  # its type is private
        if self.closed:
            raise ValueError("I/O operation on closed file")
        view = memoryview(buffer).cast("B")
        count = self._snapshot.bytes.read_into(self._node, self._at, view)
        self._at += count
        return count

    def readall(self) -> bytes:
        """Returns all bytes from the position to the end, in one piece."""
        data = self._snapshot.bytes.read(self._node, self._at, self._node.size_bytes)
        self._at += len(data)
        return data


def check_mode(mode: str) -> None:
    """Raises InvalidInput unless a mode of ``open`` only reads."""
    if set(mode) & set("wax+"):
        raise InvalidInput(f"mode {mode!r}: {READ_ONLY}")
    if mode not in ("r", "rt", "tr", "rb", "br"):
        raise InvalidInput(f"mode {mode!r} is invalid: use 'rb' or 'r'")


def open_snapshot(repo: str, rev: str, clients: ProxyClients) -> Snapshot:
    """Returns the commit that a revision is now. Raises: NotFound, Unavailable, Denied."""
    with clients.client() as client:
        return Snapshot(clients, client.snapshot(repo, rev))


def _unpickled(commit: Commit, options: ProxyOptions) -> Snapshot:
    return Snapshot(ProxyClients(options), commit)


def _path(path: str) -> bytes:
    return encoded_path(path).strip(b"/")


def _shown(path: bytes, node: Entry) -> SnapshotEntry:
    return SnapshotEntry(
        decoded_path(path),
        _KINDS[node.kind],
        node.size_bytes,
        node.digest.hex(),
        node.executable,
        decoded_path(node.target),
    )
