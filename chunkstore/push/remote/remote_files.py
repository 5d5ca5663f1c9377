"""The interface of a source that a URL names: directories of files that are read by ranges.

Implementations: s3_files.py, fsspec_files.py, dvc/dvc_files.py. Every one passes
``tests.support.chunkstore.remote_files_suite``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from blake3 import blake3

from lodefs.chunkstore.errors import Denied, InvalidInput
from lodefs.chunkstore.push.workers.source_files import FileStat, ReadCondition, show_path
from lodefs.chunkstore.types import Buffer

_HUB_COMMIT = re.compile(rb"(hf://[^@]*)@[0-9a-f]{40}(?=/|\Z)")
_URL = re.compile(rb"([A-Za-z][A-Za-z0-9+.-]*)://")
# In place of the clock when a directory was listed: states are no times, so none is too young
LISTED_NS = (1 << 63) - 1
_STATE_BITS = 61  # less than LISTED_NS by more than any clock's tick


class RemoteFile(NamedTuple):
    """One file of a listing. ``state`` changes whenever the file's bytes do, as an ETag or a
    checksum does; "" if the source cannot tell, and then the file is read at every push."""

    name: bytes
    size_bytes: int
    state: str


class Unreadable(NamedTuple):
    """A name in a listing that cannot be read, and the reason, which names it."""

    name: bytes
    reason: str


@dataclass(slots=True)
class Listing:
    """The content of one directory, in any order. Names are as the source has them, so they may be
    invalid as names of files."""

    files: list[RemoteFile]
    subdirectories: list[bytes]
    unreadable: list[Unreadable] = field(default_factory=list)


class Piece(NamedTuple):
    """Bytes of a file, with the size and the state of the whole file that they are from. If the
    file can be read in place later, ``condition`` says in which state."""

    data: Buffer
    file_size_bytes: int
    state: str
    condition: ReadCondition | None = None


class RemoteFiles(Protocol):
    """Files below one root. Paths are relative to it, and that of the root is b"". Many threads may
    read at once; one lists."""

    @property
    def url(self) -> str:
        """The URL of the root for messages, without a secret."""
        ...

    @property
    def location(self) -> str:
        """The URL that opens the same files in another process, at the same revision."""
        ...

    @property
    def survives_fork(self) -> bool:
        """Whether a process that is forked from this one can open the same files."""
        ...

    def list(self, path: bytes) -> Listing:
        """Returns what a directory holds; nothing if there is no such directory. Raises:
        Unavailable, Denied, and NotFound for the place that holds the root, such as a bucket."""
        ...

    def read(self, path: bytes, offset: int, size_bytes: int) -> Piece:
        """Returns ``size_bytes`` from ``offset`` on, or fewer at the file's end. All bytes are of
        one state of the file.

        Raises: NotFound; Denied for this file; NoAccess if no file can be read any more;
        SourceChanged if the file was changed meanwhile; Unavailable.
        """
        ...

    def find(self, path: bytes) -> RemoteFile | None:
        """Returns the file at a path (the root itself may be one); None if there is no file."""
        ...

    def holds(self, place: str) -> bool:
        """Whether the store at the URL ``place`` lies in this source, or this source in it."""
        ...

    def close(self) -> None:
        """Frees connections."""
        ...


class NoAccess(Denied):
    """The source refuses all requests, for example because the credentials have expired."""


def is_url(source: bytes | str | os.PathLike[str]) -> bool:
    """Whether a source of a push is named by a URL other than that of a local file."""
    found = _URL.match(os.fsencode(source))
    return found is not None and found[1].lower() != b"file"


def remembered_root(root: bytes) -> bytes:
    """Returns the name under which a push index remembers the files of a source. The states of a
    repository of the Hugging Face Hub mean the same at each of its commits."""
    return _HUB_COMMIT.sub(rb"\1", root)


def stat_of_state(size_bytes: int, state: str) -> FileStat:
    """Returns the numbers by which a push knows that a file has not changed. They differ between
    two states, and an unknown state is too young to be trusted."""
    if not state:
        return FileStat(size_bytes, 0, LISTED_NS, 0)
    digest = blake3(state.encode("utf-8", "surrogateescape")).digest(16)
    first = int.from_bytes(digest[:8], "little", signed=True)
    second = int.from_bytes(digest[8:], "little") >> (64 - _STATE_BITS)
    return FileStat(size_bytes, 0, second, first)


def _open_s3(url: str) -> RemoteFiles:
    from lodefs.chunkstore.push.remote.s3_files import open_s3_files

    return open_s3_files(url)


def _open_fsspec(url: str) -> RemoteFiles:
    from lodefs.chunkstore.push.remote.fsspec_files import open_fsspec_files

    return open_fsspec_files(url)


def _open_dvc(url: str) -> RemoteFiles:
    from lodefs.chunkstore.push.dvc.dvc_files import open_dvc_files

    return open_dvc_files(url)


# Sources that are read by a reader of our own
SCHEMES: dict[str, Callable[[str], RemoteFiles]] = {"s3": _open_s3, "dvc": _open_dvc}


def open_remote(url: str) -> RemoteFiles:
    """Opens the source at a URL. Raises: InvalidInput; some kinds connect, and then also Denied,
    NotFound, Unavailable."""
    try:
        url.encode()
    except UnicodeEncodeError as error:  # a word of a command line may have any bytes
        shown = show_path(os.fsencode(url))
        raise InvalidInput(f"{shown} is not UTF-8: write its other bytes as %XX in URLs") from error
    scheme = url.partition(":")[0].lower()
    return SCHEMES.get(scheme, _open_fsspec)(url)
