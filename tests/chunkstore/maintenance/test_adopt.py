"""Adopting, gc and purges of packs that lie in place: nobody's objects are touched."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Purged, SourceLost, SourceUnknown, Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.journal import DeadChunks
from lodefs.chunkstore.format.names import PackId, Spec
from lodefs.chunkstore.format.pack import PURGED
from lodefs.chunkstore.maintenance.accounts import store_account
from lodefs.chunkstore.maintenance.adopt import AdoptResult, adopt
from lodefs.chunkstore.maintenance.collect import CollectOptions, collect
from lodefs.chunkstore.maintenance.compact import drop_all
from lodefs.chunkstore.maintenance.purge import plan_path, purge
from lodefs.chunkstore.objects.in_place.virtual_packs import VirtualPacks
from lodefs.chunkstore.push.remote import remote_files
from lodefs.chunkstore.repo.pack_reader import PackReader, read_index
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import open_store
from lodefs.chunkstore.system.rate import Rate
from tests.support.chunkstore.faulty_store import Effect, FaultyObjects, fail
from tests.support.chunkstore.in_place_world import InPlaceWorld
from tests.support.chunkstore.memory_source import sources_of
from tests.support.maintenance.baton import InlineExecutor, Killed

MAIN = Spec("r", "main")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InPlaceWorld:
    """A world whose bucket the URL leads to."""
    world = InPlaceWorld(tmp_path)
    monkeypatch.setitem(remote_files.SCHEMES, "memory", lambda _url: world.remote)
    return world


def adopted(world: InPlaceWorld, *, dry_run: bool = False) -> AdoptResult:
    return adopt(open_store(world.objects()), MAIN, dry_run=dry_run)


def filled(world: InPlaceWorld) -> dict[str, bytes]:
    """Imports large objects with small ones between them, for more than one pack."""
    files = {f"{n:02}": world.put(f"{n:02}", 3000 if n % 3 else 3_000_000) for n in range(15)}
    world.imported()
    assert len(world.packs_in_place()) > 1
    return files


def test_every_byte_is_there_without_the_bucket(world: InPlaceWorld) -> None:
    """The bucket is not needed any more, the commit is the same, and a second time does nothing."""
    files = filled(world)
    commit = open_store(world.objects()).resolve("r", "main")
    foreseen = adopted(world, dry_run=True)
    assert world.packs_in_place()
    result = adopted(world)
    assert (foreseen.packs, foreseen.size_bytes) == (result.packs, result.size_bytes)
    assert result.size_bytes == 15_000_000
    for key in files:
        world.source.delete(key)
    assert {key: world.read(key) for key in files} == files
    assert not world.packs_in_place()
    assert open_store(world.objects()).resolve("r", "main") == commit
    assert adopted(world) == AdoptResult()


def test_bytes_that_compress_are_compressed(world: InPlaceWorld) -> None:
    """A pack of our own has them as a push would have stored them."""
    world.source.put("a", b"All work and no play. " * 40_000)
    world.imported()
    result = adopted(world)
    assert result.stored_bytes < result.size_bytes / 10
    assert world.read("a") == b"All work and no play. " * 40_000


def test_what_is_lost_is_named_and_the_rest_adopted(world: InPlaceWorld) -> None:
    """An object that is gone costs its own file alone, even in the pack of others; once it is back
    the rest is adopted."""
    files = filled(world)
    world.source.delete("03")
    result = adopted(world)
    assert any("source/03 " in line and "gone" in line for line in result.lost)
    for key in files:
        world.source.delete(key)
    for key in files:
        if key != "03":
            assert world.read(key) == files[key]
    with pytest.raises(SourceLost, match="source/03 "):
        world.read("03")
    world.source.put("03", files["03"])
    again = adopted(world)
    assert not again.lost
    assert again.size_bytes == 3_000_000
    world.source.delete("03")
    assert world.read("03") == files["03"]


def test_an_interrupted_adoption_goes_on(world: InPlaceWorld) -> None:
    """After an error in the middle every file can be read, and the next call does the rest."""
    files = filled(world)
    faulty = FaultyObjects(world.memory)
    faulty.add(fail(Unavailable("the power is gone")), "put", "packs/", first=2)
    store = open_store(VirtualPacks(faulty, sources_of(world.source)))
    with pytest.raises(Unavailable):
        adopt(store, MAIN)
    assert {key: world.read(key) for key in files} == files
    assert 0 < adopted(world).size_bytes < 15_000_000
    assert not world.packs_in_place()
    assert {key: world.read(key) for key in files} == files


def test_a_purge_that_puts_its_pack_late(world: InPlaceWorld) -> None:
    """A purge has read a pack in place, and puts it again, still in place, once it is adopted."""
    key = "00"
    data = world.put(key)
    world.imported()
    (pack,) = world.packs_in_place()
    before = world.memory.objects[keys.pack(pack)]

    def put_late(perform: Callable[[], str]) -> str:
        etag = perform()
        world.memory.put(keys.pack(pack), [before])
        return etag

    faulty = FaultyObjects(world.memory)
    faulty.add(put_late, "put", keys.pack(pack), times=1)
    result = adopt(open_store(VirtualPacks(faulty, sources_of(world.source))), MAIN)
    assert (result.packs, result.size_bytes) == (1, len(data))
    assert not world.packs_in_place()
    world.source.delete(key)
    assert world.read(key) == data


def test_a_purge_during_an_adoption_that_fails(world: InPlaceWorld) -> None:
    """Bytes that were purged while a pack was adopted do not stay, even if the answer to its put is
    lost."""
    gone, stays = world.put("00"), world.put("01")
    world.imported()
    (pack,) = world.packs_in_place()

    def purge_first(perform: Callable[[], str]) -> str:
        store = open_store(world.objects())
        assert not purge(store, plan_path(store, "r", b"00")).left
        perform()
        raise Unavailable("the answer is lost")

    faulty = FaultyObjects(world.memory)
    faulty.add(purge_first, "put", keys.pack(pack), times=1)
    with pytest.raises(Unavailable, match="the answer is lost"):
        adopt(open_store(VirtualPacks(faulty, sources_of(world.source))), MAIN)
    with pytest.raises(Purged):
        world.read("00")
    assert world.read("01") == stays
    assert not any(gone[:1000] in data for data in world.memory.objects.values())


def killed_at(first: int, *, done: bool) -> Effect:
    """The process is killed at its ``first`` request, or right after that is ``done``. No later one
    does anything."""
    numbers = itertools.count(first)

    def effect(perform: Callable[[], object]) -> object:
        if done and next(numbers) == first:
            perform()
        raise Killed

    return effect


@pytest.mark.parametrize("done", [False, True])
def test_a_kill_at_any_request(world: InPlaceWorld, *, done: bool) -> None:
    """Wherever an adoption is killed, every file can be read, and a repetition adopts only the
    packs that are left. Then the bucket is not needed, and the store has the same packs."""
    files = {}
    for n in range(6):  # the packs of six commits, two for each thread
        files[f"{n}"] = world.put(f"{n}", 100_000)
        world.imported()
    before, packs = dict(world.memory.objects), set(world.packs_in_place())
    packs_before = {key for key in before if "packs/" in key}
    assert len(packs) == len(files)
    for first in itertools.count(1):
        faulty = FaultyObjects(world.memory)
        faulty.add(killed_at(first, done=done), first=first)
        with suppress(Killed):
            adopt(open_store(VirtualPacks(faulty, sources_of(world.source))), MAIN)
            assert first > 6 * len(files), "each pack takes several requests"
            break
        assert {key: world.read(key) for key in files} == files
        left = set(world.packs_in_place())
        again = FaultyObjects(world.memory)
        result = adopt(open_store(VirtualPacks(again, sources_of(world.source))), MAIN)
        assert (result.packs, result.size_bytes) == (len(left), 100_000 * len(left))
        written = [call.key for call in again.calls if call.operation == "put"]
        assert {*written} >= {keys.pack(pack) for pack in left}
        assert not {*written} & {keys.pack(pack) for pack in packs - left}
        assert adopted(world) == AdoptResult()
        assert {key for key in world.memory.objects if "packs/" in key} == packs_before
        kept, world.source.versions = world.source.versions, {}
        assert {key: world.read(key) for key in files} == files
        world.source.versions = kept
        world.memory.objects = dict(before)


def test_packs_that_gc_deletes_meanwhile(world: InPlaceWorld) -> None:
    """With --all they need not be adopted: the next look at each finds that it is gone. A version
    needs its packs, so one that is gone is named."""
    world.put("00")
    world.imported()
    (pack,) = world.packs_in_place()
    before = dict(world.memory.objects)
    for spec in (None, MAIN):
        for operation in ("get", "head"):
            for first in itertools.count(1):
                world.memory.objects = dict(before)
                faulty = FaultyObjects(world.memory)
                rule = faulty.add(deleted_first(world, pack), operation, keys.pack(pack))
                rule.first, rule.times = first, 1
                result = adopt(open_store(VirtualPacks(faulty, sources_of(world.source))), spec)
                if keys.pack(pack) in world.memory.objects:
                    break
                is_late = result.size_bytes > 0  # it was adopted before
                assert bool(result.lost) == (spec is not None and not is_late)
            assert first > 1


def deleted_first(world: InPlaceWorld, pack: PackId) -> Effect:
    """A gc run deletes the pack right before the request."""

    def effect(perform: Callable[[], object]) -> object:
        world.memory.delete(keys.pack(pack))
        return perform()

    return effect


def test_a_source_that_is_not_known(world: InPlaceWorld) -> None:
    """The error names the lines to add, and nothing is changed."""
    filled(world)
    before = dict(world.memory.objects)
    store = open_store(VirtualPacks(world.memory, sources_of()))
    with pytest.raises(SourceUnknown, match=r"\[sources.archive\]"):
        adopt(store, MAIN)
    assert world.memory.objects == before


def test_chunks_that_go_from_a_virtual_pack(world: InPlaceWorld) -> None:
    """The pack is written again without them and stays virtual; the bucket is neither read nor
    changed."""
    files = filled(world)
    objects, before = world.objects(), dict(world.source.versions)
    world.source.reads.clear()
    pack = world.packs_in_place()[0]
    index = read_index(objects, pack).index
    gone = [0, len(index) - 1]
    dead = DeadChunks(pack, sum(1 << n for n in gone))
    assert list(drop_all(objects, [dead], PURGED, InlineExecutor(), Rate(None)))
    assert (world.source.reads, world.source.versions) == ([], before)
    assert world.is_virtual(pack)
    reader = PackReader(world.objects())
    for n in range(len(index)):
        if n in gone:
            with pytest.raises(Purged):
                reader.read(pack, n, 1)
        else:
            reader.read(pack, n, 1)
    adopted(world)
    with pytest.raises(Purged):
        PackReader(world.objects()).read(pack, 0, 1)
    assert files["14"] == world.read("14")


def test_gc_leaves_packs_in_place_alone(world: InPlaceWorld) -> None:
    """It neither compacts nor merges them, and deletes those that nobody needs, but no object of
    the bucket."""
    files = filled(world)
    options = CollectOptions(0, min_used=1.0, merge_below_bytes=1 << 20)
    world.source.reads.clear()
    for _ in range(3):
        collect(open_store(world.objects()), options)
    assert not world.source.reads
    assert len(world.packs_in_place()) > 1
    assert {key: world.read(key) for key in files} == files
    before = dict(world.source.versions)
    refs = open_store(world.objects()).refs("r")
    refs.advance(BRANCHES, "main", None, expected_sequence=refs.read(BRANCHES, "main").sequence)
    for _ in range(3):
        collect(open_store(world.objects()), options)
    assert not [key for key in world.memory.objects if key.startswith("packs/")]
    assert world.source.versions == before


def test_a_purge_names_the_objects(world: InPlaceWorld) -> None:
    """The store forgets where the bytes lie, and says which object of the bucket still has them;
    nothing is done there, and the other files stay."""
    files = filled(world)
    before = dict(world.source.versions)
    store = open_store(world.objects())
    plan = plan_path(store, "r", b"03")
    assert plan.in_place == ["archive:03"]
    assert not plan_path(store, "r", b"04").in_place
    assert not purge(store, plan).left
    assert world.source.versions == before
    with pytest.raises(Purged):
        world.read("03")
    assert world.read("06") == files["06"]


def test_sizes_are_what_the_store_has(world: InPlaceWorld) -> None:
    """What lies in the bucket takes no room in the store, and deleting frees none."""
    files = filled(world)
    (account,) = store_account(open_store(world.objects())).repos
    assert account.apparent_bytes == sum(map(len, files.values()))
    assert account.freed_bytes == account.stored_bytes < 0.02 * account.apparent_bytes


def test_all_of_a_store(world: InPlaceWorld) -> None:
    """Older versions are adopted, too. A damaged pack is named, and does not stop the others."""
    files = filled(world)
    first = open_store(world.objects()).resolve("r", "main").hex()
    world.source.delete("03")
    world.imported()
    world.source.put("03", files["03"])
    damaged = keys.pack(PackId(bytes(32)))
    world.memory.put(damaged, [b"no pack"])
    (problem,) = adopt(open_store(world.objects()), None).lost
    assert bytes(32).hex() in problem
    for key in files:
        world.source.delete(key)
    assert {key: world.read(key, first) for key in files} == files
