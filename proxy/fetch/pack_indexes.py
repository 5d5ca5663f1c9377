"""The indexes of packs: in memory, in the node's index, or from elsewhere; each is loaded once."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.kv import KeyValues, Row
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.proxy.fetch.pack_source import PackSource
from lodefs.proxy.runtime.shared_tasks import SharedTasks
from lodefs.proxy.runtime.thread_pools import Pools

log = logging.getLogger("lodefs.cache")

CHUNKS_MAX = 512 * 1024  # in all indexes in memory together; about 80 bytes each
ROWS_SIZE_BYTES_MAX = 1024 * 1024 * 1024  # in the node's index: enough for some 24,000 packs
_ROWS_SIZE_BYTES = layout.figure_key("pack_rows_size_bytes")


class PackIndexes:
    """Finds the indexes of packs. Coroutines are for the event loop; other methods are for any
    thread."""

    def __init__(
        self,
        packs: PackSource,
        origin: PackSource,
        kv: KeyValues,
        pools: Pools,
        *,
        deadline_s: float,
        chunks_max: int = CHUNKS_MAX,
        rows_size_bytes_max: int = ROWS_SIZE_BYTES_MAX,
    ) -> None:
        self._packs = packs
        self._origin = origin
        self._kv = kv
        self._pools = pools
        self._deadline_s = deadline_s
        self._chunks_max = chunks_max
        self._rows_size_bytes_max = rows_size_bytes_max
        self._lock = threading.Lock()  # guards the fields below
        self._loaded: OrderedDict[PackId, PackIndexVersion] = OrderedDict()
        self._chunks = 0
        self._rows_size_bytes = int.from_bytes(kv.get(_ROWS_SIZE_BYTES) or b"", "little")
        # Event loop only. A load that no peer may delay does not join one that peers answer, and an
        # announcement does not join one of other chunks.
        self._loads: SharedTasks[tuple[PackId, bool, range], PackIndexVersion] = SharedTasks()

    def in_memory(self, pack_id: PackId) -> PackIndexVersion | None:
        """Returns the index if that needs no waiting."""
        return self._loaded.get(pack_id)

    async def get(self, pack_id: PackId, *, from_origin: bool = False) -> PackIndexVersion:
        """Returns the index, from wherever it is. Concurrent callers load it once. Loading has a
        deadline. ``from_origin``: no peer is asked. Raises: Corrupt, UnknownFormat, Unavailable,
        DeadlineExceeded, Denied."""
        found = self._loaded.get(pack_id)
        if found is not None:
            return found
        asks_peers = not from_origin and self._packs.waits_for_peers(pack_id)
        key = (pack_id, asks_peers, range(0))
        return await self._loads.run(key, lambda: self._load(pack_id, from_origin=from_origin))

    async def announce(self, pack_id: PackId, ahead: range) -> bool:
        """Tells the node that reads a pack for the cluster which of its chunks will be read soon.
        Returns True if that is this node. Raises what ``get`` raises."""
        if self._packs.waits_for_peers(pack_id):
            await self._loads.run((pack_id, True, ahead), lambda: self._fetch(pack_id, ahead))
        return self._packs.reads_for_peers(pack_id)

    async def known(self, pack_id: PackId) -> PackIndexVersion | None:
        """Returns the index if this node has it, in memory or on disk."""
        return self.in_memory(pack_id) or await self._pools.disk.run(self._from_rows, pack_id)

    async def _load(self, pack_id: PackId, *, from_origin: bool) -> PackIndexVersion:
        if not self._kv.lacks([layout.pack_key(pack_id)]):
            found = await self._pools.disk.run(self._from_rows, pack_id)
            if found is not None:
                return found
        return await self._fetch(pack_id, from_origin=from_origin)

    async def _fetch(
        self, pack_id: PackId, ahead: range = range(0), *, from_origin: bool = False
    ) -> PackIndexVersion:
        what = f"the index of pack {pack_id.hex()}"
        source = self._origin if from_origin else self._packs
        return await self._pools.fetching(0, from_origin=from_origin).bounded(
            what, self._deadline_s, lambda: self._kept(source.index(pack_id, ahead))
        )

    def reload(self, pack_id: PackId) -> PackIndexVersion:
        """Returns the current index in the store. Blocking. Raises: the errors of ``get``."""
        return self._kept(self._origin.index(pack_id))

    def _kept(self, pack_index: PackIndexVersion) -> PackIndexVersion:
        pack_id = pack_index.index.pack_id
        self._keep(pack_id, pack_index)
        self._write(pack_id, pack_index)
        return pack_index

    def _from_rows(self, pack_id: PackId) -> PackIndexVersion | None:
        value = self._kv.get(layout.pack_key(pack_id))
        if value is None:
            return None
        etag, data = layout.decode_pack_row(value)
        try:
            pack_index = PackIndexVersion(PackIndex.decode(pack_id, data), etag)
        except LodefsError as error:
            log.warning("reading a pack's index again, since its row is damaged: %s", error)
            return None
        self._keep(pack_id, pack_index)
        return pack_index

    def _keep(self, pack_id: PackId, pack_index: PackIndexVersion) -> None:
        with self._lock:
            before = self._loaded.pop(pack_id, None)
            self._chunks += len(pack_index.index) - (len(before.index) if before else 0)
            self._loaded[pack_id] = pack_index
            while self._chunks > self._chunks_max and len(self._loaded) > 1:
                _, oldest = self._loaded.popitem(last=False)
                self._chunks -= len(oldest.index)

    def _write(self, pack_id: PackId, pack_index: PackIndexVersion) -> None:
        """Stores the row, and drops rows after its key for space: ids are hashes, so those are
        arbitrary."""
        key = layout.pack_key(pack_id)
        value = layout.encode_pack_row(pack_index.etag, pack_index.index.encode())
        with self._lock:
            before = self._kv.get(key)
            size_bytes = self._rows_size_bytes + len(value) - len(before or b"")
            rows: list[Row] = [(key, value)]
            if size_bytes > self._rows_size_bytes_max:
                for other, dropped in self._kv.scan(layout.PACKS, after=key):
                    rows.append((other, None))
                    size_bytes -= len(dropped)
                    if size_bytes <= self._rows_size_bytes_max:
                        break
            rows.append((_ROWS_SIZE_BYTES, size_bytes.to_bytes(8, "little")))
            try:
                self._kv.write(rows)
            except LodefsError as error:
                log.warning("the index of pack %s is not stored: %s", pack_id.hex(), error)
                return
            self._rows_size_bytes = size_bytes
