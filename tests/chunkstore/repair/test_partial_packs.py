"""Packs that lack some of their chunks, in a store that others copy, repair and push to: no push
relies on chunks that are not there, and what was good stays good."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Corrupt, NoSpace
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import PackId, Spec, digest_of
from lodefs.chunkstore.format.pack import DROPPED, PURGED, PackIndex
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.maintenance.purge import plan_path, purge
from lodefs.chunkstore.objects.pack_locations import locations_of
from lodefs.chunkstore.repair.repair import RepairOptions, RepairResult, repair
from lodefs.chunkstore.repair.sources.source import StoreSource
from lodefs.chunkstore.repair.state_check import check_state
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.pack_reader import read_pack
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.shard_reader import read_shard
from lodefs.chunkstore.transfer.bundle import create_bundle
from lodefs.chunkstore.transfer.copy import CopyOptions, copy
from lodefs.chunkstore.transfer.pack_copy import put_pack
from lodefs.chunkstore.types import Buffer
from tests.support.chunkstore.faulty_store import fail
from tests.support.maintenance.baton import Actor
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import REPO, World, finish, go_on_to

FILES = {name: name.encode() * 3000 for name in ("a", "b", "c")}


class Trio:
    """Three stores, of which the first has three files in one pack."""

    def __init__(self, directory: Path) -> None:
        self.one, self.two, self.three = (World(directory / name) for name in ("1", "2", "3"))
        self.source = self.one.source("full", **FILES)
        self.one.push(self.source)
        packs = map(_id, self.one.packs())
        (self.pack,) = (
            pack for pack in packs if len(read_pack(self.one.memory, pack)[0].index) == len(FILES)
        )

    def copy(self, source: World, destination: World) -> None:
        copy(source.store, destination.store, [REPO], None, CopyOptions(workers=1))

    def copy_all(self) -> None:
        for world in (self.two, self.three):
            self.copy(self.one, world)

    def lose(self, world: World, codec: int, *names: str) -> None:
        """Takes the bytes of files out of the pack in a store."""
        version, payload = read_pack(world.memory, self.pack)
        index = version.index
        gone = sum(1 << n for n, name in enumerate(sorted(FILES)) if name in names)
        left = index.without(gone, codec)
        parts = [
            bytes(payload[index.offsets[n] : index.offsets[n + 1]])
            for n in range(len(index))
            if not gone >> n & 1
        ]
        world.memory.put(keys.pack(self.pack), [b"".join(parts), left.encode()])

    def rot(self, world: World) -> None:
        """One bit of the first chunk."""
        key = keys.pack(self.pack)
        data = bytearray(world.memory.objects[key])
        data[3] ^= 1
        world.memory.put(key, [bytes(data)])

    def codecs(self, world: World) -> bytes:
        return read_pack(world.memory, self.pack)[0].index.codecs


def _id(key: str) -> PackId:
    return PackId(bytes.fromhex(key.rpartition("/")[2]))


def spec_of(branch: str) -> Spec:
    return Spec(REPO, branch, b"")


def listed(world: World) -> set[PackId]:
    shards = [info.key for info in world.memory.list(keys.INDEX)]
    return {pack.pack_id for key in shards for pack in read_shard(world.memory, key)}


def repaired(world: World, *sources: World, data: bool = True) -> RepairResult:
    return repair(
        locations_of(world.memory),
        [StoreSource(source.memory) for source in sources],
        RepairOptions(data=data, clock=world.clock),
    )


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    with one_at_a_time():
        yield Trio(tmp_path)


def test_a_repair_lists_no_pack_that_lacks_chunks(trio: Trio) -> None:
    """A pack that arrived in part stays in no shard, and that is no damage."""
    trio.copy(trio.one, trio.two)
    for info in list(trio.two.memory.list(keys.INDEX)):
        trio.two.memory.delete(info.key)
    trio.lose(trio.two, PURGED, "b")
    assert repaired(trio.two).findings[0].what == "no shard lists 1 packs"  # that of trees
    assert trio.pack not in listed(trio.two)
    assert repaired(trio.two).findings == []


@pytest.mark.parametrize("codec", [DROPPED, PURGED])
@pytest.mark.parametrize("check", [False, True])
def test_a_push_stores_again_what_a_listed_pack_lacks(trio: Trio, codec: int, check: bool) -> None:
    """That a shard lists a pack, and that it is there, says nothing of its bytes."""
    trio.copy(trio.one, trio.two)
    trio.lose(trio.two, codec, "b", "c")
    result = trio.two.push(trio.source, "other", machine="fresh", check=check)
    assert result.lost_packs == 1
    spec = spec_of("other")
    assert verify(trio.two.store, spec, data=True).problems == []
    assert verify(trio.two.store, spec, data=True).purged == []


def test_a_checking_push_mends_an_unchanged_branch(trio: Trio) -> None:
    """The branch names chunks that were dropped: its files are stored again, though their trees
    have the digests that they had."""
    trio.copy(trio.one, trio.two)
    trio.two.push(trio.source, machine="own")
    trio.lose(trio.two, DROPPED, "b")
    assert not trio.two.push(trio.source, machine="own", check=True).unchanged
    assert verify(trio.two.store, spec_of("main"), data=True).problems == []


def test_a_shard_lists_what_is_there_and_not_what_was_sent(trio: Trio) -> None:
    """A whole pack arrives where a part of it lies, of which some was purged elsewhere: what is
    there then is whole, and listed; where something stays purged, it is not."""
    whole, payload = read_pack(trio.one.memory, trio.pack)
    trio.copy(trio.one, trio.two)
    trio.lose(trio.two, DROPPED, "a")
    trio.lose(trio.two, PURGED, "b")
    there, _ = put_pack(trio.two.memory, whole.index, payload)
    assert not there.has_gone
    assert trio.codecs(trio.two) == whole.index.codecs
    trio.lose(trio.one, DROPPED, "a", "c")
    partial, payload = read_pack(trio.one.memory, trio.pack)
    trio.lose(trio.two, PURGED, "a")
    there, sent_bytes = put_pack(trio.two.memory, partial.index, payload)
    assert (there.codecs, sent_bytes) == (trio.codecs(trio.two), 0)
    assert there.codecs[0] == PURGED


def test_two_copies_that_add_to_one_pack_at_once(trio: Trio) -> None:
    """Each has read what is there, and would take away what the other adds: the one that began
    later ends, and goes on when it is repeated."""
    store = World(trio.one.source("more").parent / "4")
    trio.copy_all()
    for world, name in ((trio.one, "a"), (trio.two, "b"), (trio.three, "c")):
        part = world.source("part", **{name: FILES[name]})
        world.push(part, name)
        world.delete()
        trio.lose(world, DROPPED, *FILES.keys() - {name})
    trio.copy(trio.three, store)

    def copying(source: World) -> Actor:
        return store.actor(
            "copy",
            lambda to: copy(source.store, to, [REPO], None, CopyOptions(workers=1)) and None,
        )

    first, second = copying(trio.one), copying(trio.two)
    go_on_to(first, f"put {keys.pack(trio.pack)}")  # if it is absent
    first.step()
    go_on_to(first, f"put {keys.pack(trio.pack)}")
    while not second.has_ended:
        second.step()
    assert store.store.refs(REPO).latest(BRANCHES, "b") is None
    finish(first)
    trio.copy(trio.two, store)
    found = verify(store.store, data=True)
    assert (found.problems, found.files) == ([], 3)


def test_a_copy_lands_nothing_that_the_source_lacks(trio: Trio) -> None:
    """The source names chunks that were dropped there: the branch is refused, a bundle not made,
    and what does not need them comes. What was purged there is no damage."""
    trio.one.push(trio.one.source("part", a=FILES["a"]), "part")
    trio.lose(trio.one, DROPPED, "b")
    result = copy(trio.one.store, trio.two.store, [REPO], None, CopyOptions(workers=1))
    assert [(one.ref.name, type(one.error)) for one in result.refused] == [("main", Corrupt)]
    assert [one.ref.name for one in result.refs] == ["part"]
    assert verify(trio.two.store, data=True).problems == []
    with pytest.raises(Corrupt, match="is incomplete"):
        create_bundle(trio.one.store, REPO, "main", None, BytesIO())
    create_bundle(trio.one.store, REPO, "part", None, BytesIO())
    trio.lose(trio.one, PURGED, "b")
    trio.copy(trio.one, trio.two)
    assert verify(trio.two.store, data=True).problems == []
    create_bundle(trio.one.store, REPO, "main", None, BytesIO())


def test_a_store_repairs_from_its_own_packs(trio: Trio) -> None:
    """A later push has stored the chunks again: the versions before it get them from there."""
    trio.lose(trio.one, DROPPED, "b", "c")
    trio.one.push(trio.one.source("more", **FILES, d=b"d" * 5000), "other", machine="fresh")
    assert not repaired(trio.one).left
    found = verify(trio.one.store, data=True)
    assert (found.problems, found.purged) == ([], [])


@pytest.mark.parametrize("is_copy_first", [True, False])
def test_a_copy_adds_to_a_pack_while_a_purge_writes_it_again(
    trio: Trio, is_copy_first: bool
) -> None:
    """The purge has read the pack before, and would take away what the copy adds: the copy ends,
    and goes on when it is repeated."""
    store = with_part(trio, "b")
    copying = store.actor(
        "copy",
        lambda to: copy(trio.one.store, to, [REPO], None, CopyOptions(workers=1)) and None,
    )
    purging = store.actor(
        "purge", lambda to: purge(to, plan_path(to, REPO, b"b"), clock=store.clock) and None
    )
    if is_copy_first:
        go_on_to(copying, f"put {keys.pack(trio.pack)}")  # if it is absent
        copying.step()
        go_on_to(copying, f"put {keys.pack(trio.pack)}")
    go_on_to(purging, f"put {keys.pack(trio.pack)}")
    while not copying.has_ended:
        copying.step()
    finish(purging)
    assert store.store.refs(REPO).latest(BRANCHES, "main") is None
    trio.copy(trio.one, store)
    found = verify(store.store, data=True)
    assert (found.problems, found.files, len(found.purged)) == ([], 3, 1)


def test_a_copy_adds_to_a_pack_while_a_repair_looks_for_chunks(trio: Trio) -> None:
    """What came meanwhile stays."""
    store = with_part(trio, "b")
    trio.rot(store)

    class Slow(StoreSource):
        def pack(self, pack_id: PackId) -> tuple[PackIndex, Buffer] | None:
            trio.copy(trio.one, store)
            return super().pack(pack_id)

    options = RepairOptions(data=True, clock=store.clock)
    repair(locations_of(store.memory), [Slow(trio.two.memory)], options)
    found = verify(store.store, data=True)
    assert (found.problems, found.files) == ([], 3)


def with_part(trio: Trio, name: str) -> World:
    """A store with the pack, but only one of its chunks, as the second of the three has it."""
    trio.copy_all()
    trio.two.push(trio.two.source("part", **{name: FILES[name]}), name)
    trio.two.delete()
    trio.lose(trio.two, DROPPED, *FILES.keys() - {name})
    store = World(trio.source.parent / "4")
    trio.copy(trio.two, store)
    return store


@pytest.mark.parametrize("codec", [DROPPED, PURGED])
def test_a_repair_takes_no_good_chunks_away(trio: Trio, codec: int) -> None:
    """One chunk is damaged, and the source lacks others: the store keeps those, and gets that one.
    What the source has purged is not purged here."""
    trio.copy_all()
    trio.rot(trio.two)
    trio.lose(trio.one, codec, "b", "c")
    assert not repaired(trio.two, trio.one).left
    assert verify(trio.two.store, data=True).problems == []
    assert trio.codecs(trio.two) == trio.codecs(trio.three)


@pytest.mark.parametrize("codec", [DROPPED, PURGED])
def test_a_lost_pack_is_joined_from_all_sources(trio: Trio, codec: int) -> None:
    """No source has all of it, and together they have."""
    trio.copy_all()
    trio.two.memory.delete(keys.pack(trio.pack))
    trio.lose(trio.one, codec, "b", "c")
    trio.lose(trio.three, codec, "a")
    assert not repaired(trio.two, trio.one, trio.three).left
    found = verify(trio.two.store, data=True)
    assert (found.problems, found.purged) == ([], [])
    assert trio.pack in listed(trio.two)


@pytest.mark.parametrize("way", ["lost", "cut off"])
def test_a_lost_pack_that_comes_back_in_part(trio: Trio, way: str) -> None:
    """What versions name is missing: that is not repaired, and told; what is there is there, and
    the pack in no shard. A later source brings the rest."""
    trio.copy_all()
    trio.two.memory.delete(key := keys.pack(trio.pack))
    if way == "cut off":
        trio.two.memory.put(key, [trio.three.memory.objects[key][:-9]])
    trio.lose(trio.one, PURGED, "b", "c")
    (left,) = repaired(trio.two, trio.one).left
    assert left.lacks is not None
    assert left.lacks.startswith("2 of its 3 chunks")
    assert trio.pack not in listed(trio.two)
    found = verify(trio.two.store, data=True)
    assert (len(found.problems), found.purged) == (2, [])
    assert not repaired(trio.two, trio.three, data=False).left
    assert verify(trio.two.store, data=True).problems == []


def test_chunks_that_are_named_and_dropped_come_back(trio: Trio) -> None:
    """They are damage, whatever the pack says of them; what nobody has stays as it is."""
    trio.copy_all()
    trio.lose(trio.two, DROPPED, "b", "c")
    trio.lose(trio.one, DROPPED, "c")
    (left,) = repaired(trio.two, trio.one, data=False).left
    assert left.lacks is not None
    assert left.lacks.startswith("1 of its 3 chunks")
    assert trio.codecs(trio.two)[2:] == bytes([DROPPED])
    assert not repaired(trio.two, trio.three, data=False).left
    assert verify(trio.two.store, data=True).problems == []


@pytest.mark.parametrize("way", ["spoilt", "lost", "cut off"])
def test_a_compacted_pack_is_repaired_from_one_like_it(trio: Trio, way: str) -> None:
    """What versions name is there in the source; what none names need not be."""
    trio.one.push(trio.one.source("part", a=FILES["a"]), "part")
    trio.one.delete("main")
    trio.lose(trio.one, DROPPED, "b", "c")
    trio.copy(trio.one, trio.two)
    key = keys.pack(trio.pack)
    if way == "spoilt":
        trio.rot(trio.one)
    elif way == "lost":
        trio.one.memory.delete(key)
    else:
        trio.one.memory.put(key, [trio.one.memory.objects[key][:-9]])
    assert not repaired(trio.one, trio.two).left
    assert verify(trio.one.store, data=True).problems == []
    assert (trio.pack in listed(trio.one)) == (way == "spoilt")


def test_a_shard_forgets_a_damaged_pack_that_nothing_names(trio: Trio) -> None:
    """No version needs it, so nothing brings it back: the next push is not to build on it."""
    key = keys.pack(trio.pack)
    trio.one.push(trio.one.source("other", x=b"x" * 5000), "other")
    trio.one.delete("main")
    trio.one.memory.put(key, [trio.one.memory.objects[key][:-9]])
    assert not repaired(trio.one).left
    assert trio.pack not in listed(trio.one)
    trio.one.push(trio.source, "again", machine="fresh")
    assert verify(trio.one.store, data=True).problems == []


def test_a_bit_of_a_packs_version(trio: Trio) -> None:
    """No newer lodefs wrote it, as its checksum shows: the repair goes on, and repairs it too."""
    trio.copy_all()
    key = keys.pack(trio.pack)
    data = bytearray(trio.one.memory.objects[key])
    data[-64 + 9] ^= 2
    trio.one.memory.put(key, [bytes(data)])
    assert not repaired(trio.one, trio.two).left
    assert verify(trio.one.store, data=True).problems == []


def test_a_purge_made_again_takes_no_good_chunks(trio: Trio) -> None:
    """What a copied pack says was purged, and another pack of the store has, was purged in the
    other store."""
    trio.copy(trio.one, trio.two)
    trio.lose(trio.two, PURGED, "b", "c")
    trio.two.push(trio.two.source("own", b=FILES["b"]), "own", machine="fresh")
    trio.two.memory.put(keys.purge(0), [b"rubbish"])
    assert not repaired(trio.two).left
    (purge,) = Purges(trio.two.memory).after(-1)
    assert purge.chunks == (digest_of(FILES["c"]),)


def test_a_ledger_that_no_collection_came_to_put(trio: Trio) -> None:
    """A gc run that deletes something, and fails then, leaves a sound journal."""
    trio.one.delete("main")
    ledgers = trio.one.objects.add(fail(NoSpace("full")), "put", keys.LEDGER)
    with pytest.raises(NoSpace):
        trio.one.collect()
    trio.one.objects.rules.remove(ledgers)
    trio.one.hours += 25
    trio.one.objects.add(fail(NoSpace("full")), "put", keys.LEDGER, first=2)
    with pytest.raises(NoSpace):
        trio.one.collect()
    assert any("/done/" in key for key in trio.one.memory.objects)
    assert list(check_state(trio.one.store.objects, trio.one.clock)) == []
