"""The interface of an object store: what lodefs needs of S3, a directory, or memory.

Implementations: directory.py, s3.py. Wrappers (of delegating.py): retrying.py, limiting.py,
observing.py. Every one passes ``tests.support.chunkstore.object_store_suite``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from lodefs.chunkstore.errors import InvalidInput, NotFound, TooLarge
from lodefs.chunkstore.types import Buffer

KEY_CHARS_MAX = 900  # S3 takes 1024 bytes, the store's own prefix included
_KEY = re.compile(r"(?!\.)[A-Za-z0-9._-]+(/(?!\.)[A-Za-z0-9._-]+)*\Z")
_PREFIX = re.compile(r"((?!\.)[A-Za-z0-9._-]+/)*((?!\.)[A-Za-z0-9._-]+)?\Z")


def check_key(key: str) -> str:
    """The key of an object, or InvalidInput: no '..', no empty part, none that begins with '.'."""
    if len(key) > KEY_CHARS_MAX or not _KEY.match(key):
        raise InvalidInput(
            f"{key!r} is not an object's key: use letters, digits, '.', '_' and '-', in parts "
            f"joined by '/', none of which begins with '.', at most {KEY_CHARS_MAX} characters"
        )
    return key


def check_prefix(prefix: str) -> str:
    """The beginning of keys, maybe empty, or InvalidInput."""
    if len(prefix) > KEY_CHARS_MAX or not _PREFIX.match(prefix):
        raise InvalidInput(f"{prefix!r} is not the beginning of an object's key")
    return prefix


class NoSuchBucket(NotFound):
    """There is not even the bucket that a store would be in."""


class ObjectInfo(msgspec.Struct, frozen=True):
    """One object of a listing. ``etag`` changes whenever the object's bytes do."""

    key: str
    size_bytes: int
    etag: str


class Part(msgspec.Struct, frozen=True):
    """Bytes of an object, and the size and ETag of the whole."""

    data: Buffer
    object_size_bytes: int
    etag: str


class Md5Buffers(list[Buffer]):
    """Buffers for ``put`` the MD5 of whose joined bytes somebody has said. A server may check them
    by it; if it is another one, they are put as any.

    After AlreadyExists, what lies at the key may come from this very put, to a server that damaged
    it and did not check: it is to be read."""

    def __init__(self, buffers: Iterable[Buffer], md5: bytes) -> None:
        super().__init__(buffers)
        self.md5 = md5


class ObjectStore(Protocol):
    """Flat keys to bytes. Safe for use by many threads at once.

    Keys are relative, of ASCII letters, digits and ``/._-``; see check_key, which all of them use
    (InvalidInput). Every method may raise Unavailable (try again), DeadlineExceeded, Denied. An
    object is seen whole or not at all.
    """

    @property
    def url(self) -> str:
        """Where it is, for people: ``s3://bucket/prefix``, a path. Never holds a secret."""
        ...

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        """``size`` bytes from ``offset``; a negative offset counts from the end (from the beginning
        if the object is shorter). Fewer bytes come back only at the object's end; none for an
        offset at or past it. However large the object is, no more than ``size`` bytes of it are
        held: see read_whole for objects that are read as a whole.

        Raises: NotFound; Changed if ``if_match`` is given and is not the object's ETag now.
        """
        ...

    def head(self, key: str) -> ObjectInfo:
        """Size and ETag. Raises: NotFound."""
        ...

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        """Writes the joined buffers as one object and gives its ETag; on return it is durable.

        Raises: AlreadyExists if ``if_absent`` is set and the key is taken: of many at once, one
        wins. The buffers are not kept after the call.
        """
        ...

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        """Objects whose key starts with ``prefix`` and is greater than ``after``, in the order of
        their keys' bytes, at most ``limit``."""
        ...

    def delete(self, key: str) -> None:
        """Removes the object; nothing happens if there is none."""
        ...

    def close(self) -> None:
        """Frees connections. The store is not used afterwards."""
        ...


class ServerCopy(Protocol):
    """Copies objects of one store to another one by requests to the server of both, so that no byte
    of them comes here. Safe for many threads."""

    def copy(self, key: str, if_match: str) -> str:
        """Copies an object, as it is at an ETag, to the same key there, and gives the copy's ETag.

        What arrives is to be looked at: a server may not know all of the request. Raises: NotFound
        if there is no such object; Changed if it has another ETag, or something is at the key
        there, where the server knows these conditions; Unavailable, Denied, and InvalidInput or
        Unsupported where a server does not copy.
        """
        ...

    def close(self) -> None:
        """Frees connections."""
        ...


def read_whole(objects: ObjectStore, key: str, size_bytes_max: int) -> Part:
    """A whole object of at most ``size_bytes_max``, the bound of its format.

    TooLarge names key, size and bound, and no more than the bound is held until then; errors as of
    ``get``.
    """
    part = objects.get(key, offset=0, size=size_bytes_max)
    check_size(key, part.object_size_bytes, size_bytes_max)
    return part


def exists(objects: ObjectStore, key: str) -> bool:
    """Whether there is an object at a key. Raises what the store does."""
    try:
        objects.head(key)
    except NotFound:
        return False
    return True


def check_size(key: str, size_bytes: int, size_bytes_max: int) -> None:
    """Raises: TooLarge if an object has more bytes than its format allows."""
    if size_bytes > size_bytes_max:
        raise TooLarge(
            f"{key} has {size_bytes} bytes; no object of its kind has more than {size_bytes_max}: "
            "it is damaged, or was not written by lodefs"
        )
