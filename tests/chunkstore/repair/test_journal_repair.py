"""What the journal lacks is named where anything else tells of it, and put back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.chunkstore.repair.journal_repair import JournalRepair
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import World, go_on_to


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Three branches that went one after the other, each collected; and a push that stands still,
    and has said that it is alive."""
    with one_at_a_time():
        world = World(tmp_path)
        world.push(world.source("stays", file=b"stays" * 999))
        for n in range(3):
            world.push(world.source(f"gone{n}", file=b"%d" % n * 5000), "gone")
            world.delete("gone")
            world.collect_all()
        source = world.source("slow", file=b"slow" * 999)
        push = world.actor("push", lambda store: world.push(source, "slow", "two", store=store))
        go_on_to(push, "put packs/")
        world.beat(push)
        world.collect()
        yield world


def found(world: World, *, dry_run: bool) -> dict[str, str]:
    """One look at the journal, and its repair."""
    repair = JournalRepair(world.memory, dry_run=dry_run, clock=world.clock)
    repair.look()
    repair.repair({}, set(), {})
    return repair.problems


def journal_of(world: World, what: str) -> list[str]:
    """The keys of all parts of a kind, newest first."""
    return [info.key for info in world.memory.list(f"journal/{what}")]


def test_nothing_is_lost(world: World) -> None:
    """A writer that has not ended, and garbage that waits, are none."""
    assert found(world, dry_run=False) == {}


@pytest.mark.parametrize("what", ["ends/", "beats/", "done/", "ledger"])
def test_what_is_lost_is_named(world: World, what: str) -> None:
    """How a writer ended, that one is alive, that outcomes were carried out, the ledger: each of
    them alone, but for the newest outcome; a dry run changes nothing, and a repair is enough."""
    lost = journal_of(world, what)
    assert lost
    if what == "done/":
        assert len(lost) > 1
        lost = lost[1:]
    before = dict(world.memory.objects)
    for key in lost:
        world.memory.objects = {other: data for other, data in before.items() if other != key}
        assert found(world, dry_run=True) == {key: "lost"}
        assert key not in world.memory.objects
        assert found(world, dry_run=False) == {key: "lost"}
        assert key in world.memory.objects
        assert found(world, dry_run=False) == {}
        world.collect()


def test_a_newest_outcome_that_was_carried_out_twice(world: World) -> None:
    """Nothing tells that the newest "done" is lost; the next gc run does the same again."""
    newest = journal_of(world, "done/")[0]
    del world.memory.objects[newest]
    assert found(world, dry_run=False) == {}
    world.collect()
    assert newest in world.memory.objects
