"""Deletes garbage by its outcomes. All of it may be repeated, and done by many at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from concurrent.futures import Executor

from lodefs.chunkstore.errors import UNREADABLE, Denied, LodefsError, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.index_shard import ShardPack, encode_shard, rest_name
from lodefs.chunkstore.format.journal import Garbage
from lodefs.chunkstore.format.names import CommitId, PackId
from lodefs.chunkstore.journal.removed_shards import remove_shards
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repo.hook_lists import remove_hook_lists
from lodefs.chunkstore.repo.shard_reader import read_shard
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.parallel_map import map_ahead
from lodefs.chunkstore.system.progress import Progress

SHARDS_AHEAD = 16


def sweep(
    store: Store,
    garbage: Sequence[Garbage],
    reached: Container[tuple[str, CommitId]],
    gc_number: int,
    executor: Executor,
    progress: Progress,
) -> None:
    """Deletes commits, then the packs' entries in shards, then the packs, so that a crash leaves
    only garbage. ``gc_number`` is the number of the newest entry with this garbage.

    Raises: what the store raises, after all deletes of one kind were tried.
    """
    objects = store.objects
    commits = [commit for one in garbage for commit in one.commits]
    packs = {pack for one in garbage for pack in one.packs}
    progress.phase = f"deleting {len(commits)} commits"
    _say_expired(store, commits, reached, executor)
    _delete(objects, [keys.commit(*commit) for commit in commits], executor)
    if packs:
        progress.phase = "rewriting index shards"
        _rewrite_shards(objects, packs, gc_number, executor)
        progress.phase = f"deleting {len(packs)} packs"
        _delete(objects, [keys.pack(pack) for pack in sorted(packs)], executor)


def check_deletes(objects: ObjectStore) -> None:
    """Puts an object and deletes it. Raises: Denied if deletes are not allowed; what the store
    raises."""
    key = keys.probe(os.urandom(16).hex())
    objects.put(key, [b"lodefs probe\n"])
    try:
        objects.delete(key)
    except Denied as error:
        error.add_note("nothing was deleted or decided: give this role the right to delete")
        raise


def _say_expired(
    store: Store,
    commits: Sequence[tuple[str, CommitId]],
    reached: Container[tuple[str, CommitId]],
    executor: Executor,
) -> None:
    """Leaves markers for commits that refs lead to (``reached``), or that are in repositories with
    a retention policy: they are not lost, but have expired. A list may lack the policy."""
    repos = {repo for repo, _ in commits}
    may_lack = {repo for repo in repos if store.settings_log(repo).surely_newest().may_lack_history}
    now_s = int(time.time())
    expired = [commit for commit in commits if commit[0] in may_lack or commit in reached]
    for _ in executor.map(lambda at: store.put_expired(at[0], at[1], now_s), expired):
        pass


def _delete(objects: ObjectStore, names: Collection[str], executor: Executor) -> None:
    errors = [error for error in executor.map(_caught(objects.delete), names) if error is not None]
    if errors:
        errors[0].add_note(
            f"{len(errors)} of {len(names)} deletes failed: repeat the command to continue"
        )
        raise errors[0]


def _caught(delete: Callable[[str], None]) -> Callable[[str], LodefsError | None]:
    def run(key: str) -> LodefsError | None:
        try:
            delete(key)
        except LodefsError as error:
            return error
        return None

    return run


def _rewrite_shards(
    objects: ObjectStore, dead: Collection[PackId], gc_number: int, executor: Executor
) -> None:
    """Rewrites shards that list packs of ``dead``. The rest of each is put first under another
    name; a shard without a rest is deleted."""
    emptied: list[str] = []
    names = [info.key[len(keys.INDEX) :] for info in objects.list(keys.INDEX)]
    hits = map_ahead(executor, lambda name: _lists(objects, name, dead), names, SHARDS_AHEAD)
    for name, is_hit in zip(names, hits, strict=True):
        if is_hit and (new := rest_name(name, gc_number)) != name:
            is_left = _rewrite_shard(objects, name, new, dead)
            emptied += [] if is_left else [name]
    remove_shards(objects, emptied)
    remove_hook_lists(objects)


def _lists(objects: ObjectStore, name: str, dead: Collection[PackId]) -> bool:
    """Whether a shard lists packs of ``dead``; False if it cannot be read. It keeps nothing of the
    shard in memory, since shards may be large and most list none."""
    try:
        found = False
        for pack in read_shard(objects, keys.shard(name)):
            found = found or pack.pack_id in dead
    except UNREADABLE:
        return False
    return found


def _rewrite_shard(objects: ObjectStore, name: str, new: str, dead: Collection[PackId]) -> bool:
    """Puts the rest of a shard under another name; it is in memory meanwhile. Returns whether there
    is a rest."""
    try:
        packs: Iterable[ShardPack] = read_shard(objects, keys.shard(name))
        rest = [pack for pack in packs if pack.pack_id not in dead]
    except NotFound:  # another gc run has deleted it
        return True
    if not rest:
        return False
    objects.put(keys.shard(new), [encode_shard(rest)])
    objects.delete(keys.shard(name))
    return True
