"""Merging: many small packs become few objects, and nobody who reads, pushes, purges or repairs
meets an error, whoever stands still where."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from lodefs.chunkstore.errors import Corrupt, InvalidInput, Unavailable, UnknownFormat
from lodefs.chunkstore.format.composite import (
    COMPOSITES,
    TABLES,
    CompositeName,
    CompositePlace,
    CompositeTable,
)
from lodefs.chunkstore.format.names import PackId, digest_of
from lodefs.chunkstore.maintenance.collect import CollectOptions, CollectResult
from lodefs.chunkstore.maintenance.merge import batches
from lodefs.chunkstore.maintenance.purge import plan_again, plan_path, purge
from lodefs.chunkstore.objects.pack_locations import (
    COMPOSITE_SIZE_BYTES,
    PackLocations,
    locations_of,
)
from lodefs.chunkstore.repair.repair import RepairOptions, repair
from lodefs.chunkstore.repair.sources.source import StoreSource
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.store import open_store
from tests.support.chunkstore.faulty_store import FaultyObjects, fail
from tests.support.maintenance.composite_world import (
    BELOW,
    FILES,
    PUSHES,
    composites,
    copied,
    files_of,
    grown,
    holders,
    merge,
)
from tests.support.maintenance.dry_runs import check_dry_run
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import REPO, World, finish, go_on_to

_random = Random(1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A branch that grew by a file with each push."""
    with one_at_a_time():
        yield grown(tmp_path)


def test_many_packs_become_one_object(world: World) -> None:
    """All packs of all pushes go into one composite; who has read their indexes before goes on, who
    opens the store reads all, and a check of every byte finds nothing wrong."""
    reader = world.store
    assert files_of(reader) == FILES
    packs = len(world.packs())
    assert packs == 2 * PUSHES
    would = world.collect(merge_below_bytes=BELOW, dry_run=True).merged
    assert (would.packs, would.objects, len(world.packs())) == (packs, 1, packs)
    assert merge(world) == packs
    assert (len(world.packs()), len(composites(world))) == (0, 1)
    assert files_of(reader) == FILES
    assert files_of(world.store) == FILES
    assert verify(world.store, data=True).problems == []
    assert merge(world) == 0


def test_small_composites_are_merged_too(world: World) -> None:
    """What later pushes bring joins the composite that is there, and so there is one again."""
    merge(world)
    for n in range(4):
        world.push(world.source("files", **{f"more{n}": _random.randbytes(900)}))
        world.hours += 1
    result = world.collect(merge_below_bytes=BELOW).merged
    assert (result.objects_before, result.objects, len(composites(world))) == (1, 1, 1)
    assert world.packs() == set()
    world.needs.read_all()
    assert len(files_of(world.store)) == PUSHES + 4


def test_what_goes_together() -> None:
    """Pure: as many as a composite takes; nothing for one pack; a large composite stays as it
    is."""

    def pack(n: int) -> PackId:
        return PackId(bytes([n]) * 32)

    half = COMPOSITE_SIZE_BYTES // 2
    assert batches([(pack(1), 5)], CompositeTable(-1)) == []
    assert [
        len(part) for part in batches([(pack(n), half) for n in range(5)], CompositeTable(-1))
    ] == [
        2,
        2,
        1,
    ]
    large = CompositeTable(3, {pack(9): CompositePlace(CompositeName(3, "0" * 16), 0, 5000)})
    assert batches([(pack(1), 5), (pack(2), 5)], large) == [[(pack(1), 5), (pack(2), 5)]]
    [joined] = batches([(pack(1), 5), (pack(2), 2000)], large)
    assert len(joined) == 3


@pytest.mark.parametrize("below", [0, -5, 1 << 30])
def test_a_size_that_is_none(world: World, below: int) -> None:
    """It says what is one."""
    with pytest.raises(InvalidInput, match="16 MiB"):
        world.collect(merge_below_bytes=below)


def test_a_table_of_a_newer_version_is_told(world: World) -> None:
    """Readers say that a newer lodefs is needed, and report no pack as lost."""
    merge(world)
    table = min(key for key in world.memory.objects if key.startswith(TABLES))
    newer = bytearray(world.memory.objects[table])
    newer[8] = 9
    newer[-32:] = digest_of(bytes(newer[:-32]))
    world.memory.objects[table] = bytes(newer)
    with pytest.raises(UnknownFormat, match="newer lodefs"):
        files_of(world.store)


@pytest.mark.parametrize("operation", ["put", "delete"])
def test_a_crash_at_any_write(world: World, operation: str) -> None:
    """Whichever write or delete is a merge's last: all is there at once, and after the next merge
    nothing of it is left over."""
    merge(world)
    for n in range(3):
        world.push(world.source("files", **{f"more{n}": _random.randbytes(900)}))
    before = dict(world.memory.objects)
    for count in range(1, 40):
        world.memory.objects.clear()
        world.memory.objects.update(before)
        objects = FaultyObjects(world.memory)
        objects.add(fail(Unavailable("gone")), operation, first=count)
        with contextlib.suppress(Unavailable):
            merge(world, open_store(PackLocations(objects)))
            break
        world.needs.read_all()
        merge(world)
        world.needs.read_all()
        assert world.packs() == set()
        assert len(composites(world)) == 1
    assert count > 4


@pytest.mark.parametrize(
    "place", ["put composites/data/", "put composites/tables/", "delete packs/"]
)
def test_two_at_once(world: World, place: str) -> None:
    """One stands still while the other merges the same packs, and more is pushed and merged: both
    end well, and everything is there."""
    late = world.actor("late", lambda store: merge(world, store))
    go_on_to(late, place)
    merge(world)
    world.push(world.source("files", more=b"more" * 900))
    world.push(world.source("files", less=b"less" * 900))
    merge(world)
    finish(late)
    assert late.error is None
    world.needs.check("after the late merge")
    world.needs.read_all()
    world.collect_all()
    assert world.garbage() == set()
    world.needs.read_all()


@pytest.mark.parametrize("place", ["put composites/tables/", "delete packs/"])
def test_a_collection_beside_a_merge(world: World, place: str) -> None:
    """One that removes what dead merges left takes nothing from one that lives: it tries again."""
    late = world.actor("late", lambda store: merge(world, store))
    go_on_to(late, place)
    world.collect()
    finish(late)
    assert late.error is None
    world.needs.check("after the late merge")
    assert (len(composites(world)), len(world.packs())) == (1, 0)
    assert files_of(world.store) == FILES


def test_what_nothing_leads_to_goes(world: World) -> None:
    """Packs in a composite are garbage as others are, and a composite goes with its last pack."""
    world.push(world.source("other", x=b"x" * 5000), branch="other", machine="two")
    merge(world)
    world.delete()
    world.collect_all()
    assert (
        len(holders(world, FILES[b"f0"])) == 1
    )  # beside what is in use, until composites are merged
    assert world.garbage() == set()
    assert files_of(world.store, "other") == {b"x": b"x" * 5000}
    world.delete("other")
    world.collect_all()
    assert composites(world) | world.packs() == set()


def test_a_push_uses_what_is_in_composites_again(world: World) -> None:
    """From another machine too: it sends nothing of it."""
    merge(world)
    again = world.source("again", **{name.decode(): data for name, data in FILES.items()}, y=b"y")
    for machine in ("one", "other"):
        result = world.push(again, branch=machine, machine=machine)
        assert result.new_bytes == (1 if machine == "one" else 0)
    world.collect_all()
    assert files_of(world.store, "one") == {**FILES, b"y": b"y"}


def test_packs_in_composites_are_compacted(world: World) -> None:
    """They lose chunks as others do."""
    everything = {name.decode(): data for name, data in FILES.items()}
    world.push(world.source("whole", **everything, gone=b"g" * 9000), "whole", "two")
    world.push(world.source("rest", **everything, kept=b"k" * 9000), "rest", "two")
    world.delete("whole")
    merge(world)
    for _ in range(3):
        world.collect(min_used=1.0, merge_below_bytes=BELOW)
        world.hours += 25
    assert world.needs.unused_chunks(set(), int(world.clock())) == set()
    world.needs.read_all()
    assert files_of(world.store, "rest").keys() == {*FILES, b"kept"}


def test_a_pack_that_lacks_chunks_stays_outside(world: World) -> None:
    """A copy may yet bring them."""
    world.collect_all()
    [key] = [key for key in world.packs() if FILES[b"f0"] in world.memory.objects[key]]
    plain = world.memory.objects[key]
    with contextlib.suppress(KeyError):
        del world.memory.objects[key]
    assert merge(world) == 2 * PUSHES - 1
    world.memory.objects[key] = plain
    world.needs.read_all()


def test_a_dry_run_knows_what_stays_outside(world: World) -> None:
    """It foresees no merge of a pack that lacks chunks."""
    purge(world.store, plan_path(world.store, REPO, b"f0"), clock=world.clock)
    options = CollectOptions(clock=world.clock, workers=1, merge_below_bytes=BELOW)
    result = check_dry_run(world.memory, options)
    assert isinstance(result, CollectResult)
    assert result.merged.packs == 2 * PUSHES - 1


def test_a_purge_reaches_into_composites(world: World) -> None:
    """At once the bytes are in no object; all else is there."""
    merge(world)
    secret = FILES[b"f2"]
    assert holders(world, secret)
    purge(world.store, plan_path(world.store, REPO, b"f2"), clock=world.clock)
    assert holders(world, secret) == []
    result = verify(world.store, data=True)
    assert result.problems == []
    assert "f2" in result.purged[0]
    assert not plan_again(world.store).packs


@pytest.mark.parametrize(
    "place", ["put composites/data/", "put composites/tables/", "head packs/", "delete packs/"]
)
def test_a_purge_beside_a_merge(world: World, place: str) -> None:
    """A merge that has read a pack, and goes on after a purge of it, brings nothing back."""
    late = world.actor("late", lambda store: merge(world, store))
    go_on_to(late, place)
    purge(world.store, plan_path(world.store, REPO, b"f2"), clock=world.clock)
    finish(late)
    assert late.error is None
    assert holders(world, FILES[b"f2"]) == []
    assert verify(world.store, data=True).problems == []


@pytest.mark.parametrize("how", ["lost", "spoilt"])
@pytest.mark.parametrize("what", [COMPOSITES, TABLES])
def test_a_repair(world: World, what: str, how: str) -> None:
    """The table comes back from the composites alone, what was in a composite from another
    store."""
    merge(world)
    for name in ("more", "less"):
        world.push(world.source("files", **{name: name.encode() * 900}))
    merge(world)
    other = copied(world)
    key = min(key for key in world.memory.objects if key.startswith(what))
    sound = world.memory.objects.pop(key)
    if how == "spoilt":
        at = sound.index(FILES[b"f2"]) if what == COMPOSITES else 40
        world.memory.objects[key] = sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :]
    with contextlib.suppress(Corrupt):
        assert verify(world.store, data=True).problems
    sources = [StoreSource(other.objects)] if what == COMPOSITES else []
    for dry_run in (True, False):
        options = RepairOptions(data=True, dry_run=dry_run, clock=world.clock)
        result = repair(locations_of(world.memory), sources, options)
        assert result.findings
        assert dry_run or not result.left
    assert verify(world.store, data=True).problems == []
    assert files_of(world.store) == files_of(other)
    for _ in range(2):
        merge(world)
        world.hours += 25
    assert len(composites(world)) <= 2
    assert files_of(world.store) == files_of(other)


def test_a_lost_table_is_no_empty_one(world: World) -> None:
    """While it is not known where packs lie, nothing is taken for garbage."""
    merge(world)
    world.push(world.source("files", more=b"more" * 900))
    world.push(world.source("files", less=b"less" * 900))
    merge(world)
    newest = min(key for key in world.memory.objects if key.startswith(TABLES))
    del world.memory.objects[newest]
    before = dict(world.memory.objects)
    with pytest.raises(Corrupt, match="lodefs repair"):
        world.collect(merge_below_bytes=BELOW)
    assert world.memory.objects == before


def test_all_tables_are_lost(world: World) -> None:
    """Neither a gc run nor a purge takes composites for what a dead merge left, and none
    invents a table: they stop, until a repair has made it again."""
    world.push(world.source("other", x=b"x" * 5000), branch="other", machine="two")
    plan = plan_path(world.store, REPO, b"x")
    merge(world)
    for table in [key for key in world.memory.objects if key.startswith(TABLES)]:
        del world.memory.objects[table]
    world.push(world.source("new", y=b"y" * 5000), branch="new", machine="three")
    before = dict(world.memory.objects)
    with pytest.raises(Corrupt, match="lodefs repair"):
        merge(world)
    with pytest.raises(Corrupt, match="lodefs repair"):
        locations_of(world.memory).tables.sweep()
    assert world.memory.objects == before
    with pytest.raises(Corrupt, match="lodefs repair"):
        purge(world.store, plan, clock=world.clock)
    repair(
        locations_of(world.memory),
        [],
        RepairOptions(data=True, dry_run=False, clock=world.clock),
    )
    merge(world)
    assert files_of(world.store) == FILES
    assert world.packs() == set()


def test_a_copy_takes_what_is_in_composites(world: World) -> None:
    """It has packs as they were pushed: history and bytes are the same."""
    merge(world)
    assert files_of(copied(world)) == FILES
