"""A set of files and directories, by their contents and where these are stored."""

from __future__ import annotations

import secrets

import msgspec
from blake3 import blake3

from lodefs.chunkstore.format.names import Digest
from lodefs.chunkstore.format.tree import Segment, TreeEntry
from lodefs.chunkstore.repo.disk_key_set import KEY_BYTES, DiskKeySet

IN_MEMORY_MAX = 50_000  # entries; further ones go to temporary files

Stored = tuple[Digest, int, tuple[Segment, ...]]
"""A content, and where it is stored. Entries with different names may share it."""


def stored(entry: TreeEntry) -> Stored:
    """Returns what an entry shares with equal entries that are stored in the same place."""
    return entry.digest, entry.size_bytes, entry.segments


class EntrySet:
    """A set of very many entries. Each content counts once for each place. For one thread; closed
    at the end of its block. Raises what DiskKeySet raises."""

    def __init__(self) -> None:
        self._recent: set[Stored] = set()
        self._older = DiskKeySet()
        self._key = secrets.token_bytes(32)  # a secret, so that nobody can craft collisions

    def __enter__(self) -> EntrySet:
        return self

    def __exit__(self, *_: object) -> None:
        self._older.close()

    def __contains__(self, entry: TreeEntry) -> bool:
        what = stored(entry)
        return what in self._recent or self._is_older(what)

    def add(self, entry: TreeEntry) -> bool:
        """Adds an entry. Returns whether it is new."""
        what = stored(entry)
        if what in self._recent or self._is_older(what):
            return False
        self._recent.add(what)
        if len(self._recent) == IN_MEMORY_MAX:
            for one in self._recent:
                self._older.add(self._short(one))
            self._recent.clear()
        return True

    def _is_older(self, what: Stored) -> bool:
        return bool(self._older) and self._short(what) in self._older

    def _short(self, what: Stored) -> bytes:
        return blake3(msgspec.msgpack.encode(what), key=self._key).digest(length=KEY_BYTES)
