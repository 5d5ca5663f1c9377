"""Trees: the entries of one directory, their digest, and their stored form."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from chunkstore.names import Digest, PackId


class Kind(IntEnum):
    """What an entry is. The numbers stand in formats."""

    FILE = 1
    DIRECTORY = 2
    SYMLINK = 3


class Segment(NamedTuple):
    """A run of consecutive chunks of one pack."""

    pack: PackId
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a directory.

    A file: ``size_bytes`` and ``digest`` of its content, ``segments`` where that lies (none for an
    empty file). A directory: ``size_bytes`` of its tree's stored form, ``digest`` of its tree,
    ``segments`` where the stored form lies. A symlink: ``target``, its size, and its digest
    (BLAKE3 of the target); no segments.
    """

    name: bytes
    kind: Kind
    executable: bool = False
    size_bytes: int = 0
    digest: Digest = Digest(b"")
    segments: tuple[Segment, ...] = ()
    target: bytes = b""
