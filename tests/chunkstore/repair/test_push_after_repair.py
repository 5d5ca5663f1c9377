"""A machine that pushed before a repair builds on nothing that the repair found lost."""

from __future__ import annotations

from pathlib import Path

from lodefs.chunkstore.objects.composites.composite_objects import through_composites
from lodefs.chunkstore.repair.repair import RepairOptions, repair
from lodefs.chunkstore.repo.verify import verify
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
            through_composites(world.memory),
            [],
            RepairOptions(data=True, dry_run=False, clock=world.clock),
        )
        world.push(source, branch="again")
        assert verify(world.store, data=True).problems == []
