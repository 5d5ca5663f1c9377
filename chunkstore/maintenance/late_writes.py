"""A pack that was read before a purge, and written after it, has the purged bytes again.

The put of a pack has no condition, so each who writes packs again (a compaction, a merging, a
repair, a purge, a sweep of what a repair overlooked) looks afterwards for what purges wanted to be
gone: their documents are put before the packs are written (docs/decisions/0047).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import Executor

from lodefs.chunkstore.format.journal import DeadChunks
from lodefs.chunkstore.format.names import ChunkId, PackId
from lodefs.chunkstore.format.pack import PURGED
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.maintenance.compact import TRIES, Rate, drop_all
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repo.pack_reader import index_or_none


def drop_purged(
    objects: ObjectStore, packs: Iterable[PackId], executor: Executor, rate: Rate
) -> None:
    """Removes what purges wanted gone from packs that were just written, until none has it; a pack
    that cannot be read is left alone. Raises: what the store does, Corrupt for a purge's document.
    """
    left, purged = list(packs), Purges(objects).chunks()
    for _ in range(TRIES if purged else 0):
        found = holding(objects, left, purged, executor)
        for _ in drop_all(objects, found, PURGED, executor, rate):
            pass
        left = [one.pack for one in found]


def find_purged(
    objects: ObjectStore, packs: Iterable[PackId], executor: Executor
) -> list[DeadChunks]:
    """What drop_purged would remove first. Raises: as of it."""
    return holding(objects, packs, Purges(objects).chunks(), executor)


def holding(
    objects: ObjectStore, packs: Iterable[PackId], ids: Collection[ChunkId], executor: Executor
) -> list[DeadChunks]:
    """Those of the packs that have bytes of these chunks, and which; one that cannot be read is
    left out. Raises: what the store does."""

    def held(pack: PackId) -> DeadChunks:
        index = index_or_none(objects, pack)
        return DeadChunks(pack, 0 if index is None else index.held(ids))

    return [one for one in executor.map(held, packs if ids else ()) if one.chunks]
