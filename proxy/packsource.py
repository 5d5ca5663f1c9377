"""Where packs come from when the cache lacks them: the store itself, or whoever is asked first.

Blocking, for threads of the fetch pools. Implementations: StorePacks here, PeerPacks in peers/.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from chunkstore import keys
from chunkstore.errors import Corrupt, LodefsError, NotFound, Unavailable
from chunkstore.names import PackId
from chunkstore.objects import Buffer, ObjectStore
from chunkstore.pack import PackIndex, read_index, unpack
from chunkstore.store import require_there
from chunkstore.wire import Origin
from proxy.meter import Counter, Meter
from proxy.origins import Begun

log = logging.getLogger("lodefs.cache")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A pack's index, and the ETag of the object that it was read from."""

    index: PackIndex
    etag: str


def _ignored(_origin: Origin) -> None:
    """Nobody wants to know."""


class PackSource(Protocol):
    """Packs' indexes and chunks. Whatever is handed out is verified. For any thread."""

    @property
    def url(self) -> str:
        """What stands for it in messages."""
        ...

    def waits_for_peers(self, pack_id: PackId) -> bool:
        """Whether other nodes are asked for the pack before the store is."""
        ...

    def index(self, pack_id: PackId) -> Loaded:
        """The index as it is now. Corrupt (also where there is no such pack), UnknownFormat,
        Unavailable, DeadlineExceeded, Denied."""
        ...

    def read(self, loaded: Loaded, first: int, count: int, begun: Begun = _ignored) -> list[Buffer]:
        """The raw bytes of consecutive chunks; ``begun`` is called when nothing but their transfer
        is waited for, at last with where they really came from. Changed where the pack was written
        again and its index is to be read anew; else as ``index``."""
        ...


class StorePacks:
    """The store."""

    def __init__(self, objects: ObjectStore, meter: Meter) -> None:
        self._objects = objects
        self._meter = meter

    @property
    def url(self) -> str:
        return self._objects.url

    def waits_for_peers(self, pack_id: PackId) -> bool:  # noqa: ARG002
        return False

    def index(self, pack_id: PackId) -> Loaded:
        """What is wrong is read once more."""
        try:
            return self._index(pack_id)
        except Corrupt as error:
            self._meter.add(Counter.STORE_CORRUPT)
            log.warning("%s sent wrong bytes, they are read again: %s", self.url, error)
        except NotFound as error:
            raise self._lacking(error) from error
        return self._index(pack_id)

    def _lacking(self, error: NotFound) -> LodefsError:
        """What it is that a pack is not there: damage, or a store that is gone as a whole, such
        as a directory whose file system was unmounted."""
        try:
            require_there(self._objects)
        except Unavailable as gone:
            return gone
        return Corrupt(f"the store lacks a pack that it refers to: {error}")

    def _index(self, pack_id: PackId) -> Loaded:
        self._meter.add(Counter.INDEXES_READ)
        return Loaded(*read_index(self._objects, pack_id))

    def read(self, loaded: Loaded, first: int, count: int, begun: Begun = _ignored) -> list[Buffer]:
        """One ranged GET."""
        begun(Origin.STORE)
        index = loaded.index
        key = keys.pack(index.pack_id)
        start = index.offsets[first]
        size_bytes = index.offsets[first + count] - start
        self._meter.add(Counter.FETCHES)
        try:
            part = self._objects.get(key, offset=start, size=size_bytes, if_match=loaded.etag)
        except NotFound as error:
            raise self._lacking(error) from error
        if len(part.data) != size_bytes:
            raise Corrupt(f"{key} is cut off: {size_bytes} bytes at {start} are not there")
        self._meter.add(Counter.FETCHED_BYTES, size_bytes)
        view = memoryview(part.data)
        try:
            return [
                unpack(place, view[place.offset - start :][: place.stored_size_bytes])
                for place in index.places(first, count)
            ]
        except Corrupt as error:
            raise Corrupt(f"{key}, chunks {first} to {first + count - 1}: {error}") from error
