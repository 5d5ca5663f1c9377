"""Packs that an S3 server copies itself, from one of its buckets to another.

Their index is read here, before and after. Of their chunks the server vouches: by the ETag, which
is the MD5 of what a put has brought; where the copy has another one, or one that is no MD5, all of
it is read back and checked (docs/decisions/0052).
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
from lodefs.chunkstore.objects.interface import ObjectStore, ServerCopy
from lodefs.chunkstore.objects.pack_locations import place_of
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion, read_index
from lodefs.chunkstore.transfer.pack_copy import fetch_pack, md5_of


class ServerCopies:
    """Packs of one store that its server copies to another one, until it refuses to. For any
    thread."""

    def __init__(self, source: ObjectStore, destination: ObjectStore, server: ServerCopy) -> None:
        self.packs = 0  # that were copied so
        self._source = source
        self._destination = destination
        self._server = server
        self._is_refused = False
        self._lock = Lock()  # guards the count

    def copy(self, pack_id: PackId, purged: Collection[ChunkId]) -> PackIndex | None:
        """The index of a pack that was copied; None if it has to be read here, and put. Raises:
        Unavailable; UnknownFormat; what the stores raise."""
        if self._is_refused:
            return None
        try:
            version = read_index(self._source, pack_id)
            if not can_be_copied(version, purged):
                return None
            etag = self._copied(pack_id, version.etag)
        except (Changed, Corrupt, NotFound):  # the copy through here tries again, or says so
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
            error.add_note("the server was to copy it itself; with --check it would pass here")
            raise

    def _is_copy(self, pack_id: PackId, original: PackIndexVersion, etag: str) -> bool:
        try:
            copied = read_index(self._destination, pack_id)
            if etag != original.etag or md5_of(etag) is None:  # by a key of another bucket, say
                fetch_pack(self._destination, pack_id)
        except (Changed, Corrupt, NotFound):
            return False
        return _columns(copied.index) == _columns(original.index)


def _columns(index: PackIndex) -> tuple[bytes, bytes]:
    """What the pack's id does not cover."""
    return index.codecs, index.stored_sizes.tobytes()


def can_be_copied(version: PackIndexVersion, purged: Collection[ChunkId]) -> bool:
    """Whether a pack, over whatever is at its key in the other store, takes nothing away and
    brings nothing back: it has an object of its own, all of its chunks, and none that was purged
    there."""
    index = version.index
    return (
        place_of(version.etag) is None
        and not index.has_gone
        and not (purged and index.held(purged))
    )
