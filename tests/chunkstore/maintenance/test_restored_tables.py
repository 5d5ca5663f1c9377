"""A table of composites that was lost and made again: by what a list shows, which may lack some,
and may show what was purged since."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lodefs.chunkstore.errors import Purged
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.maintenance.purge import plan_path, purge
from lodefs.chunkstore.objects.composites.composite_objects import through_composites
from lodefs.chunkstore.repair.repair import RepairOptions, repair
from lodefs.chunkstore.repo.verify import verify
from tests.support.maintenance.composite_world import (
    FILES,
    composites,
    files_of,
    grown,
    holders,
    merge,
)
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import World, finish, go_on_to

SECRET = Random(2).randbytes(5000)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A branch that grew by a file with each push."""
    with one_at_a_time():
        yield grown(tmp_path)


def lose_tables(world: World) -> None:
    """All of them."""
    for key in [key for key in world.memory.objects if key.startswith(keys.COMPOSITE_TABLES)]:
        del world.memory.objects[key]


def restore(world: World, *hidden: str) -> None:
    """A repair; its lists lack those composites."""
    listed = world.memory.list

    def lacking(prefix: str, **which: Any) -> Any:
        return (info for info in listed(prefix, **which) if info.key not in hidden)

    options = RepairOptions(data=False, dry_run=False, clock=world.clock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.memory, "list", lacking)
        assert repair(through_composites(world.memory), [], options).findings


def test_what_was_purged_does_not_come_back(world: World) -> None:
    """A composite of a merge that died has bytes that were purged since, and a table that was lost
    is made of it: no reader gets them."""
    merge(world)
    world.push(world.source("other", secret=SECRET), "other", "two")
    world.push(world.source("others", more=b"m" * 900), "others", "two")
    late = world.actor("late", lambda store: merge(world, store))
    go_on_to(late, "put composites/data/")
    assert purge(world.store, plan_path(world.store, "r", b"secret"), clock=world.clock).left == []
    late.kill(after_request=True)
    lose_tables(world)
    assert holders(world, SECRET)
    restore(world)
    with pytest.raises(Purged):
        files_of(world.store, "other")
    result = verify(world.store, data=True)
    assert result.problems == []
    assert "secret" in result.purged[0]
    world.collect()
    assert holders(world, SECRET) == []
    assert files_of(world.store) == FILES


def second_composite(world: World) -> str:
    """The key of a composite that has another branch, beside that of the first."""
    merge(world)
    [first] = composites(world)
    for n in range(2):
        source = world.source(f"other{n}", secret=SECRET, y=b"%d" % n * 900)
        world.push(source, f"other{n}", "two")
    world.collect(merge_below_bytes=2000)
    [second] = composites(world) - {first}
    return second


@pytest.mark.parametrize("is_purged", [False, True])
def test_a_composite_that_a_list_lacked(world: World, is_purged: bool) -> None:
    """A repair does not know of it, and the next collection takes it into the table: nothing is
    lost, and what was purged meanwhile is not in it any more."""
    second = second_composite(world)
    lost = files_of(world.store, "other1")
    plan = plan_path(world.store, "r", b"secret")
    lose_tables(world)
    restore(world, second)
    assert verify(world.store).problems
    if is_purged:
        listed = world.memory.list
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                world.memory,
                "list",
                lambda prefix, **which: (i for i in listed(prefix, **which) if i.key != second),
            )
            purge(world.store, plan, clock=world.clock)
    world.collect()
    assert second not in world.memory.objects
    assert files_of(world.store) == FILES
    if is_purged:
        assert holders(world, SECRET) == []
        with pytest.raises(Purged):
            files_of(world.store, "other1")
    else:
        assert files_of(world.store, "other1") == lost
    assert verify(world.store, data=True).problems == []


def test_what_was_written_again_since_counts(world: World) -> None:
    """Of a composite that was overlooked only what lies nowhere else, or only in an older one, is
    taken; what a later one has stays as it is there."""
    second = second_composite(world)
    purge(world.store, plan_path(world.store, "r", b"f2"), clock=world.clock)
    newest = max(composites(world))
    assert newest != second
    expected = verify(world.store, data=True)
    lose_tables(world)
    restore(world, newest)
    world.collect()
    assert verify(world.store, data=True) == expected
    assert holders(world, FILES[b"f2"]) == []
    number = through_composites(world.memory).tables.newest().number
    world.collect()
    assert through_composites(world.memory).tables.newest().number == number


def test_a_merge_that_knows_a_lost_table(world: World) -> None:
    """One that stood still while a repair made the table again, and a purge moved packs, puts its
    own packs beside these: nothing is lost."""
    merge(world)
    for _ in range(4):
        through_composites(world.memory).tables.fence()
    for name in ("first", "second"):
        world.push(world.source(name, a=name.encode() * 300), name, "two")
    late = world.actor("late", lambda store: merge(world, store))
    go_on_to(late, "put composites/data/")
    lose_tables(world)
    restore(world)
    purge(world.store, plan_path(world.store, "r", b"f0"), clock=world.clock)
    finish(late)
    world.collect()
    assert verify(world.store, data=True).problems == []
    assert files_of(world.store, "second") == {b"a": b"second" * 300}
