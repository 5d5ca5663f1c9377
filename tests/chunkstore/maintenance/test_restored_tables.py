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
from lodefs.chunkstore.format.composite import TABLES
from lodefs.chunkstore.format.names import ChunkId, PackId, digest_of
from lodefs.chunkstore.maintenance.purge import plan_chunk, plan_path, purge
from lodefs.chunkstore.objects.pack_locations import locations_of
from lodefs.chunkstore.repair.repair import RepairOptions, repair
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.pack_reader import read_index
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
    for key in [key for key in world.memory.objects if key.startswith(TABLES)]:
        del world.memory.objects[key]


def restore(world: World, *hidden: str) -> None:
    """A repair; its lists lack those composites."""
    listed = world.memory.list

    def lacking(prefix: str, **which: Any) -> Any:
        return (info for info in listed(prefix, **which) if info.key not in hidden)

    options = RepairOptions(data=False, dry_run=False, clock=world.clock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.memory, "list", lacking)
        assert repair(locations_of(world.memory), [], options).findings


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
    """A repair does not know of it, and the next gc run takes it into the table: nothing is
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
    number = locations_of(world.memory).tables.newest().number
    world.collect()
    assert locations_of(world.memory).tables.newest().number == number


def test_a_merge_that_knows_a_lost_table(world: World) -> None:
    """One that stood still while a repair made the table again, and a purge moved packs, puts its
    own packs beside these: nothing is lost."""
    merge(world)
    for _ in range(4):
        locations_of(world.memory).tables.fence()
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


def overlooked_secret(world: World) -> str:
    """A pack that has the secret lies in a composite that a repair overlooked, whose key this is,
    and another one that has it lies in none."""
    secret = SECRET[:1500]
    merge(world)
    [first] = composites(world)
    world.push(world.source("other", secret=secret), "other", "two")
    merge(world)
    [second] = composites(world) - {first}
    listed = world.memory.list
    with pytest.MonkeyPatch.context() as patch:  # so that the bytes are stored again
        patch.setattr(
            world.memory,
            "list",
            lambda prefix, **w: (i for i in listed(prefix, **w) if not i.key.startswith("index/")),
        )
        world.push(world.source("again", secret=secret, z=b"z" * 700), "again", "three")
    lose_tables(world)
    restore(world, second)
    return second


@pytest.mark.parametrize("is_planned_before", [True, False])
@pytest.mark.parametrize("request_of_sweep", ["put composites/data/", "put composites/tables/", ""])
def test_a_purge_beside_a_collection_that_finds_a_composite(
    world: World, request_of_sweep: str, is_planned_before: bool
) -> None:
    """Which stands anywhere as it puts the packs again, or does all between the plan and the purge:
    what was purged is nowhere."""
    overlooked_secret(world)
    chunk = ChunkId(digest_of(SECRET[:1500]))
    plan = plan_chunk(world.store, chunk)
    late = world.actor("late", lambda store: world.collect(store=store))
    if request_of_sweep:
        go_on_to(late, request_of_sweep)
    else:
        finish(late)
    if not is_planned_before:
        plan = plan_chunk(world.store, chunk)
    assert purge(world.store, plan, clock=world.clock).left == []
    if not late.has_ended:
        finish(late)
    assert readable_by_index(world, chunk) == []
    world.collect()
    assert holders(world, SECRET[:1500]) == []
    with pytest.raises(Purged):
        files_of(world.store, "other")


def test_a_sweep_that_dies_beside_a_purge(world: World) -> None:
    """Who has read packs of an overlooked composite before their purge puts no table of them, also
    if a list has hidden it from the purge."""
    second = overlooked_secret(world)
    chunk = ChunkId(digest_of(SECRET[:1500]))
    late = world.actor("late", lambda store: world.collect(store=store))
    go_on_to(late, "put composites/tables/")
    listed = world.memory.list
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            world.memory,
            "list",
            lambda prefix, **which: (i for i in listed(prefix, **which) if i.key != second),
        )
        purge(world.store, plan_chunk(world.store, chunk), clock=world.clock)
    late.step()
    while not late.has_ended:
        assert readable_by_index(world, chunk) == []
        late.step()


def test_a_table_that_is_put_in_the_middle_of_a_purge(world: World) -> None:
    """Between its document and its own table: who put the packs looks for purges afterwards."""
    overlooked_secret(world)
    chunk = ChunkId(digest_of(SECRET[:1500]))
    late = world.actor("late", lambda store: world.collect(store=store))
    go_on_to(late, "put composites/tables/")
    plan = plan_chunk(world.store, chunk)
    one = world.actor("purge", lambda store: purge(store, plan, clock=world.clock))
    go_on_to(one, "put composites/tables/")
    finish(late)
    finish(one)
    assert readable_by_index(world, chunk) == []


def readable_by_index(world: World, chunk: ChunkId) -> list[PackId]:
    """The packs in which readers find a chunk."""
    objects = locations_of(world.memory)
    found = []
    for info in objects.list(keys.PACKS):
        index = read_index(objects, keys.pack_of(info.key) or PackId(b"")).index
        if any(index.chunk_id(n) == chunk and not index.is_gone(n) for n in range(len(index))):
            found.append(index.pack_id)
    return found


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("is_in_composite", [False, True])
def test_tables_are_lost_together_with_purges(
    world: World, is_lost: bool, is_in_composite: bool
) -> None:
    """A repair makes both again, and no reader gets what was purged: what no purge tells any more,
    the packs do, wherever they lie."""
    merge(world)
    world.push(world.source("other", secret=SECRET), "other", "two")
    if is_in_composite:
        merge(world)
    world.push(world.source("others", more=b"m" * 900), "others", "two")
    late = world.actor("late", lambda store: merge(world, store))
    go_on_to(late, "put composites/data/")
    purge(world.store, plan_path(world.store, "r", b"secret"), clock=world.clock)
    late.kill(after_request=True)
    lose_tables(world)
    purges = sorted(key for key in world.memory.objects if key.startswith(keys.PURGES))
    for key in purges[:1] if is_lost else purges:
        if is_lost:
            del world.memory.objects[key]
        else:
            world.memory.objects[key] = b"damaged"
    restore(world)
    with pytest.raises(Purged):
        files_of(world.store, "other")
    assert verify(world.store, data=True).problems == []
    world.collect()
    assert holders(world, SECRET) == []
