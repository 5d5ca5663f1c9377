"""Chunks that were purged from the store, and may still come from a node that does not know that.

An index that has them is old, since the pack was rewritten. So if an index does not mark a known
purged id, index and bytes are read again from the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from lodefs.chunkstore.format.names import ChunkId
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.journal.purges import CHUNKS_MAX, Purge
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.kv import KeyValues
from lodefs.proxy.cache.chunk_cache import Cache

PURGES_KEPT = 32  # the newest documents
IDS_MAX = PURGES_KEPT * CHUNKS_MAX


class PurgedChunks:
    """The ids that were added last, at most ``ids_max``. For any thread; one thread adds."""

    def __init__(self, ids_max: int = IDS_MAX) -> None:
        self._ids_max = ids_max
        self._ids: dict[ChunkId, None] = {}  # oldest first

    def add(self, ids: Iterable[ChunkId]) -> None:
        for chunk in ids:
            self._ids.pop(chunk, None)
            self._ids[chunk] = None
        while len(self._ids) > self._ids_max:
            del self._ids[next(iter(self._ids))]

    def are_in(self, index: PackIndex, chunks: range) -> bool:
        """Whether an index has one of these chunks although it was purged."""
        if not self._ids:
            return False
        return any(index.chunk_id(n) in self._ids and not index.is_gone(n) for n in chunks)


LOOKS = 3  # after each purge
_SEEN = layout.figure_key("purges_seen")  # the last purge with all of its looks, plus 1

log = logging.getLogger("lodefs.cache")


class Purging:
    """Drops purged chunks from the cache. ``after`` returns the purges after a number. ``refused``
    gets the chunks of the last ones, even after a restart. For one thread.

    It handles each purge several times, once at each look. Reads from other nodes that did not know
    of the purge may have brought the chunks back after the first time."""

    def __init__(
        self,
        cache: Cache,
        kv: KeyValues,
        after: Callable[[int], Iterable[Purge]],
        refused: PurgedChunks,
    ) -> None:
        self._cache = cache
        self._kv = kv
        self._after = after
        self._refused = refused
        self._seen = int.from_bytes(kv.get(_SEEN) or b"", "little") - 1
        self._known = max(self._seen - PURGES_KEPT, -1)  # the newest purge in memory
        self._recent: list[tuple[Purge, int]] = []  # with the number of looks left

    def look(self) -> None:
        """Asks the store for new purges, and handles these and the last ones. Raises: what the
        store raises; LodefsError of the cache's index."""
        for purge in list(self._after(self._known)):
            self._known = purge.number
            self._refused.add(purge.chunks)
            if purge.number > self._seen:
                self._recent.append((purge, LOOKS))
        chunks = {chunk for purge, _ in self._recent for chunk in purge.chunks}
        if chunks:
            self._cache.eviction.drop_chunks(chunks, "it has purged bytes")
        followed = [purge.number for purge, left in self._recent if left == 1]
        if followed:
            self._kv.write([(_SEEN, (followed[-1] + 1).to_bytes(8, "little"))])
            self._seen = followed[-1]
        self._recent = [(purge, left - 1) for purge, left in self._recent if left > 1]
