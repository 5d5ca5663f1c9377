"""The interface of an object store: what lodefs needs from S3, a directory, or memory.

Implementations: directory.py, s3/store.py, clouds/http_objects.py. Wrappers, which extend
delegating.py: retrying.py, limiting.py, observing.py. Every one passes
``tests.support.chunkstore.object_store_suite``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from lodefs.chunkstore.errors import InvalidInput, NotFound, TooLarge
from lodefs.chunkstore.types import Buffer

KEY_CHARS_MAX = 900  # S3 takes 1024 bytes, including the store's prefix
_KEY = re.compile(r"(?!\.)[A-Za-z0-9._-]+(/(?!\.)[A-Za-z0-9._-]+)*\Z")
_PREFIX = re.compile(r"((?!\.)[A-Za-z0-9._-]+/)*((?!\.)[A-Za-z0-9._-]+)?\Z")


def check_key(key: str) -> str:
    """Returns a valid key: no '..', no empty part, and none that begins with '.'. Raises:
    InvalidInput."""
    if len(key) > KEY_CHARS_MAX or not _KEY.match(key):
        raise InvalidInput(
            f"{key!r} is not an object's key: use letters, digits, '.', '_' and '-', in parts "
            f"joined by '/', none of which begins with '.', at most {KEY_CHARS_MAX} characters"
        )
    return key


def check_prefix(prefix: str) -> str:
    """Returns a valid prefix of keys, which may be empty. Raises: InvalidInput."""
    if len(prefix) > KEY_CHARS_MAX or not _PREFIX.match(prefix):
        raise InvalidInput(f"{prefix!r} is not the beginning of an object's key")
    return prefix


class NoSuchBucket(NotFound):
    """Even the bucket of the store does not exist."""


class ObjectInfo(msgspec.Struct, frozen=True):
    """One object of a list. ``etag`` changes whenever the object's bytes do. An archived object
    (Glacier) cannot be read until somebody restores it."""

    key: str
    size_bytes: int
    etag: str
    is_archived: bool = False


class Part(msgspec.Struct, frozen=True):
    """Bytes of an object, and the size and ETag of the whole; its version id, if its store keeps
    versions."""

    data: Buffer
    object_size_bytes: int
    etag: str
    version: str = ""


class Md5Buffers(list[Buffer]):
    """Buffers for ``put`` that come with the MD5 of their joined bytes. A server may check them by
    it. If it is wrong, they are put without it.

    After AlreadyExists, the object at the key may come from this very put, to a server that damaged
    it without a check: read it."""

    def __init__(self, buffers: Iterable[Buffer], md5: bytes) -> None:
        super().__init__(buffers)
        self.md5 = md5


class ObjectStore(Protocol):
    """Maps flat keys to bytes. Many threads may use it at once.

    Keys are relative, of ASCII letters, digits and ``/._-``; all implementations use check_key
    (InvalidInput). Every method may raise Unavailable (try again), DeadlineExceeded, Denied. An
    object is visible completely or not at all.
    """

    @property
    def url(self) -> str:
        """Its location for messages: ``s3://bucket/prefix``, ``gs://``, ``az://``, or a path. It
        never has a secret."""
        ...

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        """Returns ``size`` bytes from ``offset``. A negative offset counts from the end (from the
        beginning if the object is shorter). It returns fewer bytes only at the object's end, and
        none for an offset at or after it. It never holds more than ``size`` bytes, however large
        the object is; read_whole reads whole objects.

        Raises: NotFound; Changed if ``if_match`` is given and is not the object's ETag now.
        """
        ...

    def head(self, key: str) -> ObjectInfo:
        """Returns size and ETag. Raises: NotFound."""
        ...

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        """Writes the joined buffers as one object and returns its ETag. It is durable on return.

        Raises: AlreadyExists if ``if_absent`` is set and the key is taken: of many at once, one
        wins. It does not keep the buffers.
        """
        ...

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        """Yields at most ``limit`` objects whose key starts with ``prefix`` and is greater than
        ``after``, in the order of their keys' bytes."""
        ...

    def delete(self, key: str) -> None:
        """Removes the object, if there is one."""
        ...

    def close(self) -> None:
        """Frees connections. The store must not be used afterwards."""
        ...


class ServerCopy(Protocol):
    """Copies objects between stores by requests to the server of both, so that no bytes pass
    through this machine. Many threads may use it at once."""

    def copy(self, key: str, if_match: str) -> str:
        """Copies an object with a given ETag to the same key there. Returns the copy's ETag.

        Check the copy: a server may not know all parts of the request. Raises: NotFound if there is
        no such object; Changed if it has another ETag, or the key there is taken, on servers that
        know these conditions; Unavailable, Denied, and InvalidInput or Unsupported if the server
        does not copy.
        """
        ...

    def close(self) -> None:
        """Frees connections."""
        ...


def read_whole(objects: ObjectStore, key: str, size_bytes_max: int) -> Part:
    """Returns a whole object of at most ``size_bytes_max``, the bound of its format.

    Raises: TooLarge, which names key, size and bound; what ``get`` raises. It never holds more than
    the bound.
    """
    part = objects.get(key, offset=0, size=size_bytes_max)
    check_size(key, part.object_size_bytes, size_bytes_max)
    return part


def exists(objects: ObjectStore, key: str) -> bool:
    """Whether there is an object at a key. Raises: what the store raises."""
    try:
        objects.head(key)
    except NotFound:
        return False
    return True


def check_size(key: str, size_bytes: int, size_bytes_max: int) -> None:
    """Raises: TooLarge if an object has more bytes than its format allows."""
    if size_bytes > size_bytes_max:
        raise TooLarge(
            f"{key} has {size_bytes} bytes; objects of its kind have at most {size_bytes_max}: "
            "it is damaged, or was not written by lodefs"
        )
