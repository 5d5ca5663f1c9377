"""Index shards, made anew from the packs."""

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

PACKS_MAX = 2048  # that one new shard lists: some 100 GiB


@dataclass(slots=True)
class ShardRepair:
    """``damaged``: keys of shards that could not be read; ``outdated``: of those that named packs
    that are gone; ``empty``: of those that list nothing; ``listed``: packs that no shard listed
    before; ``unreadable``: packs whose index is damaged."""

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
    """Lists every pack that has all of its chunks in a shard that can be read; shards that cannot
    are written again, and those that list nothing are deleted. With
    ``keeps``, which tells of a pack whether refs may lead to it, a shard that names one which is
    gone or damaged, and not kept, is written again without it, and without those that were put back
    ``in_part``. What a shard says of the others helps to get them back. A pack that is not kept is
    not listed: it is what a push that ended early has left. Without ``keeps`` it is listed, too,
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
        except UnknownFormat:  # what a newer lodefs lists is listed here once more
            continue
        except NotFound:  # a gc run has just written it again
            continue
        if not packs:
            result.empty.append(info.key)
            continue
        known.update(pack.pack_id for pack in packs)
        gone = {one.pack_id for one in packs if one.pack_id not in there}
        gone = {pack for pack in gone if keeps is None or not keeps(pack)}
        gone = {pack for pack in gone if not exists(objects, keys.pack(pack))}  # lists lack some
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
    """New shards; those that were damaged go."""
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
    """Lists packs in a new shard instead of this one. Machines that push read a shard once: under
    the name that they know, they would go on to build on packs that are lost. When it is gone they
    read all shards anew."""
    if packs:
        objects.put(_new_key(now), [encode_shard(packs)])
    _delete(objects, key)


def _delete(objects: ObjectStore, key: str) -> None:
    """A machine that knows the shard reads all of them anew."""
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
    """Those whose index is damaged, and that no ref leads to."""

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
