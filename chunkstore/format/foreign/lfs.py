"""Git LFS in a store: where the objects and locks of a Git repository lie.

Objects are files of the branch OBJECTS, named as Git LFS names them below ``.git/lfs/objects``.
Locks are files of the branch LOCKS, one document of JSON each.
Source: https://github.com/git-lfs/git-lfs, docs/spec.md and docs/api.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import digest_of

MEDIA = "application/vnd.git-lfs+json"
OBJECTS, LOCKS = "lfs-objects", "lfs-locks"  # branches
PATH_BYTES_MAX = 4096
POINTER_BYTES_MAX = 1024  # what is as long as this, or longer, is no pointer
_OID = re.compile(r"[0-9a-f]{64}\Z")
_POINTER = re.compile(
    rb"version https://(?:git-lfs\.github\.com|hawser\.github\.com)/spec/v1\n"
    rb"oid sha256:([0-9a-f]{64})\nsize (0|[1-9][0-9]{0,18})\n?\Z"
)


class Pointer(NamedTuple):
    """The object that a file in a Git repository stands for."""

    oid: str
    size_bytes: int


class Action(msgspec.Struct, frozen=True, omit_defaults=True):
    """The next request of a client about an object, as a server says it."""

    href: str
    header: dict[str, str] = {}


class Owner(msgspec.Struct, frozen=True):
    """Who holds a lock: the name of a token."""

    name: str


class Lock(msgspec.Struct, frozen=True):
    """A lock of one path of a Git repository, as clients see it. ``locked_at`` is in RFC 3339."""

    id: str
    path: str
    locked_at: str
    owner: Owner


def check_oid(oid: str) -> str:
    """Returns the id of an object, a SHA-256. Raises: InvalidInput."""
    if not _OID.match(oid):
        raise InvalidInput(f"the id of an object has 64 hex digits in lower case, not {oid[:80]!r}")
    return oid


def encode_pointer(pointer: Pointer) -> bytes:
    """Returns the file that Git keeps for an object. Source: the specification of Git LFS."""
    first = "version https://git-lfs.github.com/spec/v1"
    return f"{first}\noid sha256:{pointer.oid}\nsize {pointer.size_bytes}\n".encode()


def parse_pointer(data: bytes) -> Pointer | None:
    """Returns the pointer that a file in Git is; None for any other file."""
    found = _POINTER.match(data) if len(data) < POINTER_BYTES_MAX else None
    return None if found is None else Pointer(found[1].decode(), int(found[2]))


def object_path(oid: str) -> str:
    """Returns the path of an object in the branch OBJECTS."""
    return f"{oid[:2]}/{oid[2:4]}/{oid}"


def lock_id(path: str) -> str:
    """Returns the id of the lock of a path, and its name in the branch LOCKS. Raises:
    InvalidInput."""
    data = path.encode("utf-8", "surrogatepass")
    if not 0 < len(data) <= PATH_BYTES_MAX:
        raise InvalidInput(f"the path of a lock has 1 to {PATH_BYTES_MAX} bytes")
    return digest_of(data).hex()
