"""A pack that was read before a purge, and written after it, has the purged bytes again.

The put of a pack has no condition, so each who writes packs again (a compaction, a merging, a
repair, a purge, a sweep of what a repair overlooked) looks afterwards for what purges
wanted to be gone: their documents are put before the packs are written (docs/decisions/0047).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
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
    left = list(packs)
    purged = _purged(objects)
    for _ in range(TRIES if purged else 0):
        found = _find(objects, left, purged, executor)
        for _ in drop_all(objects, found, PURGED, executor, rate):
            pass
        left = [one.pack for one in found]


def find_purged(
    objects: ObjectStore, packs: Iterable[PackId], executor: Executor
) -> list[DeadChunks]:
    """What drop_purged would remove first. Raises: as of it."""
    purged = _purged(objects)
    return _find(objects, packs, purged, executor) if purged else []


def _purged(objects: ObjectStore) -> frozenset[ChunkId]:
    return Purges(objects).chunks()


def _find(
    objects: ObjectStore,
    packs: Iterable[PackId],
    purged: Collection[ChunkId],
    executor: Executor,
) -> list[DeadChunks]:
    found = executor.map(lambda pack: held(objects, pack, purged), packs)
    return [one for one in found if one is not None]


def held(objects: ObjectStore, pack: PackId, ids: Container[ChunkId]) -> DeadChunks | None:
    """Which of those chunks' bytes a pack has, if any; None, too, if it cannot be read."""
    index = index_or_none(objects, pack)
    bits = 0 if index is None else index.held(ids)
    return DeadChunks(pack, bits) if bits else None
