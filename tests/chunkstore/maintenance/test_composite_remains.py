"""What is left in composites: purged bytes go wherever they are, and what is sound is never
lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from lodefs.chunkstore.errors import Corrupt, Denied, LodefsError, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.composite import (
    COMPOSITES,
    LOOKED,
    CompositeName,
    CompositePlace,
    CompositeTable,
    encode_table,
    encode_tail,
    table_key,
)
from lodefs.chunkstore.format.names import ChunkId, PackId, digest_of
from lodefs.chunkstore.format.pack import DROPPED, PURGED, PackIndex
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.maintenance.merge import Unused
from lodefs.chunkstore.maintenance.moved_packs import drop_doubles, drop_purged_remains
from lodefs.chunkstore.maintenance.purge import PurgePlan, plan_again, plan_chunk, plan_path, purge
from lodefs.chunkstore.objects.interface import Part
from lodefs.chunkstore.objects.pack_locations import (
    PackBatch,
    PackLocations,
    join_etag,
    locations_of,
)
from lodefs.chunkstore.repair.repair import RepairOptions, repair
from lodefs.chunkstore.repair.sources.source import StoreSource
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.pack_reader import read_index
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.rate import Rate
from tests.support.chunkstore.faulty_store import FaultyObjects
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.baton import InlineExecutor
from tests.support.maintenance.composite_world import (
    FILES,
    composites,
    copied,
    files_of,
    grown,
    holders,
    merge,
)
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import REPO, World, finish, go_on_to

SECRET = Random(2).randbytes(5000)
GONE = Random(3).randbytes(9000)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A branch that grew by a file with each push."""
    with one_at_a_time():
        yield grown(tmp_path)


def compacted(world: World) -> None:
    """A pack that lies in a composite has lost chunks, and its older bytes lie in another
    composite."""
    world.push(world.source("whole", secret=SECRET, gone=GONE), "whole", "two")
    world.push(world.source("rest", secret=SECRET), "rest", "two")
    world.delete("whole")
    merge(world)
    for min_used in (1.0, None):
        world.collect(min_used=min_used)
        world.hours += 25
    assert len(holders(world, SECRET)) == 2


def test_a_purge_finds_what_a_compaction_left(world: World) -> None:
    """The bytes of a pack that is elsewhere now go too, and all else is there."""
    compacted(world)
    result = purge(world.store, plan_path(world.store, REPO, b"secret"), clock=world.clock)
    assert result.left == []
    assert holders(world, SECRET) == []
    assert verify(world.store, data=True).problems == []
    assert files_of(world.store) == FILES


def test_a_purge_finds_what_was_deleted(world: World) -> None:
    """The bytes of a pack that no table has any more are purged again, by their chunk."""
    world.push(world.source("other", secret=SECRET), branch="other", machine="two")
    plan = plan_path(world.store, REPO, b"secret")
    merge(world)
    world.delete("other")
    world.collect_all()
    assert holders(world, SECRET)
    purge(world.store, plan, clock=world.clock)
    assert holders(world, SECRET) == []
    assert files_of(world.store) == FILES


def test_a_purge_is_checked_there_too(world: World) -> None:
    """One that died before it emptied a composite is found by the check."""
    compacted(world)
    before = dict(world.memory.objects)
    purge(world.store, plan_path(world.store, REPO, b"secret"), clock=world.clock)
    documents = {k: v for k, v in world.memory.objects.items() if k.startswith(keys.PURGES)}
    world.memory.objects.clear()
    world.memory.objects.update({**before, **documents})
    plan = plan_again(world.store)
    assert plan.packs
    purge(world.store, plan, clock=world.clock)
    assert holders(world, SECRET) == []
    assert not plan_again(world.store).packs


def chunk_of(world: World, data: bytes) -> tuple[PackId, ChunkId]:
    """The pack, and the chunk, that has those bytes."""
    [composite] = holders(world, data)
    at = world.memory.objects[composite].index(data)
    for pack, place in locations_of(world.memory).tables.newest().places.items():
        if place.offset <= at < place.offset + place.size_bytes:
            index = world.store.packs.index(pack)
            number = max(n for n in range(len(index)) if index.offsets[n] <= at - place.offset)
            return pack, index.chunk_id(number)
    raise AssertionError("no pack has it")


def readable(world: World) -> set[PackId]:
    """The packs in composites that can be read."""
    found = set()
    for pack in locations_of(world.memory).tables.newest().places:
        try:
            index = world.store.packs.index(pack)
            world.store.packs.read_span(pack, 0, len(index))
            found.add(pack)
        except LodefsError:
            pass
    return found


def test_a_purge_in_a_damaged_composite(world: World) -> None:
    """What is sound is moved, what is damaged stays where it is, and the purge says whose bytes
    stay beside it. After a repair it is repeated."""
    merge(world)
    other = copied(world)
    [composite] = composites(world)
    data = world.memory.objects[composite]
    name = min(FILES, key=lambda name: data.index(FILES[name]))
    pack, chunk = chunk_of(world, FILES[name])
    places = locations_of(world.memory).tables.newest().places
    cut = sorted(place.offset for place in places.values())[-2]
    world.memory.objects[composite] = data[: cut + 7]
    sound = readable(world)
    assert len(sound) == len(places) - 2
    result = purge(world.store, plan_chunk(world.store, chunk), clock=world.clock)
    assert result.left
    assert readable(world) == sound
    options = RepairOptions(data=True, dry_run=False, clock=world.clock)
    assert not repair(locations_of(world.memory), [StoreSource(other.objects)], options).left
    again = purge(world.store, PurgePlan("", chunks=[chunk], packs={pack: 1}), clock=world.clock)
    assert again.left == []
    assert holders(world, FILES[name]) == []
    assert readable(world) == set(places)


def test_bytes_are_verified_before_a_composite_goes(world: World) -> None:
    """A bit that changes on its way is read again, and not made to last."""
    merge(world)
    plan = plan_path(world.store, REPO, b"f2")
    [composite] = composites(world)
    damaged: list[bool] = []

    def spoil(perform: Callable[[], Any]) -> Any:
        part: Part = perform()
        if len(part.data) < 1000 or not world.objects.count("put", COMPOSITES):
            return part
        damaged.append(len(damaged) % 2 == 0)
        data = bytes([part.data[0] ^ 1]) + bytes(part.data[1:])
        return msgspec.structs.replace(part, data=data) if damaged[-1] else part

    world.objects.forget()
    world.objects.add(spoil, "get", composite)
    result = purge(world.store, plan, clock=world.clock)
    assert damaged.count(True) > 3
    assert result.left == []
    assert holders(world, FILES[b"f2"]) == []
    world.objects.forget()
    assert verify(world.store, data=True).problems == []


@pytest.mark.parametrize("place", ["put composites/data/", "put composites/tables/"])
def test_a_merge_that_dies_beside_a_purge(world: World, place: str) -> None:
    """One that has read a pack before its purge puts it into no composite that readers see: it
    makes no table any more, and so it does not matter where it ends."""
    merge(world)
    world.push(world.source("other", secret=SECRET), branch="other", machine="two")
    world.push(world.source("others", more=GONE), branch="others", machine="two")
    late = world.actor("late", lambda store: merge(world, store))
    go_on_to(late, place)
    result = purge(world.store, plan_path(world.store, REPO, b"secret"), clock=world.clock)
    assert (result.left, result.writers) == ([], 0)
    newest = locations_of(world.memory).tables.newest().number
    finish(late)
    assert late.error is None
    assert locations_of(world.memory).tables.newest().number == newest
    assert holders(world, SECRET) == []
    assert merge(world)
    assert holders(world, SECRET) == []
    assert verify(world.store, data=True).problems == []


def test_a_full_table(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no room stays outside; the gc run does all else, and leaves nothing over."""
    for module in ("maintenance.merge", "objects.composite_tables"):
        monkeypatch.setattr(f"lodefs.chunkstore.{module}.TABLE_PACKS_MAX", 5)
    assert merge(world) == 5
    assert merge(world) == 0
    assert len(composites(world)) == 1
    assert files_of(world.store) == FILES


def packs_that_lack_chunks(world: World, store: Store) -> list[PackId]:
    """Of a store without composites, after compactions; found by the process of ``store``."""
    world.push(world.source("whole", secret=SECRET, gone=GONE), "whole", "two")
    world.push(world.source("rest", secret=SECRET), "rest", "two")
    world.delete("whole")
    for _ in range(3):
        world.collect(min_used=1.0)
        world.hours += 25
    packs = [pack for pack in map(keys.pack_of, world.packs()) if pack is not None]
    return [pack for pack in packs if store.packs.index(pack).has_gone]


def test_a_store_without_composites_costs_no_more(world: World) -> None:
    """A process looks for a table at the first pack that lacks chunks, and no more for the next."""
    store = world.store
    lacking = packs_that_lack_chunks(world, store)
    assert lacking
    world.objects.forget()
    for _ in range(3):
        read_index(store.objects, lacking[0])
    assert [call.operation for call in world.objects.calls] == ["get"] * 3


def test_threads_change_the_table_one_after_the_other() -> None:
    """None of one process meets another, and all packs are there in the end."""
    objects = PackLocations(MemoryObjects())
    objects.tables.admit()
    packs = [PackId(bytes([n]) * 32) for n in range(40)]
    with ThreadPoolExecutor(20) as executor:
        list(executor.map(lambda pack: objects.tables.put_packs({pack: b"x" * 100}), packs))
    assert set(objects.tables.newest().places) == set(packs)
    assert objects.tables.newest().number == len(packs)


def test_who_knows_an_old_table_finds_the_newest_at_once() -> None:
    """It lists, and does not ask for each number between."""
    plain = FaultyObjects(MemoryObjects())
    old, other = PackLocations(plain), PackLocations(plain)
    old.tables.admit()
    for n in range(50):
        other.tables.put_packs({PackId(bytes([n]) * 32): b"x" * 100})
    plain.forget()
    assert len(old.tables.newest().places) == 50
    assert len(plain.calls) < 6


def test_no_pack_without_bytes() -> None:
    """Neither a table nor a composite's list may have one: no reader would take that table."""
    name = CompositeName(1, "0" * 16)
    place = CompositePlace(name, 0, 0)
    with pytest.raises(Corrupt, match="without bytes"):
        encode_table(CompositeTable(1, {PackId(bytes(32)): place}))
    with pytest.raises(Corrupt, match="without bytes"):
        encode_tail(name, [(PackId(bytes(32)), place)])


def test_a_table_is_restored_beside_a_merge(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge that knows the table which is damaged meanwhile puts the next one while a repair
    reads what composites list: that one counts, and no file is lost."""
    merge(world)
    world.push(world.source("late", late=SECRET), "late", "two")
    late = world.actor("late", lambda store: world.collect(merge_below_bytes=1 << 20, store=store))
    go_on_to(late, "put composites/data/")
    newest = locations_of(world.memory).tables.newest().number
    world.memory.objects[table_key(newest)] = b"damaged"
    tables = locations_of(world.memory).tables
    merged: list[Any] = []
    tail = tables._tail

    def slow(name: CompositeName) -> Any:
        if not merged:
            merged.append(finish(late))
        return tail(name)

    monkeypatch.setattr(tables, "_tail", slow)
    assert tables.restore()
    assert merged
    tables.sweep()
    assert verify(world.store, data=True).problems == []
    assert files_of(world.store) == FILES


@pytest.mark.parametrize("bad_reads", [1, 1000])
def test_a_composite_whose_list_is_read_wrongly_stays(world: World, bad_reads: int) -> None:
    """While a lost table is made again: once, and nothing is lost; always, and the composite is
    there for who repairs it."""
    merge(world)
    before = composites(world)
    number = locations_of(world.memory).tables.newest().number
    world.memory.objects[table_key(number)] = b"damaged"
    get, left = world.memory.get, [bad_reads]

    def bad(key: str, **which: Any) -> Part:
        part = get(key, **which)
        if not (key.startswith(COMPOSITES) and which.get("offset", 0) < -64 and left[0]):
            return part
        left[0] -= 1
        return Part(b"\x00" * len(part.data), part.object_size_bytes, part.etag)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.memory, "get", bad)
        assert locations_of(world.memory).tables.restore()
        locations_of(world.memory).tables.sweep()
    assert left[0] < bad_reads
    assert composites(world) == before
    if bad_reads == 1:
        assert files_of(world.store) == FILES


def test_a_chunk_is_purged_whose_pack_was_deleted(world: World) -> None:
    """No pack has it any more, but a composite does: it goes, and then nothing has it."""
    world.push(world.source("other", more=GONE), branch="other", machine="two")
    merge(world)
    _, chunk = chunk_of(world, GONE)
    world.delete("other")
    world.collect_all()
    assert holders(world, GONE)
    purge(world.store, plan_chunk(world.store, chunk), clock=world.clock)
    assert holders(world, GONE) == []
    assert files_of(world.store) == FILES


def test_who_may_not_list_composites_reads_what_is_there(world: World) -> None:
    """A pack that lacks chunks is read as it is, and one that is missing is missing."""
    lacking = packs_that_lack_chunks(world, world.store)
    plain = FaultyObjects(world.memory)

    def denied(prefix: str, **_: Any) -> Any:
        raise Denied(f"list {prefix}: AccessDenied")

    objects = PackLocations(plain)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain, "list", denied)
        assert read_index(objects, lacking[0]).index.has_gone
        with pytest.raises(NotFound, match="AccessDenied"):
            objects.get(keys.pack(PackId(b"\1" * 32)), size=1)


def put_double(world: World, wanted: PackIndex, source: bytes, index: PackIndex) -> None:
    """Puts an object of its own for a pack that is in a composite, with these chunks of it."""
    runs = wanted.live_runs(0, len(wanted))
    parts = [source[index.offsets[at] : index.offsets[at + count]] for at, count in runs]
    world.memory.objects[keys.pack(wanted.pack_id)] = b"".join([*parts, wanted.encode()])


def pack_of_two(world: World) -> tuple[PackIndex, bytes, int, int]:
    """A pack in a composite with the secret and another file: its index, its object, and the
    numbers of both chunks."""
    world.push(world.source("both", gone=GONE, secret=SECRET), "both", "two")
    [key] = holders(world, SECRET)
    data = world.memory.objects[key]
    index = PackIndex.decode(PackId(bytes.fromhex(key[-64:])), data)
    merge(world)
    begins = list(index.offsets)
    return index, data, begins.index(data.index(SECRET)), begins.index(data.index(GONE))


def test_a_purge_finds_an_own_object_beside_a_composite(world: World) -> None:
    """A compaction that died has left an object of a pack that lacks a chunk, beside the same pack
    in a composite: readers see only the latter, and purged bytes go from both."""
    index, data, secret, gone = pack_of_two(world)
    plan = plan_path(world.store, REPO, b"secret")
    put_double(world, index.without(1 << gone, DROPPED), data, index)
    assert len(holders(world, SECRET)) == 2
    assert purge(world.store, plan, clock=world.clock).left == []
    assert holders(world, SECRET) == []
    assert verify(world.store, data=True).problems == []
    assert holders(world, GONE)
    put_double(world, index.without(1 << gone, DROPPED), data, index)  # it comes late
    again = plan_again(world.store)
    assert again.packs == {index.pack_id: 1 << secret}
    assert purge(world.store, again, clock=world.clock).left == []
    assert holders(world, SECRET) == []
    assert not plan_again(world.store).packs


def test_an_own_object_is_given_up_late(world: World) -> None:
    """Who has read both objects of a pack, and stands still while it is purged, does not put what
    it knows over the newer one."""
    index, data, _, gone = pack_of_two(world)
    put_double(world, index.without(1 << gone, PURGED), data, index)
    late = world.actor(
        "late", lambda store: drop_doubles(locations_of(store.objects), InlineExecutor())
    )
    go_on_to(late, "put composites/data/")
    purge(world.store, plan_path(world.store, REPO, b"secret"), clock=world.clock)
    finish(late)
    assert late.error is None
    locations_of(world.memory).tables.sweep()
    assert holders(world, SECRET) + holders(world, GONE) == []
    assert keys.pack(index.pack_id) not in world.memory.objects


def many_compacted(world: World) -> None:
    """Four packs in composites have chunks that nothing leads to."""
    for n in range(4):
        files = {"keep": bytes([n]) * 400 + SECRET, "drop": bytes([n]) * 400 + GONE}
        world.push(world.source(f"both{n}", **files), f"both{n}", "two")
        world.push(world.source(f"rest{n}", keep=files["keep"]), f"rest{n}", "two")
        world.delete(f"both{n}")
    merge(world)


def test_packs_in_composites_are_written_again_together(world: World) -> None:
    """A compaction and a purge of many, and a repair of many, make one composite each."""
    many_compacted(world)
    other = copied(world)
    world.collect(min_used=1.0)
    world.hours += 25
    tables = locations_of(world.memory).tables
    before, number = composites(world), tables.newest().number
    assert world.collect().compacted.packs == 4
    [compacted] = composites(world) - before
    assert holders(world, SECRET) == [*before, compacted]
    assert tables.newest().number <= number + 2  # one without what was deleted
    world.memory.delete(compacted)
    options = RepairOptions(data=True, dry_run=False, clock=world.clock)
    assert not repair(locations_of(world.memory), [StoreSource(other.objects)], options).left
    assert len(composites(world) - before) == 1
    assert verify(world.store, data=True).problems == []
    world.objects.forget()
    assert purge(world.store, plan_path(world.store, REPO, b"keep"), clock=world.clock).packs == 4
    assert world.objects.count("put", COMPOSITES) <= 2  # and one for what was beside them
    assert holders(world, SECRET) == []


def test_a_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held in memory goes into a composite when it would be too much; a pack that was moved
    meanwhile stays where it is."""
    monkeypatch.setattr("lodefs.chunkstore.objects.pack_locations.COMPOSITE_SIZE_BYTES", 250)
    objects = PackLocations(MemoryObjects())
    objects.tables.admit()
    packs = [PackId(bytes([n]) * 32) for n in range(5)]
    objects.tables.put_packs(dict.fromkeys(packs, b"x" * 100))
    seen = objects.tables.newest().places
    objects.tables.put_packs({packs[4]: b"y" * 100})
    batch = PackBatch(objects)
    for pack in packs:
        batch.add(pack, b"z" * 100, join_etag(seen[pack], ""))
    batch.flush()
    now = objects.tables.newest().places
    assert batch.stayed == {packs[4]}
    assert [now[pack].composite.number for pack in packs] == [3, 3, 4, 4, 2]


def test_what_was_looked_at_is_not_read_again(world: World) -> None:
    """After a purge a gc run looks once for its bytes at what counts no more in composites; and
    again after another purge, or when more counts no more."""
    world.push(world.source("other", y=GONE), branch="other", machine="two")
    world.push(world.source("more", z=b"z" * 900), branch="more", machine="two")
    merge(world)
    purge(world.store, plan_path(world.store, REPO, b"f2"), clock=world.clock)
    world.delete("other")
    world.collect_all()
    assert holders(world, GONE)

    def looks() -> int:
        world.objects.forget()
        world.collect()
        return world.objects.count("put", LOOKED)

    assert LOOKED in world.memory.objects
    assert looks() == 0
    world.memory.objects[LOOKED] = b"damaged"
    assert looks() == 1
    assert looks() == 0
    world.delete("more")
    world.collect()
    world.hours += 25
    assert looks() == 1
    assert looks() == 0
    Purges(world.memory).append([ChunkId(digest_of(GONE))], "", 0)  # who put it died then
    assert looks() == 1
    assert holders(world, GONE) == []


def test_a_composite_of_which_little_counts_is_put_again(world: World) -> None:
    """What was deleted and compacted stays in it, and is told as such, until a gc run with
    --min-used puts it again; a dry run says the same right before."""
    world.push(world.source("other", x=SECRET, y=GONE), branch="other", machine="two")
    merge(world)
    before = composites(world)
    world.delete("other")
    world.collect()
    world.hours += 25
    result = world.collect()
    left_bytes = result.unused.left_bytes
    assert left_bytes >= len(SECRET) + len(GONE)
    assert composites(world) == before
    sizes = [sum(map(len, world.memory.objects.values()))]
    assert world.collect(min_used=0.1).unused.left_bytes == left_bytes
    would = world.collect(min_used=0.9, dry_run=True).unused
    assert composites(world) == before
    result = world.collect(min_used=0.9)
    assert result.unused == would == Unused(1, left_bytes, 0)
    assert len(composites(world)) == 1
    assert composites(world) != before
    sizes.append(sum(map(len, world.memory.objects.values())))
    assert sizes[0] - sizes[1] > left_bytes * 0.9
    assert verify(world.store, data=True).problems == []
    assert files_of(world.store) == FILES
    assert world.collect(min_used=1.0).unused == Unused()


@pytest.mark.parametrize("is_merging", [False, True])
def test_a_dry_run_foresees_what_stays_in_composites(world: World, is_merging: bool) -> None:
    """After deletions and compactions that it leaves to be done."""
    many_compacted(world)
    below = (1 << 20) if is_merging else None
    for _ in range(3):
        would = world.collect(min_used=0.7, merge_below_bytes=below, dry_run=True)
        done = world.collect(min_used=0.7, merge_below_bytes=below)
        assert (would.unused, would.merged) == (done.unused, done.merged)
        world.hours += 25
        world.push(world.source("both0", more=b"m" * 900), "more", "two")
    assert world.collect(min_used=1.0).unused.left_bytes == 0


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("min_used", [None, 0.9])
def test_a_dry_run_foresees_what_is_joined(
    world: World, min_used: float | None, is_known: bool
) -> None:
    """A pack has an object of its own beside a composite, one of which knows of a purge: if the
    composite does not, the pack is put into another one, and what it leaves counts no more."""
    index, data, _, gone = pack_of_two(world)
    put_double(world, index.without(1 << gone, PURGED), data, index)
    if is_known:
        drop_doubles(locations_of(world.memory), InlineExecutor())
        put_double(world, index, data, index)
    before = dict(world.memory.objects)
    would = world.collect(dry_run=True, min_used=min_used)
    assert world.memory.objects == before
    assert would == world.collect(min_used=min_used)


def test_a_hidden_composite_is_looked_at_again(world: World) -> None:
    """One that a list shows, and that a read does not find, may have what was purged: it is not
    noted as one without, and the next gc run removes it."""
    world.push(world.source("other", y=GONE), "other", "two")
    world.push(world.source("more", z=b"z" * 900), "more", "two")
    merge(world)
    world.delete("other")
    world.collect_all()
    [composite] = holders(world, GONE)
    Purges(world.memory).append([ChunkId(digest_of(GONE))], "", 0)  # who put it died then
    get = world.memory.get

    def hidden(key: str, **which: Any) -> Part:
        if key == composite and which.get("offset", 0) >= 0:
            raise NotFound(f"{key} is missing")
        return get(key, **which)

    objects = locations_of(world.memory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.memory, "get", hidden)
        drop_purged_remains(objects, InlineExecutor(), Rate(None))
    assert holders(world, GONE) == [composite]
    drop_purged_remains(objects, InlineExecutor(), Rate(None))
    assert holders(world, GONE) == []
