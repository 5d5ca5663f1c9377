"""Where packs come from when the cache lacks them: the store itself, or whoever is asked first.

Blocking, for threads of the fetch pools. Implementations: StorePacks here, PeerPacks in peers/.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from lodefs.chunkstore.errors import Corrupt, LodefsError, NotFound, Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.pack import PackIndex, unpack
from lodefs.chunkstore.nodeapi.wire import Origin
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repo.pack_reader import read_index
from lodefs.chunkstore.repo.store import require_there
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.fetch.known_damage import DamagedChunks
from lodefs.proxy.runtime.counters import Counter, Meter
from lodefs.proxy.runtime.origin import OnTransferStarted

log = logging.getLogger("lodefs.cache")


@dataclass(frozen=True, slots=True)
class PackIndexVersion:
    """A pack's index, and the ETag of the object that it was read from."""

    index: PackIndex
    etag: str


class WrongChunk(Corrupt):
    """Chunks of a pack are not what their ids say. ``number``: of the first such chunk, where that
    is known. ``is_known``: they were read before, and not now."""

    def __init__(self, message: str, number: int | None, *, is_known: bool = False) -> None:
        super().__init__(message)
        self.number = number
        self.is_known = is_known


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

    def index(self, pack_id: PackId) -> PackIndexVersion:
        """The index as it is now. Corrupt (also where there is no such pack), UnknownFormat,
        Unavailable, DeadlineExceeded, Denied."""
        ...

    def read(
        self, loaded: PackIndexVersion, first: int, count: int, begun: OnTransferStarted = _ignored
    ) -> list[Buffer]:
        """The raw bytes of consecutive chunks; ``begun`` is called when nothing but their transfer
        is waited for, at last with where they really came from. Changed where the pack was written
        again and its index is to be read anew; else as ``index``."""
        ...


def lacking(objects: ObjectStore, error: NotFound) -> LodefsError:
    """What it is that a pack is not there: damage, or a store that is gone as a whole, such as a
    directory whose file system was unmounted."""
    try:
        require_there(objects)
    except Unavailable as gone:
        return gone
    return Corrupt(f"the store lacks a pack that it refers to: {error}")


class StorePacks:
    """The store. What is known to be spoilt there is not read, and fails at once: here, so that
    peers, who may have it whole, are asked before."""

    def __init__(self, objects: ObjectStore, meter: Meter, spoilt: DamagedChunks) -> None:
        self._objects = objects
        self._meter = meter
        self._spoilt = spoilt

    @property
    def url(self) -> str:
        return self._objects.url

    def waits_for_peers(self, pack_id: PackId) -> bool:  # noqa: ARG002
        return False

    def index(self, pack_id: PackId) -> PackIndexVersion:
        """What is wrong is read once more, and then not for a while."""
        key = ("index", pack_id)
        self._spoilt.check(key)
        try:
            return self._index_twice(pack_id)
        except Corrupt as error:
            self._spoilt.note(key, error)
            raise

    def _index_twice(self, pack_id: PackId) -> PackIndexVersion:
        try:
            return self._index(pack_id)
        except Corrupt as error:
            self._meter.add(Counter.STORE_CORRUPT)
            log.warning("%s sent wrong bytes, they are read again: %s", self.url, error)
        except NotFound as error:
            raise lacking(self._objects, error) from error
        return self._index(pack_id)

    def _index(self, pack_id: PackId) -> PackIndexVersion:
        self._meter.add(Counter.INDEXES_READ)
        return PackIndexVersion(*read_index(self._objects, pack_id))

    def read(
        self, loaded: PackIndexVersion, first: int, count: int, begun: OnTransferStarted = _ignored
    ) -> list[Buffer]:
        """One ranged GET. WrongChunk."""
        index = loaded.index
        known = self._spoilt.find(index.pack_id, first, first + count)
        if known is not None:
            number = known.first if known.end == known.first + 1 else None
            raise WrongChunk(known.why, number, is_known=True)
        begun(Origin.STORE)
        key = keys.pack(index.pack_id)
        start = index.offsets[first]
        size_bytes = index.offsets[first + count] - start
        self._meter.add(Counter.FETCHES)
        try:
            part = self._objects.get(key, offset=start, size=size_bytes, if_match=loaded.etag)
        except NotFound as error:
            raise lacking(self._objects, error) from error
        if len(part.data) != size_bytes:
            raise Corrupt(f"{key} is cut off: {size_bytes} bytes at {start} are not there")
        self._meter.add(Counter.FETCHED_BYTES, size_bytes)
        view = memoryview(part.data)
        raws: list[Buffer] = []  # their number tells which one failed
        try:
            for place in index.places(first, count):
                stored = view[place.offset - start :][: place.stored_size_bytes]
                raws.append(unpack(place, stored))
        except Corrupt as error:
            what = f"{key}, chunks {first} to {first + count - 1}: {error}"
            raise WrongChunk(what, first + len(raws)) from error
        return raws
