"""What machines that pushed before make of index shards that went: by a repair, or a gc run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.envelope import seal
from lodefs.chunkstore.format.index_shard import encode_shard
from lodefs.chunkstore.journal.removed_shards import remove_shards, removed_shards
from lodefs.chunkstore.objects.pack_locations import locations_of
from lodefs.chunkstore.repair.repair import RepairOptions, repair
from lodefs.chunkstore.repair.shards import repair_index
from lodefs.chunkstore.repair.state_check import check_state
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.system.progress import Progress
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import World


def test_the_next_push_stores_lost_packs_again(tmp_path: Path) -> None:
    """A lost pack that no ref led to leaves the index; who pushes its bytes again stores them."""
    with one_at_a_time():
        world = World(tmp_path)
        source = world.source("files", one=b"one" * 3000, two=b"two" * 3000)
        world.push(world.source("other", three=b"three" * 3000), branch="other")
        before = world.packs()
        world.push(source, branch="first")
        world.delete("first")
        for key in world.packs() - before:
            del world.memory.objects[key]
        repair(
            locations_of(world.memory),
            [],
            RepairOptions(data=True, dry_run=False, clock=world.clock),
        )
        world.push(source, branch="again")
        assert verify(world.store, data=True).problems == []


def _shards(world: World) -> set[str]:
    return {key for key in world.memory.objects if key.startswith(keys.INDEX)}


@pytest.mark.parametrize("way", ["collected", "repaired", "untold"])
def test_a_shard_of_which_nothing_is_left(tmp_path: Path, way: str) -> None:
    """It goes, by the gc run that deletes its packs, or later by a repair of the index. The
    machine that put it goes on with what it knows, and reads no file again; only if nothing says
    why the shard went does it begin anew."""
    with one_at_a_time():
        world = World(tmp_path)
        kept = world.source("kept", one=b"one" * 3000)
        world.push(kept)
        before = _shards(world)
        world.push(world.source("gone", two=b"two" * 3000), "gone")
        (own,) = _shards(world) - before
        world.delete("gone")
        world.collect_all()
        assert _shards(world) == before
        if way == "repaired":  # as gc runs left it once
            world.memory.objects[own] = encode_shard([])
            del world.memory.objects[keys.REMOVED_SHARDS]
            with ThreadPoolExecutor(1) as executor:
                for dry_run in (True, False):
                    found = repair_index(world.memory, executor, Progress(), dry_run=dry_run)
                    assert found.empty == [own]
                    assert (own in world.memory.objects) is dry_run
        elif way == "untold":
            world.memory.objects[keys.REMOVED_SHARDS] = b"rubbish"
        assert world.push(kept, "again").files_read == (way == "untold")
        assert world.push(kept, "third").files_read == 0


def test_a_store_from_before_a_shard_that_was_removed(tmp_path: Path) -> None:
    """A machine that has met a store without the shard takes no older copy of the store for that
    one: a push there, after a dry run, sends what the copy lacks."""
    with one_at_a_time():
        world = World(tmp_path)
        kept, gone = world.source("kept", one=b"one" * 3000), world.source("gone", two=b"2" * 9000)
        world.push(kept)
        backup = dict(world.memory.objects)
        world.push(gone, "gone")
        world.delete("gone")
        world.collect_all()
        (kept / "x").write_bytes(b"new")
        world.push(kept, dry_run=True)
        world.memory.objects.clear()
        world.memory.objects.update(backup)
        assert world.push(gone, "again").new_bytes > 0
        assert verify(world.store, data=True).problems == []


def test_a_document_of_a_newer_lodefs_decides_nothing(tmp_path: Path) -> None:
    """It is no damage, stops no check and no repair, and stays."""
    world = World(tmp_path)
    world.push(world.source("files", one=b"one"))
    newer = world.memory.objects[keys.REMOVED_SHARDS] = seal("removed-shards", 99, b"new")
    objects = locations_of(world.memory)
    assert list(check_state(objects, world.clock)) == []
    assert repair(objects, [], RepairOptions(clock=world.clock)).findings == []
    assert world.memory.objects[keys.REMOVED_SHARDS] == newer


def test_what_removed_shards_are_told(tmp_path: Path) -> None:
    """The newest are kept; a damaged document is told, and goes."""
    world = World(tmp_path)
    names = [f"{n:016x}-00000000-g7" for n in range(3)]
    for name in names:
        world.memory.objects[keys.shard(name)] = encode_shard([])
    remove_shards(world.memory, names)
    assert not _shards(world)
    assert removed_shards(world.memory) == {name.removesuffix("-g7") for name in names}
    world.memory.objects[keys.REMOVED_SHARDS] = b"rubbish"
    with ThreadPoolExecutor(1) as executor:
        assert repair_index(world.memory, executor, Progress()).damaged == [keys.REMOVED_SHARDS]
    assert keys.REMOVED_SHARDS not in world.memory.objects
