"""The lists of hooks of a large store: who puts them, and who reads them.

A shard whose id says so closes a list. The push that puts it also puts the list, of all shards
since the one that closed the list before. So most of what a machine has to read lies in a few
objects, without anybody who decides; what is in no list it reads from the shards. If a push ends
before it has put its list, the next one has those shards, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from lodefs.chunkstore.errors import AlreadyExists
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.hook_list import (
    PUSH_ID_CHARS_MAX,
    SIZE_BYTES_MAX,
    decode_hook_list,
    encode_hook_list,
)
from lodefs.chunkstore.format.index_shard import PackHooks, encode_hooks, push_id_of
from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore, read_whole
from lodefs.chunkstore.repo.shard_reader import (
    SPOILED,
    log_left_out,
    read_hooks,
    read_shards,
)
from lodefs.chunkstore.system.parallel_map import grouped, map_ahead

READERS = 16  # concurrent requests
SHARDS_MAX = 256  # in a list
LISTS_MAX = 4  # that one push puts: its commit waits for them, some seconds
SHARDS_BYTES_MAX = 1 << 30  # of the shards in a list; their hooks are a fiftieth
UNSEEN_MIN = 8  # fewer shards are read without a look for lists
LISTS_AHEAD = 4  # in memory, some MB each


def put_hook_lists(objects: ObjectStore, push_id: str) -> None:
    """Puts the list that the shard of a push closes; several, if earlier pushes have put none for
    many shards. It leaves the rest of very many to later pushes. Raises: what the store raises."""
    own = keys.hook_list(push_id)
    before = max((key for key in _listed(objects) if key < own), default=keys.HOOKS)
    after = keys.shard(before.removeprefix(keys.HOOKS))
    shards: list[ObjectInfo] = []
    for info in islice(objects.list(keys.INDEX, after=after), LISTS_MAX * SHARDS_MAX):
        if _push_id(info.key) > push_id:
            break
        if len(_push_id(info.key)) <= PUSH_ID_CHARS_MAX:
            shards.append(info)
    for group in grouped(shards, lambda one: one.size_bytes, SHARDS_BYTES_MAX, SHARDS_MAX):
        names = [info.key.removeprefix(keys.INDEX) for info in group]
        found = read_shards(objects, names, read_hooks, READERS)  # without damaged ones
        data = encode_hook_list((push_id_of(name), encode_hooks(hooks)) for name, hooks in found)
        if len(data) <= SIZE_BYTES_MAX:  # else of shards that are better read one by one
            with contextlib.suppress(AlreadyExists):  # by another machine
                objects.put(keys.hook_list(push_id_of(names[-1])), [data], if_absent=True)


def read_hook_lists(
    objects: ObjectStore, names: Sequence[str], threads: int, unlisted_max: int | None = None
) -> Iterator[tuple[str, list[PackHooks]]]:
    """Yields shards, by name, with their hooks: from the lists that their pushes closed, and the
    others one by one, unless they are more than ``unlisted_max``: they are soon in a list. It
    leaves out damaged ones."""
    left = {push_id_of(name): name for name in names}
    if len(left) >= UNSEEN_MIN:
        closed = [key for key in _listed(objects) if key.removeprefix(keys.HOOKS) in left]
        with ThreadPoolExecutor(threads, "lodefs-hooks") as executor:
            for found in map_ahead(executor, lambda key: _read(objects, key), closed, LISTS_AHEAD):
                for push_id, hooks in found:
                    if (name := left.pop(push_id, None)) is not None:
                        yield name, hooks
    if unlisted_max is None or len(left) <= unlisted_max:
        yield from read_shards(objects, [*left.values()], read_hooks, threads)


def remove_hook_lists(objects: ObjectStore) -> None:
    """Deletes the lists whose last shards are gone. Others may push meanwhile."""
    if closed := [*_listed(objects)]:
        there = {_push_id(info.key) for info in objects.list(keys.INDEX)}
        for key in closed:
            if key.removeprefix(keys.HOOKS) not in there:
                objects.delete(key)


def _listed(objects: ObjectStore) -> Iterator[str]:
    return (info.key for info in objects.list(keys.HOOKS))


def _push_id(shard_key: str) -> str:
    return push_id_of(shard_key.removeprefix(keys.INDEX))


def _read(objects: ObjectStore, key: str) -> list[tuple[str, list[PackHooks]]]:
    try:
        return decode_hook_list(read_whole(objects, key, SIZE_BYTES_MAX).data, key)
    except SPOILED as error:
        log_left_out(error)
        return []
