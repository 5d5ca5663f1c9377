"""Sources of packs that the cache lacks: the store, or peers that are asked before it.

Blocking, for threads of the fetch pools. Implementations: StorePacks here, PeerPacks in peers/.
"""

from __future__ import annotations

import logging
from typing import Protocol

from lodefs.chunkstore.errors import Corrupt, LodefsError, NotFound, Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.pack import WrongChunk, unpack_chunks
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.objects.mirrored import report_corruption
from lodefs.chunkstore.protocol.wire import Origin
from lodefs.chunkstore.repo.pack_reader import LostPack, PackIndexVersion, read_index, read_stored
from lodefs.chunkstore.repo.store import require_there
from lodefs.proxy.cache.extents import Run
from lodefs.proxy.fetch.cache_write import CacheWrite, FetchResult, RawChunks
from lodefs.proxy.fetch.data_plane import DataPlane
from lodefs.proxy.fetch.known_damage import DamagedChunks
from lodefs.proxy.metrics.counters import Counter, Counts
from lodefs.proxy.tracing.spans import SpanKind, spanned
from lodefs.proxy.tracing.traced_objects import store_attributes

log = logging.getLogger("lodefs.cache")


class KnownWrongChunk(WrongChunk):
    """The chunks were wrong when they were read before, and are not read now."""


class FillListener:
    """Learns how far the fetch of a unit is; this one ignores it. For any thread."""

    __slots__ = ()
    wanted = range(0)  # the chunks to return copies of

    def arrived(self, chunks: RawChunks) -> None:
        """Notes that only the transfer is left, and verified chunks whose bytes have come, if the
        source sees them come."""

    def stopped(self) -> None:
        """Notes that the source has failed: nothing comes until ``arrived`` is called again."""

    def received(self, chunks: RawChunks, origin: Origin | None) -> None:
        """Notes that all chunks are in memory, and are written next, which may take long."""

    def passes_to(self, address: str) -> bool:  # noqa: ARG002
        """Whether this node sends the chunks to the node at that address as they come."""
        return False

    def asks(self, addresses: frozenset[str]) -> None:
        """Notes the nodes that are asked for the chunks now: they may not wait for this one."""


NOBODY = FillListener()


class PackSource(Protocol):
    """Packs' indexes and chunks, all verified. For any thread."""

    @property
    def url(self) -> str:
        """Its name for messages."""

    def waits_for_peers(self, pack_id: PackId) -> bool:
        """Whether other nodes are asked for the pack before the store."""

    def reads_for_peers(self, pack_id: PackId) -> bool:
        """Whether other nodes ask this one for the pack before the store."""

    def index(self, pack_id: PackId, ahead: range = range(0)) -> PackIndexVersion:
        """Returns the current index. ``ahead``: chunks that will be read soon, which the node that
        reads the pack for others may fetch meanwhile. Raises: Corrupt, also if there is no such
        pack; UnknownFormat, Unavailable, DeadlineExceeded, Denied."""

    def read(
        self,
        pack_index: PackIndexVersion,
        first: int,
        count: int,
        listener: FillListener = NOBODY,
        write: CacheWrite | None = None,
    ) -> FetchResult:
        """Reads consecutive chunks into memory. With ``write``, data processes may write them to
        the cache instead: then there are extents, and nothing is in memory.

        Raises: Changed if the pack was rewritten, so that its index must be read again; the errors
        of ``index``.
        """


def lacking(objects: ObjectStore, error: NotFound | LostPack) -> LodefsError:
    """Returns the error for a missing pack: damage, or a store that is gone as a whole, such as a
    directory whose file system was unmounted."""
    try:
        require_there(objects)
    except Unavailable as gone:
        return gone
    return Corrupt(f"the store lacks a pack that it refers to: {error}")


class StorePacks:
    """The store. Reads of bytes that are known to be damaged fail at once. That is checked here, so
    that peers, which may have good copies, are asked first."""

    def __init__(
        self,
        objects: ObjectStore,
        counts: Counts,
        damaged_chunks: DamagedChunks,
        plane: DataPlane | None = None,
    ) -> None:
        """``plane`` fetches chunks to the cache without this process reading them."""
        self._objects = objects
        self._counts = counts
        self._damaged_chunks = damaged_chunks
        self._plane = plane

    @property
    def url(self) -> str:
        return self._objects.url

    def waits_for_peers(self, pack_id: PackId) -> bool:  # noqa: ARG002
        return False

    def reads_for_peers(self, pack_id: PackId) -> bool:  # noqa: ARG002
        return False

    def index(self, pack_id: PackId, ahead: range = range(0)) -> PackIndexVersion:  # noqa: ARG002
        """Returns the index. A wrong one is read once more, and then not for a while."""
        key = ("index", pack_id)
        self._damaged_chunks.check(key)
        try:
            return self._index_twice(pack_id)
        except Corrupt as error:
            self._damaged_chunks.note(key, error)
            raise

    def _index_twice(self, pack_id: PackId) -> PackIndexVersion:
        try:
            return self._index(pack_id)
        except Corrupt as error:
            self._counts.add(Counter.STORE_CORRUPT)
            report_corruption(self._objects, keys.pack(pack_id))
            log.warning("%s sent wrong bytes, which are read again: %s", self.url, error)
        except NotFound as error:
            raise lacking(self._objects, error) from error
        return self._index(pack_id)

    def _index(self, pack_id: PackId) -> PackIndexVersion:
        self._counts.add(Counter.INDEXES_READ)
        return read_index(self._objects, pack_id)

    def read(
        self,
        pack_index: PackIndexVersion,
        first: int,
        count: int,
        listener: FillListener = NOBODY,
        write: CacheWrite | None = None,
    ) -> FetchResult:
        """Reads with one ranged GET, of a data process if one can write the chunks to the cache.
        Raises: WrongChunk."""
        self._check(pack_index, first, count)
        listener.arrived({})
        try:
            plane = self._plane
            if write and plane and plane.takes(pack_index, first, count, write):
                extents = self._by_plane(plane, pack_index, first, count, write)
                if extents is not None:
                    return FetchResult(extents, origin=Origin.STORE)
            return FetchResult(memory=self._read(pack_index, first, count), origin=Origin.STORE)
        except WrongChunk:
            report_corruption(self._objects, keys.pack(pack_index.index.pack_id), pack_index.etag)
            raise

    def _read(self, pack_index: PackIndexVersion, first: int, count: int) -> RawChunks:
        self._counts.add(Counter.FETCHES)
        try:
            stored = read_stored(self._objects, pack_index, first, count)
        except NotFound as error:
            raise lacking(self._objects, error) from error
        self._counts.add(Counter.FETCHED_BYTES, len(stored))
        raws = unpack_chunks(pack_index.index, first, count, stored)
        return {n: raw for n, raw in enumerate(raws, first) if raw}

    def _by_plane(
        self,
        plane: DataPlane,
        pack_index: PackIndexVersion,
        first: int,
        count: int,
        write: CacheWrite,
    ) -> list[Run] | None:
        """Returns where a data process wrote the chunks; None if none did."""
        attributes = store_attributes(self.url, "get", keys.pack(pack_index.index.pack_id))
        with spanned("store.get", SpanKind.CLIENT, attributes) as span:
            written = plane.fetch(pack_index, first, count, write)
            span.note({"http.response.body.size": written.received_bytes if written else 0})
            if written is None:
                span.drop()  # nothing was requested
                return None
        self._counts.add(Counter.FETCHES)
        self._counts.add(Counter.FETCHED_BYTES, written.received_bytes)
        return written.extents

    def _check(self, pack_index: PackIndexVersion, first: int, count: int) -> None:
        """Raises: KnownWrongChunk."""
        known = self._damaged_chunks.find(pack_index.index.pack_id, first, first + count)
        if known is not None:
            number = known.first if known.end == known.first + 1 else None
            raise KnownWrongChunk(known.why, number)
