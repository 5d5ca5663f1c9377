"""Copies between stores: what arrives, what is sent, what is refused, and what a gc does beside."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import (
    Conflict,
    Corrupt,
    Diverged,
    InvalidInput,
    NotFound,
    Unavailable,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import ChunkId, CommitId, PackId, digest_of
from lodefs.chunkstore.format.pack import DROPPED
from lodefs.chunkstore.format.tree import encode_tree
from lodefs.chunkstore.journal.deletion import delete_repo
from lodefs.chunkstore.journal.ref_write import Collected
from lodefs.chunkstore.maintenance.purge import plan_path, purge
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.history import log
from lodefs.chunkstore.repo.pack_reader import read_pack
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.chunkstore.repo.shard_reader import read_shard
from lodefs.chunkstore.repo.store import Store, create_store, open_store
from lodefs.chunkstore.system.parallel_map import grouped
from lodefs.chunkstore.transfer.bundle import create_bundle, standing, unpack_bundle
from lodefs.chunkstore.transfer.bundle_file import BundleReader
from lodefs.chunkstore.transfer.copy import CopyOptions, CopyResult, copy
from lodefs.chunkstore.transfer.pack_copy import CopiedPack, SendPacks, copy_group, md5_of
from tests.support.chunkstore.directories import in_commit
from tests.support.chunkstore.faulty_store import FaultyObjects, fail, flip_byte
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import REPO, World, finish, go_on_to

A, B = b"a" * 9000, bytes(range(256)) * 40


class Stores:
    """A source with three commits of one file more each, and an empty destination."""

    def __init__(self) -> None:
        self.source_memory = MemoryObjects("memory:source")
        self.source_objects = FaultyObjects(self.source_memory)
        self.made = Handmade(create_store(self.source_objects))
        self.files = {b"a": A, b"d/b": B}
        self.commits = [self.made.commit("r", self.files)]
        for n in range(2):
            self.files[b"d/%d" % n] = b"%d" % n * 5000
            self.commits.append(self.made.commit("r", self.files))
        self.memory = MemoryObjects("memory:destination")
        self.objects = FaultyObjects(self.memory)
        create_store(self.objects)
        self.source_objects.forget()
        self.objects.forget()

    @property
    def source(self) -> Store:
        return open_store(self.source_objects)

    @property
    def destination(self) -> Store:
        """As a new process sees it."""
        return open_store(self.objects)

    def copy(
        self,
        rev: str | None = "main",
        *,
        dry_run: bool = False,
        step: int = 1 << 30,
        send_packs: SendPacks | None = None,
    ) -> CopyResult:
        options = CopyOptions(dry_run=dry_run, workers=2, step_size_bytes=step)
        return copy(self.source, self.destination, ["r"], rev, options, send_packs=send_packs)

    def by_tasks(self, packs: Iterable[tuple[PackId, int]]) -> Iterator[CopiedPack]:
        """Sends packs as tasks of other machines do, each of them twice."""
        source, there = self.source.objects, self.destination.objects
        for group in grouped(packs, lambda one: one[1], 5000, 2):
            ids = [pack for pack, _ in group]
            copy_group(source, there, ids, 2)
            yield from pickle.loads(pickle.dumps(copy_group(source, there, ids, 2)))

    def at(self, name: str = "main", kind: str = BRANCHES) -> CommitId | None:
        """Where a ref of the destination is."""
        entry = self.destination.refs("r").latest(kind, name)
        return None if entry is None else entry.commit

    def check(self) -> None:
        """Every byte of the destination is right."""
        found = verify(self.destination, data=True)
        assert found.problems == []


@pytest.fixture
def stores() -> Stores:
    return Stores()


def test_history_and_ids_are_kept(stores: Stores) -> None:
    """A copied branch has the same commits, each of which reads as in the source; the packs have
    their ids, and a shard lists them."""
    result = stores.copy()
    assert (stores.at(), result.commits) == (stores.commits[-1], 3)
    stores.check()
    for commit in stores.commits:
        assert in_commit(stores.destination, "r", commit.hex()) == in_commit(
            stores.source, "r", commit.hex()
        )
    packs = [key for key in stores.source_memory.objects if key.startswith(keys.PACKS)]
    there = stores.memory.objects
    assert set(packs) == {key for key in there if key.startswith(keys.PACKS)}
    assert result.packs == len(packs)
    assert sum(key.startswith(keys.INDEX) for key in there) == 1


def test_what_is_there_is_not_sent_again(stores: Stores) -> None:
    """A second copy writes nothing; after a new commit only what is new is sent."""
    stores.copy()
    stores.objects.forget()
    assert stores.copy().packs == 0
    assert stores.objects.count("put") == 0
    assert stores.objects.count() < 10
    stores.files[b"new"] = b"n" * 4000
    stores.made.commit("r", stores.files)
    result = stores.copy()
    assert (result.commits, result.packs) == (1, stores.objects.count("put", keys.PACKS))
    assert result.packs <= 2
    stores.check()


def test_tasks_send_what_one_machine_would(stores: Stores) -> None:
    """The stores are the same afterwards, but for what is random; nothing is sent again."""
    other = Stores()
    other.copy(step=5000)
    result = stores.copy(step=5000, send_packs=stores.by_tasks)
    ours, theirs = (
        {key: data for key, data in one.memory.objects.items() if key.startswith(keys.PACKS)}
        for one in (stores, other)
    )
    assert ours == theirs != {}
    assert (result.packs, result.commits, stores.at()) == (len(ours), 3, other.at())
    stores.check()
    listed = {
        pack.pack_id
        for key in stores.memory.objects
        if key.startswith(keys.INDEX)
        for pack in read_shard(stores.memory, key)
    }
    assert len(listed) == result.packs
    assert stores.copy(send_packs=stores.by_tasks).packs == 0


def test_tasks_that_fail_move_nothing(stores: Stores) -> None:
    """The branch stays where it was, and the next copy sends only what is missing."""

    def failing(packs: Iterable[tuple[PackId, int]]) -> Iterator[CopiedPack]:
        yield from stores.by_tasks([*packs][:1])
        raise Unavailable("the executor takes no more tasks")

    with pytest.raises(Unavailable):
        stores.copy(send_packs=failing)
    assert stores.at() is None
    assert stores.copy(send_packs=stores.by_tasks).packs_there == 1
    stores.check()


def drop_chunk(memory: MemoryObjects, data: bytes) -> None:
    """Compacts the pack of a chunk: it alone is left out."""
    chunk = ChunkId(digest_of(data))
    for key in list(memory.objects):
        if (pack_id := keys.pack_of(key)) is None:
            continue
        version, payload = read_pack(memory, pack_id)
        index = version.index
        for n in range(len(index)):
            if index.chunk_id(n) == chunk:
                parts = [payload[: index.offsets[n]], payload[index.offsets[n + 1] :]]
                memory.put(key, [*parts, index.without(1 << n, DROPPED).encode()])


@pytest.mark.parametrize("is_by_tasks", [False, True])
def test_a_pack_that_is_there_in_part(stores: Stores, is_by_tasks: bool) -> None:
    """A pack that has all that one commit names, and lacks what a later one names, of the same
    branch or another, is sent for that one, and once."""
    first, second = b"1" * 500, b"2" * 500
    stores.made.commit("s", {b"1": first, b"2": second}, branch="both")
    copy(stores.source, stores.destination, ["s"], "both", CopyOptions())
    for store in (stores.source, stores.destination):
        store.refs("s").advance(BRANCHES, "both", None, expected_sequence=0)
    drop_chunk(stores.memory, second)
    for name in ("b", "c"):
        stores.made.commit("s", {name.encode(): first}, branch=name)
    stores.made.commit("s", {b"b": first, b"2": second}, branch="b")
    stores.made.commit("s", {b"c": first, b"2": second}, branch="c")
    options = CopyOptions(workers=2)
    planned = copy(stores.source, stores.destination, ["s"], None, replace(options, dry_run=True))
    send_packs = stores.by_tasks if is_by_tasks else None
    done = copy(stores.source, stores.destination, ["s"], None, options, send_packs=send_packs)
    assert planned == done
    assert (done.packs, done.packs_there) == (5, 0)
    stores.check()


@pytest.mark.parametrize("is_bundle", [False, True])
def test_what_was_purged_elsewhere(stores: Stores, *, is_bundle: bool) -> None:
    """A pack that came from a store that had purged some of it gets that with the next version that
    names it, from a store that has it; from one that has not, nothing is sent."""
    other, options = create_store(MemoryObjects("memory:other")), CopyOptions(workers=2)
    copy(stores.source, other, ["r"], "main", options)
    purge(other, plan_path(other, "r", b"a"))
    copy(other, stores.destination, ["r"], "main", options)
    Handmade(other).commit_root("t", other.commit("r", stores.commits[-1]).root)
    anew = open_store(other.objects)
    assert copy(anew, stores.destination, ["t"], "main", options).packs == 0
    assert len(verify(stores.destination, data=True).purged) == 1
    stores.made.commit("s", {b"same": A})
    if is_bundle:
        file = BytesIO()
        create_bundle(stores.source, "s", "main", None, file)
        file.seek(0)
        reader = BundleReader(file, "it")
        unpack_bundle(reader, stores.destination, standing(reader, stores.destination))
    else:
        dry = replace(options, dry_run=True)
        planned = copy(stores.source, stores.destination, ["s"], "main", dry)
        assert planned == copy(stores.source, stores.destination, ["s"], "main", options)
    found = verify(stores.destination, data=True)
    assert (found.problems, found.purged) == ([], [])


def test_a_dry_run_writes_nothing(stores: Stores) -> None:
    """It says what a copy would then send, and puts nothing."""
    planned = stores.copy(dry_run=True)
    assert stores.objects.count("put") == 0
    done = stores.copy()
    assert planned == done


@pytest.mark.parametrize("prefix", [keys.PACKS, keys.INDEX, keys.REPOS])
@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize("is_by_tasks", [False, True])
def test_an_interrupted_copy_goes_on(
    stores: Stores, prefix: str, first: int, is_by_tasks: bool
) -> None:
    """A put that fails, also in a task, ends a copy without a ref that lacks anything; its
    repetition sends what is missing, and no pack twice."""
    send_packs = stores.by_tasks if is_by_tasks else None
    stores.objects.add(fail(Unavailable("gone")), "put", prefix, first=first, times=1)
    try:
        stores.copy(send_packs=send_packs)
    except Unavailable:
        stores.check()
        stores.copy(send_packs=send_packs)
    stores.check()
    assert stores.at() == stores.commits[-1]
    if is_by_tasks:  # which send each pack twice here
        return
    sent = [c.key for c in stores.objects.calls if c.operation == "put" and c.size_bytes]
    packs = [key for key in sent if key.startswith(keys.PACKS)]
    assert len(packs) == len(set(packs))


def test_packs_of_a_copy_that_was_killed_are_listed(stores: Stores) -> None:
    """A copy that is killed leaves packs that are in no index shard; its repetition lists them."""
    stores.objects.add(fail(Unavailable("gone")), "put", keys.INDEX, times=1)
    with pytest.raises(Unavailable):
        stores.copy()
    packs = {key for key in stores.memory.objects if key.startswith(keys.PACKS)}
    assert packs
    assert not any(key.startswith(keys.INDEX) for key in stores.memory.objects)
    assert stores.copy().packs == 0
    shards = [key for key in stores.memory.objects if key.startswith(keys.INDEX)]
    listed = [pack.pack_id for key in shards for pack in read_shard(stores.memory, key)]
    assert sorted(map(keys.pack, listed)) == sorted(packs)


def test_a_branch_follows_large_copies(stores: Stores) -> None:
    """Where a step is full the branch moves to the commit that is complete, so that what came
    until then stays in use; the repetition goes on from there."""
    last = keys.commit("r", stores.commits[2])
    stores.objects.add(fail(Unavailable("gone")), "put", last, times=1)
    with pytest.raises(Unavailable):
        stores.copy(step=1)
    assert stores.at() == stores.commits[1]
    stores.check()
    assert stores.copy(step=1).commits == 1
    stores.check()


def test_history_that_has_expired(stores: Stores) -> None:
    """What a retention policy has left arrives, and its end is no loss there either."""
    source, first = stores.source, stores.commits[0]
    source.put_expired("r", first, 0)
    source.objects.delete(keys.commit("r", first))
    stores.copy()
    assert [at for at, _ in log(stores.destination, "r", "main")] == stores.commits[:0:-1]
    assert stores.destination.has_expired("r", first)
    stores.check()
    assert stores.copy().packs == 0


def test_all_branches_and_tags(stores: Stores) -> None:
    """With all, each branch and tag arrives; one that leaves another sends only its own, in either
    order of their names; a deleted one stays away."""
    refs = stores.source.refs("r")
    for name in ("dev", "later"):
        refs.advance(BRANCHES, name, stores.commits[1], expected_sequence=None)
        stores.made.commit("r", {b"only": name.encode() * 900}, branch=name)
    refs.advance(TAGS, "v1", stores.commits[0], expected_sequence=None)
    gone = refs.advance(BRANCHES, "gone", stores.commits[0], expected_sequence=None)
    refs.advance(BRANCHES, "gone", None, expected_sequence=gone.sequence)
    result = stores.copy(None)
    assert [one.ref.name for one in result.refs] == ["dev", "later", "main", "v1"]
    assert result.commits == 5
    assert (stores.at("v1", TAGS), stores.at("gone")) == (stores.commits[0], None)
    for name in ("dev", "later", "main"):
        assert stores.at(name) == refs.read(BRANCHES, name).commit
    stores.check()
    assert stores.copy(None).packs == 0


def test_tags_of_writable_mounts(stores: Stores) -> None:
    """They move, which no other tag may: a copy of all leaves them out, so that the next one is not
    refused."""
    base = "mounted-node-1-0123456789abcdef"
    for name in (base, "mounted-by-hand"):
        stores.source.refs("r").advance(TAGS, name, stores.commits[0], expected_sequence=None)
    assert [one.ref.name for one in stores.copy(None).refs] == ["main", "mounted-by-hand"]
    assert [one.ref.name for one in stores.copy(base).refs] == [base]


def test_a_tag_alone(stores: Stores) -> None:
    """A tag brings its history without the branch."""
    stores.source.refs("r").advance(TAGS, "v1", stores.commits[1], expected_sequence=None)
    assert stores.copy("v1").commits == 2
    assert (stores.at("v1", TAGS), stores.at()) == (stores.commits[1], None)
    stores.check()


def test_other_ways_are_refused(stores: Stores) -> None:
    """A branch that has other commits there, or is ahead, and a tag that is elsewhere, are named
    and left as they are, before anything is sent."""
    stores.copy()
    other = Handmade(stores.destination).commit("r", {b"other": b"o" * 3000})
    stores.objects.forget()
    with pytest.raises(Diverged, match="branch main of r is ahead"):
        stores.copy()
    stores.made.commit("r", {b"mine": b"m"})
    with pytest.raises(Diverged, match="branch main of r has diverged"):
        stores.copy()
    stores.source.refs("r").advance(TAGS, "v1", stores.commits[1], expected_sequence=None)
    stores.destination.refs("r").advance(TAGS, "v1", other, expected_sequence=None)
    stores.objects.forget()
    with pytest.raises(Diverged, match="tag v1 of r is at"):
        stores.copy("v1")
    assert stores.objects.count("put") == 0
    assert stores.at() == other


def test_all_but_what_is_refused(stores: Stores) -> None:
    """With all, a tag that is elsewhere, a branch that has diverged and one whose turn comes too
    late are named and left; the others arrive, also of the repository after it."""
    refs = stores.source.refs("r")
    for name in ("dev", "late", "later"):
        refs.advance(BRANCHES, name, stores.commits[1], expected_sequence=None)
    stores.copy(None)
    late = stores.made.commit("r", {b"late": b"l" * 3000}, branch="late")
    refs.advance(BRANCHES, "latest", late, expected_sequence=None)
    new = stores.made.commit("r", {b"new": b"n" * 3000})
    refs.advance(TAGS, "v1", stores.commits[1], expected_sequence=None)
    stores.made.commit("r", {b"mine": b"m"}, branch="dev")
    stores.made.commit("s", {b"other": A})
    there = stores.destination.refs("r")
    there.advance(TAGS, "v1", stores.commits[0], expected_sequence=None)
    other = Handmade(stores.destination).commit("r", {b"other": b"o" * 3000}, branch="dev")
    stores.objects.add(
        fail(Conflict("another was faster")), "put", keys.ref_entry("r", BRANCHES, "late", 1)
    )
    result = copy(stores.source, stores.destination, ["r", "s"], None, CopyOptions(workers=2))
    assert [one.ref.name for one in result.refused] == ["dev", "v1", "late"]
    assert [str(one.ref.name) for one in result.refs] == ["later", "latest", "main", "main"]
    assert (stores.at("dev"), stores.at("v1", TAGS)) == (other, stores.commits[0])
    assert (stores.at("late"), stores.at("latest"), stores.at()) == (stores.commits[1], late, new)
    stores.check()


def test_all_beside_what_is_deleted(stores: Stores) -> None:
    """With all, a repository that was deleted there stays so, and the next one arrives."""
    stores.copy()
    delete_repo(stores.destination, "r", "me")
    stores.made.commit("s", {b"other": A})
    result = copy(stores.source, stores.destination, ["r", "s"], None, CopyOptions(workers=2))
    (refused,) = result.refused
    assert "lodefs undelete" in str(refused.error)
    assert [one.ref.repo for one in result.refs] == ["s"]
    assert stores.at() is None
    stores.check()


def test_all_but_what_is_damaged(stores: Stores) -> None:
    """With all, a branch with a damaged or missing commit, or pack, or entry in the source is named
    and left, and all else arrives, also of later repositories; alone it is an error."""
    refs, memory = stores.source.refs("r"), stores.source_memory
    refs.advance(TAGS, "v1", stores.commits[0], expected_sequence=None)
    damaged = stores.made.commit("r", {b"p": b"p" * 3000}, branch="dev")
    refs.advance(BRANCHES, "entry", damaged, expected_sequence=None)
    memory.put(keys.ref_entry("r", BRANCHES, "entry", 0), [b"rubbish"])
    stores.made.commit("q", {b"gone": A})
    for key in [key for key in memory.objects if key.startswith(keys.commits("q"))]:
        memory.delete(key)
    stores.made.commit("s", {b"other": A})
    memory.put(keys.commit("r", stores.commits[1]), [b""])
    drop_chunk(memory, encode_tree([stores.made.entry(b"p", b"p" * 3000)]))
    options = CopyOptions(workers=2)
    result = copy(stores.source, stores.destination, ["q", "r", "s"], None, options)
    assert [(one.ref.repo, one.ref.name, type(one.error)) for one in result.refused] == [
        ("q", "main", NotFound),
        ("r", "entry", Corrupt),
        ("r", "main", Corrupt),
        ("r", "dev", Corrupt),
    ]
    assert [(one.ref.repo, one.ref.name) for one in result.refs] == [("r", "v1"), ("s", "main")]
    stores.check()
    with pytest.raises(Corrupt):
        stores.copy("main")


def test_bad_input(stores: Stores) -> None:
    """A commit, a name that is not there, a store onto itself: each is refused."""
    with pytest.raises(InvalidInput, match="lodefs tag r@"):
        stores.copy(stores.commits[0].hex()[:12])
    with pytest.raises(NotFound, match="its branches: main"):
        stores.copy("nothing")
    with pytest.raises(InvalidInput, match="copied to itself"):
        copy(stores.source, stores.source, ["r"], "main", CopyOptions())
    with pytest.raises(NotFound, match="no repository x"):
        copy(stores.source, stores.destination, ["x"], None, CopyOptions())


def test_one_name_at_two_servers(stores: Stores) -> None:
    """Stores whose buckets have the same name, at two endpoints, are two stores."""
    other = MemoryObjects("memory:source")
    there = create_store(other)
    assert there.url == stores.source.url
    assert copy(stores.source, there, ["r"], "main", CopyOptions(workers=2)).commits == 3
    assert verify(open_store(other), data=True).problems == []


def test_what_passes_through_is_checked(stores: Stores) -> None:
    """Bytes that come damaged once are read again; a pack that is damaged in the source is named,
    and no ref moves."""
    stores.source_objects.add(flip_byte(0), "get", keys.PACKS, first=2, times=1)
    pack = max(
        (key for key in stores.source_memory.objects if key.startswith(keys.PACKS)),
        key=lambda key: len(stores.source_memory.objects[key]),
    )
    stores.copy()
    stores.check()
    fresh = Stores()
    damaged = bytearray(fresh.source_memory.objects[pack])
    damaged[0] ^= 1  # of the magic number of zstd
    fresh.source_memory.objects[pack] = bytes(damaged)
    with pytest.raises(Corrupt, match=pack.rpartition("/")[2]):
        fresh.copy()
    assert fresh.at() is None


def test_md5s() -> None:
    """An ETag of S3 may be an MD5; those of parts, directories and composites are none."""
    assert md5_of(f'"{"0a" * 16}"') == b"\n" * 16
    others = [f'"{"0a" * 16}-2"', f'"{"0a" * 20}"', '"1f-2e-3d"', f'composite1-0:0+9:"{"0a" * 16}"']
    assert [md5_of(etag) for etag in others] == [None] * 4


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A source of one branch; the destination is a world of its own."""
    with one_at_a_time():
        yield World(tmp_path)


def copied(world: World, source: Store, store: Store | None = None) -> CopyResult:
    """Copies the branch main."""
    options = CopyOptions(clock=world.clock, workers=1)
    return copy(source, store or world.store, [REPO], "main", options)


@pytest.fixture
def source() -> Store:
    objects = MemoryObjects("memory:source")
    Handmade(create_store(objects)).commit(REPO, {b"a": A, b"d/b": B})
    return open_store(objects)


def test_tombstoned_packs_are_saved(world: World, source: Store) -> None:
    """What a gc run has tombstoned in the destination, a copy uses again, and it stays."""
    copied(world, source)
    world.delete()
    assert world.collect().tombstoned.packs
    assert copied(world, source).packs == 0
    world.hours += 25
    world.collect_all()
    world.needs.check("at the end")
    assert verify(world.store, data=True).problems == []


def test_dead_ids_do_not_come_back(world: World, source: Store) -> None:
    """Packs that a gc run has deleted cannot land under their ids again: the copy says so, and
    sends nothing."""
    copied(world, source)
    world.delete()
    world.collect_all()
    world.objects.forget()
    with pytest.raises(Collected) as caught:
        copied(world, source)
    assert "lodefs init" in caught.value.__notes__[0]
    assert world.objects.count("put", keys.PACKS) == 0
    source.refs(REPO).advance(
        BRANCHES, "more", source.resolve(REPO, "main"), expected_sequence=None
    )
    Handmade(source).commit("other", {b"a": b"new" * 900})
    options = CopyOptions(clock=world.clock, workers=1)
    result = copy(source, world.store, [REPO, "other"], None, options)
    assert [one.ref.name for one in result.refused] == ["main", "more"]
    assert [one.ref.repo for one in result.refs] == ["other"]
    assert verify(world.store, data=True).problems == []


def test_a_collection_waits_for_a_copy(world: World, source: Store) -> None:
    """What a copy that stands still has found there is not deleted, however old, as long as it
    says that it is alive."""
    copied(world, source)
    world.delete()
    actor = world.actor("copy", lambda store: copied(world, source, store))
    go_on_to(actor, "put repos/")
    for _ in range(3):
        world.beat(actor)
        assert world.collect().deleted.packs == 0
        world.hours += 25
    finish(actor)
    assert actor.error is None
    world.needs.check("at the end")
    assert world.needs.refs() == [("branches", "main")]


def test_a_copy_that_is_silent_for_long_is_given_up(world: World, source: Store) -> None:
    """A stalled copy is refused when it goes on, and names nothing that is deleted."""
    actor = world.actor("copy", lambda store: copied(world, source, store))
    go_on_to(actor, "put repos/")
    for _ in range(2):
        world.collect()
        world.hours += 25
    finish(actor)
    assert isinstance(actor.error, Conflict)
    world.collect_all()
    world.needs.check("at the end")
    assert world.garbage() == set()


def test_each_commit_is_counted_once(stores: Stores) -> None:
    """What a merge leads to, and a tag before it, comes with the other branch; in a later copy it
    is there."""
    refs = stores.source.refs("r")
    refs.advance(BRANCHES, "dev", stores.commits[0], expected_sequence=None)
    for n in range(2):
        aside = stores.made.commit("r", {b"a": A, b"e": b"%d" % n * 500}, branch="dev")
        commit = replace(stores.source.commit("r", aside), parents=(stores.commits[-1], aside))
        merged = stores.source.put_commit("r", commit)
        at = refs.latest(BRANCHES, "main")
        assert at is not None
        refs.advance(BRANCHES, "main", merged, expected_sequence=at.sequence)
        stores.commits.append(merged)
        refs.advance(TAGS, f"v{n}", aside, expected_sequence=None)
        there = sum("/commits/" in key for key in stores.memory.objects)
        foreseen, found = stores.copy(None, dry_run=True).commits, stores.copy(None).commits
        came = sum("/commits/" in key for key in stores.memory.objects) - there
        assert (foreseen, found, came) == ((5, 2)[n],) * 3
        assert stores.copy(None).commits == 0
