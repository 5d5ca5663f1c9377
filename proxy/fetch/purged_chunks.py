"""Chunks that were purged from the store, which may still come from a node that does not know it.

An index that has them is an old one: the pack was written again. So where a known id is not marked
in it, the index and the bytes are read again, from the store.
"""

from __future__ import annotations

from collections.abc import Iterable

from lodefs.chunkstore.format.names import ChunkId
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.journal.purges import CHUNKS_MAX

PURGES_KEPT = 32  # documents, the newest
IDS_MAX = PURGES_KEPT * CHUNKS_MAX


class PurgedChunks:
    """The ids that were learned last, ``ids_max`` of them. For any thread; one adds."""

    def __init__(self, ids_max: int = IDS_MAX) -> None:
        self._ids_max = ids_max
        self._ids: dict[ChunkId, None] = {}  # the oldest first

    def add(self, ids: Iterable[ChunkId]) -> None:
        """Notes ids as those that were learned last."""
        for chunk in ids:
            self._ids.pop(chunk, None)
            self._ids[chunk] = None
        while len(self._ids) > self._ids_max:
            del self._ids[next(iter(self._ids))]

    def are_in(self, index: PackIndex, chunks: range) -> bool:
        """Whether an index says of one of these chunks that it is there, though it was purged."""
        if not self._ids:
            return False
        return any(index.chunk_id(n) in self._ids and not index.is_gone(n) for n in chunks)
