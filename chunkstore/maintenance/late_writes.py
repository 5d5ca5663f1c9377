"""Packs that were read before a purge and written after it, and so have purged bytes again.

The put of a pack has no condition. So each rewriting of packs (compaction, merging, repair, purge,
the sweep of what a repair overlooked) ends by removing the bytes that purges have removed. The
document of a purge is put before its packs are written (docs/decisions/0047).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import Executor

from lodefs.chunkstore.format.journal import DeadChunks
from lodefs.chunkstore.format.names import ChunkId, PackId
from lodefs.chunkstore.format.pack import PURGED
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.maintenance.compact import TRIES, drop_all
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repo.pack_reader import index_or_none
from lodefs.chunkstore.system.rate import Rate


def drop_purged(
    objects: ObjectStore, packs: Iterable[PackId], executor: Executor, rate: Rate
) -> None:
    """Removes purged chunks from packs that were just written, until none has any. It skips a pack
    that cannot be read. Raises: Corrupt for a purge's document; what the store raises.
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
    """Returns what drop_purged would remove first. Raises what it raises."""
    return holding(objects, packs, Purges(objects).chunks(), executor)


def holding(
    objects: ObjectStore, packs: Iterable[PackId], ids: Collection[ChunkId], executor: Executor
) -> list[DeadChunks]:
    """Returns those of the packs that have bytes of these chunks, and which chunks. It skips a pack
    that cannot be read. Raises: what the store raises."""

    def held(pack: PackId) -> DeadChunks:
        index = index_or_none(objects, pack)
        return DeadChunks(pack, 0 if index is None else index.held(ids))

    return [one for one in executor.map(held, packs if ids else ()) if one.chunks]
