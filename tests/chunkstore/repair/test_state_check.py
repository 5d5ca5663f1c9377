"""What a store keeps besides data: what of it is lost or damaged is named, with what mends it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.composite import COMPOSITES, TABLES
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.maintenance.purge import plan_path, purge
from lodefs.chunkstore.objects.pack_locations import locations_of, split_etag
from lodefs.chunkstore.repair.repair import RepairOptions, repair
from lodefs.chunkstore.repair.shards import repair_index
from lodefs.chunkstore.repair.sources.source import StoreSource
from lodefs.chunkstore.repair.state_check import check_state
from lodefs.chunkstore.repo.shard_reader import read_shard
from lodefs.chunkstore.repo.store import open_store
from lodefs.chunkstore.system.progress import Progress
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.composite_world import grown, merge
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import REPO, World

STATE = ("journal/", keys.PURGES, TABLES, COMPOSITES, keys.REPOS)
# What nothing else tells of: docs/decisions/0046
UNSEEN = ("journal/beats/",)
REPAIRED_EACH = 4


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Merged packs, a branch that was collected, two purges, a setting."""
    with one_at_a_time():
        world = grown(tmp_path_factory.mktemp("state"))
        world.push(world.source("gone", gone=b"g" * 5000), "gone")
        world.delete("gone")
        world.collect_all()
        assert merge(world)
        store = open_store(locations_of(world.memory))
        for path in (b"f1", b"f2"):
            purge(store, plan_path(store, REPO, path), world.clock)
        world.hours += 30
        yield world


def _problems(world: World, memory: MemoryObjects) -> list[str]:
    return [one.key for one in check_state(memory, world.clock)]


def _with(world: World, key: str, *, lost: bool) -> MemoryObjects:
    memory = MemoryObjects()
    memory.objects = dict(world.memory.objects)
    data = memory.objects.pop(key)
    if not lost:
        at = len(data) // 2
        memory.objects[key] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    return memory


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "spoilt"])
def test_each_document_in_turn(world: World, lost: bool) -> None:
    """Each is named alone; a repair, which may ask a copy of the store, leaves nothing to name."""
    assert _problems(world, world.memory) == []
    copy = MemoryObjects("memory:copy")
    copy.objects = dict(world.memory.objects)
    seen = set()
    with one_at_a_time():
        table = min(key for key in copy.objects if key.startswith(TABLES))
        unseen = (*UNSEEN, keys.purge(Purges(world.memory).newest()))
        for number, key in enumerate(sorted(world.memory.objects)):
            is_commit = "/commits/" in key or "/expired/" in key
            if not key.startswith(STATE) or is_commit or (lost and key.startswith(unseen)):
                continue
            if key.startswith("journal/done/"):
                continue  # that it is there is all that it says
            if key.startswith(COMPOSITES) and not lost:
                continue  # its packs are what is damaged: `verify --data` finds them
            if key.startswith(TABLES) and not lost and key != table:
                continue  # nobody reads one that is superseded
            memory = _with(world, key, lost=lost)
            found = list(check_state(memory, world.clock))
            if lost and not found:  # the newest of a kind, of which a list alone tells
                assert key.startswith(("journal/", keys.REPOS)), key
                continue
            expected = TABLES if key.startswith(TABLES) else key
            assert [one.key for one in found] == [expected]
            assert "lodefs repair" in found[0].remedy
            seen.add(key.split("/")[0] + "/" + key.split("/")[1])
            if number % REPAIRED_EACH and key.startswith("journal/"):
                continue
            objects = locations_of(memory)
            options = RepairOptions(workers=1, clock=world.clock)
            assert not repair(objects, [StoreSource(locations_of(copy))], options).left, key
            assert _problems(world, memory) == [], key
    assert {"journal/entries", "journal/ends", "journal/ledger", "composites/tables"} <= seen
    assert any(key.startswith(keys.PURGES) for key in seen)


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "spoilt"])
def test_a_purge_says_again_what_was_purged(world: World, lost: bool) -> None:
    """What packs say was purged, and no other purge says; those behind it are seen again."""
    whole = list(Purges(world.memory).after(-1))
    memory = MemoryObjects()
    memory.objects = dict(world.memory.objects)
    for number in (0, 1):  # a purge says what it does before, and once more after
        memory.objects[keys.purge(number)] = b"rubbish"
        if lost:
            del memory.objects[keys.purge(number)]
    assert list(whole[0].chunks) == list(whole[1].chunks) != []
    options = RepairOptions(workers=1, clock=world.clock)
    repair(locations_of(memory), [], replace(options, dry_run=True))
    repair(locations_of(memory), [], options)
    again = list(Purges(memory).after(-1))
    assert {chunk for one in again for chunk in one.chunks} == {
        chunk for one in whole for chunk in one.chunks
    }
    assert again[2:] == whole[2:]


def test_a_lost_composite_of_packs_that_no_version_names(tmp_path: Path) -> None:
    """No shard names its packs after a repair, and verify has nothing to tell of any more."""
    with one_at_a_time():
        world = grown(tmp_path)
        assert merge(world)
        objects = locations_of(world.memory)
        ids = {info.key: info.etag for info in objects.list(keys.PACKS)}
        lost = [key for key, etag in ids.items() if split_etag(etag) is not None]
        for key in [key for key in world.memory.objects if key.startswith(COMPOSITES)]:
            del world.memory.objects[key]
        with ThreadPoolExecutor(1) as executor:
            found = repair_index(objects, executor, Progress(), keeps=lambda _pack: False)
        assert lost and found.outdated
        shards = [info.key for info in objects.list(keys.INDEX)]
        listed = {one.pack_id for key in shards for one in read_shard(objects, key)}
        assert listed.isdisjoint(PackId(bytes.fromhex(key[-64:])) for key in lost)
