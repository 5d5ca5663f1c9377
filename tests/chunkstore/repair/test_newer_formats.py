"""Documents of a newer lodefs: a repair writes over none, and a bit that is wrong is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from blake3 import blake3

from lodefs.chunkstore.errors import Corrupt, LodefsError, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.envelope import seal
from lodefs.chunkstore.format.index_shard import HEAD, encode_shard
from lodefs.chunkstore.format.names import ID_BYTES, ChunkId
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.journal.removed_shards import remove_shards
from lodefs.chunkstore.objects.pack_locations import locations_of
from lodefs.chunkstore.repair.repair import RepairOptions, repair
from lodefs.chunkstore.repair.sources.source import listed_packs
from lodefs.chunkstore.repair.state_check import check_state
from lodefs.chunkstore.repo.shard_reader import read_shard
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import REPO, World

NEWER = 99
KINDS = {
    "store.json": keys.STORE,
    "entry": "journal/entries/",
    "end": "journal/ends/",
    "ledger": keys.LEDGER,
    "purge": keys.PURGES,
    "ref": f"{keys.REPOS}{REPO}/refs/branches/",
    "settings": keys.settings(REPO),
}


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A store with each of the documents, that has collected something."""
    with one_at_a_time():
        world = World(tmp_path_factory.mktemp("world"))
        world.push(world.source("a", a=b"a" * 900))
        world.store.settings_log(REPO).restore(0)
        world.push(world.source("b", b=b"b" * 900), "b")
        world.delete("b")
        world.collect_all()
        Purges(world.memory).append([ChunkId(bytes(32))], "r:x", 0)
    return world.memory.objects


@pytest.mark.parametrize("kind", KINDS)
def test_a_repair_leaves_what_it_does_not_know(
    objects: dict[str, bytes], tmp_path: Path, kind: str
) -> None:
    """It ends and says so; `verify` lists it among the problems, and goes on."""
    world = World(tmp_path)
    world.memory.objects = dict(objects)
    key = max(key for key in objects if key.startswith(KINDS[kind]))
    document = json.loads(objects[key])
    world.memory.put(key, [seal(document["lodefs"], NEWER, {"new": 1})])
    before = dict(world.memory.objects)
    with one_at_a_time(), pytest.raises(UnknownFormat, match="a newer lodefs is needed"):
        repair(locations_of(world.memory), [], RepairOptions(clock=world.clock))
    assert world.memory.objects == before
    if kind != "store.json":  # without which no store is opened
        found = [str(one) for one in check_state(world.memory, world.clock)]
        assert any("a newer lodefs is needed" in one for one in found)


def test_removed_shards_of_a_newer_lodefs(tmp_path: Path) -> None:
    """They save work and decide nothing: shards are deleted without a word in them."""
    world = World(tmp_path)
    newer = seal("removed-shards", NEWER, {"new": 1})
    world.memory.put(keys.REMOVED_SHARDS, [newer])
    world.memory.put(keys.shard("1-a"), [encode_shard([])])
    remove_shards(world.memory, ["1-a"])
    assert list(world.memory.list(keys.INDEX)) == []
    assert world.memory.objects[keys.REMOVED_SHARDS] == newer


@pytest.mark.parametrize("window_bytes", [1 << 20, 64])
def test_a_shard_of_a_newer_lodefs(tmp_path: Path, window_bytes: int) -> None:
    """It stays, and its packs are listed once more; one whose version is a wrong bit is damaged,
    however large it is."""
    with one_at_a_time():
        world = World(tmp_path)
        world.push(world.source("a", a=b"a" * 900))
        (key,) = (info.key for info in world.memory.list(keys.INDEX))
        whole = bytearray(world.memory.objects[key])
        whole[HEAD.size - 8] ^= 2
        world.memory.put(key, [bytes(whole)])
        assert _error(world, key, window_bytes) is Corrupt
        newer = bytes(whole[:-ID_BYTES]) + blake3(whole[:-ID_BYTES]).digest()
        world.memory.put(key, [newer])
        assert _error(world, key, window_bytes) is UnknownFormat
        repair(locations_of(world.memory), [], RepairOptions(clock=world.clock))
        assert world.memory.objects[key] == newer
        assert len(list(listed_packs(world.memory))) == 2


def _error(world: World, key: str, window_bytes: int) -> type[LodefsError]:
    with pytest.raises(LodefsError) as caught:
        list(read_shard(world.memory, key, window_bytes))
    return caught.type
