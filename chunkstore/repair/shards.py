"""Rebuilds index shards from the packs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import islice

from lodefs.chunkstore.errors import Corrupt, NotFound, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.index_shard import PackChunks, encode_shard
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.journal.removed_shards import forget_removed, is_damaged, remove_shards
from lodefs.chunkstore.objects.interface import ObjectStore, exists
from lodefs.chunkstore.objects.pack_locations import locations_of
from lodefs.chunkstore.repo.pack_reader import read_index
from lodefs.chunkstore.repo.shard_reader import read_shard
from lodefs.chunkstore.system.parallel_map import map_ahead
from lodefs.chunkstore.system.progress import Progress

PACKS_MAX = 2048  # packs that one new shard lists: some 100 GiB


@dataclass(slots=True)
class ShardRepair:
    """``damaged`` are keys of unreadable shards, ``outdated`` of those that named packs that are
    gone, ``empty`` of those that list nothing. ``listed`` are packs that no shard listed before;
    ``unreadable`` are packs with a damaged index."""

    shards: int = 0
    damaged: list[str] = field(default_factory=list)
    outdated: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    listed: list[PackId] = field(default_factory=list)
    unreadable: list[PackId] = field(default_factory=list)


def repair_index(
    objects: ObjectStore,
    executor: Executor,
    progress: Progress,
    *,
    keeps: Callable[[PackId], bool] | None = None,
    in_part: Collection[PackId] = (),
    dry_run: bool = False,
    clock_ns: Callable[[], int] = time.time_ns,
) -> ShardRepair:
    """Lists every complete pack in a readable shard. Unreadable shards are rewritten, and empty
    ones deleted.

    ``keeps`` tells whether refs may lead to a pack. With it, a shard that names a pack that is gone
    or damaged, and not kept, is rewritten without that pack, and without those that were restored
    ``in_part``. What a shard says about the others helps to restore them. A pack that is not kept
    is not listed, since a push that ended early has left it. Without ``keeps`` it is listed, too,
    which does no harm.
    """
    progress.phase = "listing packs"
    there = locations_of(objects).existing()
    result = ShardRepair()
    known: set[PackId] = set()
    progress.phase = "reading index shards"
    for info in list(objects.list(keys.INDEX)):
        result.shards += 1
        try:
            packs = list(read_shard(objects, info.key))
        except Corrupt:
            result.damaged.append(info.key)
            continue
        except UnknownFormat:  # packs in a newer lodefs's shard are listed here once more
            continue
        except NotFound:  # a gc run has just rewritten it
            continue
        if not packs:
            result.empty.append(info.key)
            continue
        known.update(pack.pack_id for pack in packs)
        gone = {one.pack_id for one in packs if one.pack_id not in there}
        gone = {pack for pack in gone if keeps is None or not keeps(pack)}
        # Lists may lack some
        gone = {pack for pack in gone if not exists(objects, keys.pack(pack))}
        if keeps is not None:
            doubtful = [one.pack_id for one in packs if not keeps(one.pack_id)]
            gone.update(_unreadable(objects, [one for one in doubtful if one in there], executor))
            gone.update(one.pack_id for one in packs if one.pack_id in in_part)
        if gone:
            result.outdated.append(info.key)
            if not dry_run and keeps is not None:
                rest = [pack for pack in packs if pack.pack_id not in gone]
                _replace(objects, info.key, rest, clock_ns)
    if is_damaged(objects):
        result.damaged.append(keys.REMOVED_SHARDS)
    others = sorted(pack for pack in there - known if keeps is None or keeps(pack))
    _list_others(objects, others, result, executor, dry_run=dry_run, now=clock_ns)
    if result.empty and not dry_run:
        remove_shards(objects, [key[len(keys.INDEX) :] for key in result.empty])
    return result


def _list_others(
    objects: ObjectStore,
    packs: list[PackId],
    result: ShardRepair,
    executor: Executor,
    *,
    dry_run: bool,
    now: Callable[[], int],
) -> None:
    """Puts new shards, and deletes damaged ones."""
    indexes = _indexes(objects, packs, result, executor)
    while some := list(islice(indexes, PACKS_MAX)):
        result.listed += [pack.pack_id for pack in some]
        if not dry_run:
            objects.put(_new_key(now), [encode_shard(some)])
    for key in result.damaged if not dry_run else ():
        _delete(objects, key)


def _replace(
    objects: ObjectStore, key: str, packs: Sequence[PackChunks], now: Callable[[], int]
) -> None:
    """Lists packs in a new shard instead of this one. Machines that push read a shard once. If it
    kept its name, they would go on to rely on lost packs. If it is gone, they read all shards
    anew."""
    if packs:
        objects.put(_new_key(now), [encode_shard(packs)])
    _delete(objects, key)


def _delete(objects: ObjectStore, key: str) -> None:
    """Deletes a shard. A machine that knows it then reads all shards anew."""
    forget_removed(objects, key[len(keys.INDEX) :])
    objects.delete(key)


def _new_key(now: Callable[[], int]) -> str:
    return keys.shard(f"{now():016x}-{os.urandom(4).hex()}")


def _indexes(
    objects: ObjectStore, packs: list[PackId], result: ShardRepair, executor: Executor
) -> Iterator[PackChunks]:
    def read(pack_id: PackId) -> PackIndex | None:
        try:
            index = read_index(objects, pack_id).index
            return None if index.has_gone else index
        except NotFound:
            return None
        except (Corrupt, UnknownFormat):
            result.unreadable.append(pack_id)
            return None

    yield from filter(None, map_ahead(executor, read, packs))


def _unreadable(
    objects: ObjectStore, packs: Sequence[PackId], executor: Executor
) -> Iterator[PackId]:
    """Yields the packs whose index is damaged and to which no ref leads."""

    def is_readable(pack_id: PackId) -> bool:
        try:
            read_index(objects, pack_id)
        except Corrupt:
            return False
        except (NotFound, UnknownFormat):
            return True
        return True

    readable = map_ahead(executor, is_readable, packs)
    return (pack for pack, is_fine in zip(packs, readable, strict=True) if not is_fine)
