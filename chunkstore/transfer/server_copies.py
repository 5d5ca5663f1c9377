"""Packs that an S3 server copies by itself, from one of its buckets to another.

lodefs reads their index, before and after. For their chunks it relies on the server: the ETag is
the MD5 of what a put has sent. If the copy has another ETag, or one that is not an MD5, lodefs
reads all of the pack back and checks it (docs/decisions/0052).
"""

from __future__ import annotations

from collections.abc import Collection
from threading import Lock

from lodefs.chunkstore.errors import (
    Changed,
    Corrupt,
    Denied,
    InvalidInput,
    NotFound,
    Unavailable,
    Unsupported,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import ChunkId, PackId
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.objects.in_place.virtual_packs import is_virtual_etag
from lodefs.chunkstore.objects.interface import ObjectStore, ServerCopy
from lodefs.chunkstore.objects.pack_locations import place_of
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion, read_index
from lodefs.chunkstore.transfer.pack_copy import fetch_pack, md5_of


class ServerCopies:
    """Has a store's server copy packs to another store, until it refuses. For any thread."""

    def __init__(self, source: ObjectStore, destination: ObjectStore, server: ServerCopy) -> None:
        self.packs = 0  # packs that the server copied
        self._source = source
        self._destination = destination
        self._server = server
        self._is_refused = False
        self._lock = Lock()  # guards the count

    def copy(self, pack_id: PackId, purged: Collection[ChunkId]) -> PackIndex | None:
        """Returns the index of a pack that the server copied; None if it must be read and put by
        this machine. Raises: Unavailable; UnknownFormat; what the stores raise."""
        if self._is_refused:
            return None
        try:
            version = read_index(self._source, pack_id)
            if not can_be_copied(version, purged):
                return None
            etag = self._copied(pack_id, version.etag)
        except (Changed, Corrupt, NotFound):  # the copy through this machine tries again, or raises
            return None
        except (Denied, InvalidInput, Unsupported):
            self._is_refused = True
            return None
        if not self._is_copy(pack_id, version, etag):
            return None
        with self._lock:
            self.packs += 1
        return version.index

    def _copied(self, pack_id: PackId, etag: str) -> str:
        try:
            return self._server.copy(keys.pack(pack_id), etag)
        except Unavailable as error:
            error.add_note("the server should have copied it; with --check, lodefs copies it")
            raise

    def _is_copy(self, pack_id: PackId, original: PackIndexVersion, etag: str) -> bool:
        try:
            copied = read_index(self._destination, pack_id)
            # For example, with the key of another bucket
            if etag != original.etag or md5_of(etag) is None:
                fetch_pack(self._destination, pack_id)
        except (Changed, Corrupt, NotFound):
            return False
        return _columns(copied.index) == _columns(original.index)


def _columns(index: PackIndex) -> tuple[bytes, bytes]:
    """Returns the parts of an index that the pack's id does not cover."""
    return index.codecs, index.stored_sizes.tobytes()


def can_be_copied(version: PackIndexVersion, purged: Collection[ChunkId]) -> bool:
    """Whether a server-side copy of a pack over whatever is at its key in the other store removes
    nothing and brings nothing back: it has an object of its own, all of its chunks, and none that
    was purged there."""
    index = version.index
    return (
        place_of(version.etag) is None
        and not is_virtual_etag(version.etag)
        and not index.has_gone
        and not (purged and index.held(purged))
    )
